#!/usr/bin/env python3
"""Loading of a safetensors checkpoint of about 4 GB: seconds per GB, and peak memory over the final size.

    bench/loading.py [--rounds 3] [--keep DIR]

The checkpoint is written by `vayu convert` from seeded random weights (the geometry sarvam-3b-like with 8 of its 12 layers,
bf16). It lies in the page cache when it is read. Peak memory over final size: VmHWM of the server when it is ready, less its
weights, less the same difference of a server over the 24 MB model in tests/data, which has next to no weights to stream.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request

import common


def serve(folder, port, flags=()):
    """(seconds of loading weights, MiB of weights, MiB of VmHWM) of a server that is ready."""
    command = [common.VAYU, "serve", str(folder), "--port", str(port), "--threads", "2", "--max-total-tokens", "2048",
               "--max-model-len", "1024", *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    log = []
    try:
        while True:
            line = process.stderr.readline()
            if not line:
                raise RuntimeError("did not start:\n" + "".join(log))
            log.append(line)
            if "memory: weights" in line:
                break
        deadline = time.time() + 60
        while time.time() < deadline:
            try:
                if urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2).status == 200:
                    break
            except OSError:
                time.sleep(0.05)
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    finally:
        process.terminate()
        process.wait(20)
    text = "".join(log)
    seconds = float(re.search(r"weights: loaded in ([\d.]+) s", text)[1])
    weights = float(re.search(r"memory: weights (\d+) MiB", text)[1])
    return seconds, weights, int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", help="make the checkpoint here and leave it there")
    args = parser.parse_args()
    work = pathlib.Path(args.keep or tempfile.mkdtemp(prefix="vayu_loading_"))
    folder = work / "checkpoint"
    try:
        start = time.perf_counter()
        if not folder.exists():
            subprocess.run([common.VAYU, "convert", "sarvam-3b-like", str(folder), "--load-format", "dummy", "--dtype",
                            "bfloat16", "--hf-overrides", '{"num_hidden_layers": 8}', "--max-shard-gb", "2"], check=True)
        write_s = time.perf_counter() - start
        size_gb = sum(f.stat().st_size for f in folder.glob("*.safetensors")) / 1e9
        small = serve(common.ROOT / "tests/data/sarvam-tiny", 8191)
        as_stored = [serve(folder, 8192 + i) for i in range(args.rounds)]
        quantised = [serve(folder, 8202 + i, ["--quantization", "q4_0"]) for i in range(args.rounds)]
        best = min(r[0] for r in as_stored)
        best_q4 = min(r[0] for r in quantised)
        over = max(r[2] - r[1] for r in as_stored) - (small[2] - small[1])
        over_q4 = max(r[2] - r[1] for r in quantised) - (small[2] - small[1])
        common.write_result("loading", {
            "checkpoint_gb": size_gb, "seconds_per_gb": best / size_gb, "q4_0_seconds_per_gb": best_q4 / size_gb,
            "peak_over_final_mib": over, "q4_0_peak_over_final_mib": over_q4, "write_seconds_per_gb": write_s / size_gb,
        }, notes="best of the rounds for time, worst for memory; sharded safetensors from the page cache, two threads")
    finally:
        if not args.keep:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
