#!/usr/bin/env python3
"""Our CUDA ops beside those of others, in one run on one H200: FlashInfer and PyTorch's attention, a tuned Triton kernel and
CUTLASS (through PyTorch) for the experts, PyTorch's FP8 product for dense linears, at the shapes of sarvam-30b and -105b.

  bench/peers.py [--only decode,prefill,mla,experts,dense] [--json FILE]      after tools/gpu_pack.sh; about 3 minutes

The exit code is 0 where every part has a peer beside ours; what some case or peer lacks stands in the notes.

Of each part ours run first (the Speed tests of ops_cuda_test), then the others in a process of their own. All are timed as
ours are (ops/cuda/timing.h): `us` is the median of calls alone, with 256 MiB read through the second-level cache before each,
`chained_us` the time of one of many calls in a CUDA graph. A peer's call alone is the faster of a plain launch and a graph of
one, so that Python's time does not count against it. An output is compared with plain PyTorch before it is timed.
FlashInfer comes from build-call/flashinfer_peer.so (bench/flashinfer/build.sh); what cannot run is named in the notes.
"""

import argparse
import contextlib
import io
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from common import ROOT, write_result  # noqa: E402

PARTS = {  # the tests whose lines a part needs, and the seconds its peers get
    "decode": ("DeviceDecodeCuda.Speed", 60),
    "prefill": ("DevicePrefillCuda.Speed", 60),
    "mla": ("DeviceMlaCuda.Speed:DeviceMlaPrefillCuda.Speed", 60),
    "experts": ("StreamExpertsCuda.Speed:DeviceGemmCuda.Speed", 170),
    "dense": ("DeviceGemmCuda.Speed", 60),
}
PEERS = ("fa2", "fa3", "fa3_rows", "sdpa_flash", "sdpa_cudnn", "triton", "cutlass", "torch")
NOTES = (
    "us: medians of calls alone with a cold second-level cache; chained_us: one of many calls in a CUDA graph; over_ours: time "
    "of the peer over ours, chained where both are, so above 1 ours is faster; best_peer: the fastest of the case. Ours write "
    "decode attention and the inner rows of the experts in FP8 with scales (peers: attention in BF16; SwiGLU and scales a row "
    "in a kernel of their own, counted in experts_*); decode experts with the shared one as one more"
)


class Bench:
    """Times and checks of one part's peers, written to a file as they come."""

    def __init__(self, path, ours):
        import torch

        self.torch, self.path, self.ours = torch, pathlib.Path(path), ours
        self.metrics, self.errors = {}, []
        self.flush = torch.randn(64 << 20, device="cuda")  # 256 MiB
        torch.manual_seed(1)
        self.save()

    def save(self):
        name = self.torch.cuda.get_device_name()
        state = {"metrics": self.metrics, "errors": self.errors, "hardware": name, "torch": self.torch.__version__}
        self.path.write_text(json.dumps(state))

    def attempt(self, name, function):
        """What one peer lacks or fails at is noted, and the others go on."""
        try:
            with self.torch.no_grad():
                function()
            self.torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001: libraries raise many kinds
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            self.errors.append(f"{name}: {reason}")
            print(f"  {name}: {reason}", file=sys.stderr, flush=True)
        self.save()

    def check(self, name, got, want, most):
        error = ((got.float() - want).norm() / want.norm()).item()
        if not error < most:  # NaN too
            raise ValueError(f"{name} is wrong: relative error {error:.4g}, at most {most} allowed")

    def graph(self, call):
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            call()
        return graph

    def cold_us(self, call, repeats=20):
        for _ in range(3):
            call()
        pairs = []
        for _ in range(repeats):
            self.flush.sum()
            begin, end = self.torch.cuda.Event(True), self.torch.cuda.Event(True)
            begin.record()
            call()
            end.record()
            pairs.append((begin, end))
        self.torch.cuda.synchronize()
        return 1e3 * statistics.median(begin.elapsed_time(end) for begin, end in pairs)

    def alone_us(self, call, repeats=20):
        plain = self.cold_us(call, repeats)
        try:
            return min(plain, self.cold_us(self.graph(call).replay, repeats))
        except RuntimeError as error:
            self.errors.append(f"no graph: {str(error)[:100]}")
            return plain

    def chained_us(self, call, count, repeats=10):
        def all_calls():
            for i in range(count):
                call(i)

        graph, times = self.graph(all_calls), []
        for _ in range(repeats + 2):
            begin, end = self.torch.cuda.Event(True), self.torch.cuda.Event(True)
            begin.record()
            graph.replay()
            end.record()
            self.torch.cuda.synchronize()
            times.append(1e3 * begin.elapsed_time(end) / count)
        return statistics.median(times[2:])

    def record(self, case, peer, us, chained=None):
        """A peer may be recorded in several forms: the fastest counts."""
        for key, value in ((f"{case}_{peer}_us", us), (f"{case}_{peer}_chained_us", chained)):
            if value is not None:
                self.metrics[key] = min(value, self.metrics.get(key, value))
        chain = "" if chained is None else f", chained {chained:.1f} us"
        print(f"  {case} {peer} {us:.1f} us{chain}", file=sys.stderr, flush=True)


def lines_of_ours(text):
    """{line of a speed test: (us, chained us or None)}"""
    ours = {}
    for line in text.splitlines():
        if found := re.match(r"SPEED (.+?):? ([\d.]+) us", line):
            chained = re.search(r", (?:chained|in a chain) ([\d.]+) us", line)
            name = re.sub(r" width \d+ stages \d+ cluster \d| alone$", "", found[1])
            ours.setdefault(name, (float(found[2]), float(chained[1]) if chained else None))  # first: the plan that is used
    return ours


def run_ours(tests):
    """What lines_of_ours() gives, and the tests' exit code."""
    command = f". tools/gpu_env.sh && VAYU_SPEED=1 build-gpu/bin/ops_cuda_test --gtest_filter={tests}"
    run = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    ours = lines_of_ours(run.stdout)
    if run.returncode or not ours:
        print(run.stdout[-2000:], run.stderr[-2000:], file=sys.stderr)
    return ours, run.returncode


def named_ours(part, ours):
    """{case: (us, chained us or None)} with the names that the peers use."""
    cases = {}

    def take(case, *lines):
        found = [ours[line] for line in lines if line in ours]
        if len(found) == len(lines):
            chained = [time[1] for time in found]
            cases[case] = (sum(time[0] for time in found), None if None in chained else sum(chained))

    if part == "decode":
        for rows in (1, 8, 32, 64):
            for kind in ("bf16", "f8"):
                take(f"decode_{rows}_{kind}", f"decode_attention {rows} rows 3650 tokens {kind}")
    elif part == "prefill":
        lines = {"3584": "1x3584", "8192": "1x8192", "16x896": "16x896", "512_of_3584": "512 of 3584"}
        for case, line in lines.items():
            for kind, word in (("bf16", "bf16"), ("f8", "fp8")):
                for form in ("whole", "split"):  # split where it is offered: it is what a step takes then
                    take(f"prefill_{case}_{kind}", f"device_prefill 64/4x64 {line} {word} {form}")
    elif part == "mla":
        for rows in (1, 8, 32, 64):
            for kind in ("bf16", "f8"):
                take(f"mla_decode_{rows}_{kind}", f"mla_attention {rows} rows of 1 tokens, context 3650 {kind}")
        lines = {"3584": "3584 of 3584", "8192": "8192 of 8192", "4x896": "4x 896 of 896", "512_of_3584": "512 of 3584"}
        for case, line in lines.items():
            take(f"mla_prefill_{case}", f"mla_prefill {line}")
    elif part == "experts":
        for line in ours:
            if found := re.match(r"stream_experts f8 tokens (1|8|32|64) experts (\d+)$", line):
                take(f"experts_{found[1]}", line)
                cases[f"touched_{found[1]}"] = (int(found[2]), None)
        take("gate_up_3584", "device_gemm gate-up gathered")
        take("down_3584", "device_gemm down of groups")
        take("down_of_rows_3584", "device_gemm down of rows")
        take("experts_3584", "device_gemm gate-up gathered", "device_gemm down of groups")
    else:
        take("dense_qkv", "device_gemm qkv 3584x4608x4096")
        take("dense_o", "device_gemm o 3584x4096x4096")
        take("dense_qkv_bf16", "device_gemm bf16 qkv 3584x4608x4096")
    return cases


def add_ratios(metrics, cases):
    for case, (us, chained) in cases.items():
        if case.startswith("touched"):
            metrics[f"experts_{case}"] = us
            continue
        metrics[f"{case}_ours_us"] = us
        if chained is not None:
            metrics[f"{case}_ours_chained_us"] = chained
        ratios = {}
        for key, time in list(metrics.items()):
            if not (found := re.fullmatch(f"{case}_({'|'.join(PEERS)})_us", key)):
                continue
            both = metrics.get(f"{case}_{found[1]}_chained_us") if chained is not None else None
            ratios[found[1]] = both / chained if both else time / us
        for peer, ratio in ratios.items():
            metrics[f"{case}_{peer}_over_ours"] = ratio
        if ratios:
            metrics[f"{case}_best_peer_over_ours"] = min(ratios.values())


def run_part(part, path, ours):
    bench = Bench(path, ours)
    if part in ("decode", "prefill", "mla"):
        import peers_attention

        getattr(peers_attention, part)(bench)
    else:
        import peers_experts

        getattr(peers_experts, part)(bench)
    bench.save()


def flashinfer_version():
    return re.search(r"^PEER_FLASHINFER=.*==(.*)$", (ROOT / "tools/pins.sh").read_text(), re.MULTILINE)[1]


def measure(part):
    """(metrics, errors, PyTorch's version, hardware) of one part: ours, then the peers."""
    tests, seconds = PARTS[part]
    print(part, file=sys.stderr, flush=True)
    lines, code = run_ours(tests)
    cases = named_ours(part, lines)
    errors = [f"{part}: our tests ended with {code}"] if code else []
    errors += [] if cases else [f"{part}: no lines of ours"]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "part.json"
        command = [sys.executable, __file__, "--part", part, "--json", str(path), "--ours", json.dumps(cases)]
        try:
            code = subprocess.run(command, timeout=seconds).returncode
            errors += [f"{part}: its process ended with {code}"] if code else []
        except subprocess.TimeoutExpired:
            errors.append(f"{part}: stopped after {seconds} s")
        state = json.loads(path.read_text()) if path.exists() else {}
    metrics = state.get("metrics", {})
    add_ratios(metrics, cases)
    return metrics, errors + state.get("errors", []), state.get("torch"), state.get("hardware")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--json", default=None)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--ours", default="{}", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        return run_part(args.part, args.json, json.loads(args.ours))
    metrics, errors, compared, torch_version, hardware = {}, [], True, None, None
    for part in args.only.split(","):
        found, failed, version, name = measure(part)
        metrics |= found
        compared &= any(key.endswith("_over_ours") for key in found)
        errors += failed
        torch_version, hardware = version or torch_version, name or hardware
        stamp = ROOT / "build-gpu/bin/commit"
        if stamp.exists():
            os.environ.setdefault("COMMIT", stamp.read_text().strip())
        notes = f"PyTorch {torch_version}, FlashInfer {flashinfer_version()}; {NOTES}; did not run: {'; '.join(errors) or 'nothing'}"
        with contextlib.redirect_stdout(io.StringIO()):  # after each part: what ends early leaves the others
            write_result("h200_peers", metrics, notes, hardware=hardware or "unknown", path=args.json)
    for key, value in metrics.items():
        if key.endswith("_over_ours"):
            print(f"{key} {value:.2f}")
    print("did not run:", *(errors or ["nothing"]), sep="\n  ")
    sys.exit(0 if compared else "a part has no peer beside ours")


if __name__ == "__main__":
    main()
