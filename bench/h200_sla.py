#!/usr/bin/env python3
"""sarvam-30b on one H200 as a voice agent's server: random weights, 3,584 tokens in, 128 out, 32 and 64 conversations at once.
Starts `vayu serve`, asks it through the OpenAI SDK where that is installed, runs `vayu bench serve` and writes
bench/results/h200_sla.json. Energy is the device's own counter (NVML, package nvidia-ml-py).

    bench/h200_sla.py --vayu build/apps/vayu [--out FILE] [--step-tokens 1280 ...] [--requests-per-client 4]
"""
import argparse
import json
import subprocess
import sys
import time
import urllib.request

import common

INPUT, OUTPUT = 3584, 128


def energy_joules():
    import pynvml

    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(0)) / 1e3


class Server:
    def __init__(self, vayu, step_tokens):
        self.command = [vayu, "serve", "sarvam-30b", "--load-format", "dummy", "--device", "cuda", "--quantization", "fp8",
                        "--kv-cache-dtype", "fp8", "--max-model-len", "8192", "--max-num-seqs", "64", "--port", "8123",
                        "--max-num-batched-tokens", str(step_tokens), "--disable-prefix-cache", "--log-level", "warn",
                        "--threads", "16"]
        self.url = "http://127.0.0.1:8123"
        start = time.time()
        self.process = subprocess.Popen(self.command)
        while True:
            try:
                urllib.request.urlopen(self.url + "/ready", timeout=2)
                break
            except OSError:
                if self.process.poll() is not None:
                    sys.exit(f"the server ended with {self.process.returncode}")
                time.sleep(0.2)
        self.ready_s = time.time() - start

    def stop(self):
        self.process.terminate()
        return self.process.wait(60)


def ask_openai(url):
    """One streamed chat through the official SDK; None where it is not installed."""
    try:
        import openai
    except ImportError:
        return None
    client = openai.OpenAI(base_url=url + "/v1", api_key="none")
    model = client.models.list().data[0].id
    stream = client.completions.create(model=model, prompt=[7] * 64, max_tokens=16, stream=True, temperature=0,
                                       stream_options={"include_usage": True}, extra_body={"ignore_eos": True})
    usage = [chunk.usage for chunk in stream if chunk.usage][-1]
    assert usage.prompt_tokens == 64 and usage.completion_tokens == 16, usage
    return openai.__version__


def measure(vayu, url, clients, requests):
    out = f"/tmp/vayu_sla_{clients}.json"
    command = [vayu, "bench", "serve", "--url", url, "--concurrency", str(clients), "--num-requests", str(requests), "--warmup",
               str(clients), "--input-len", str(INPUT), "--output-len", str(OUTPUT), "--json", out, "--no-progress"]
    before = energy_joules()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    joules = energy_joules() - before
    return json.load(open(out)), joules


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vayu", default=str(common.VAYU))
    parser.add_argument("--out", help="file in place of bench/results/h200_sla.json")
    parser.add_argument("--step-tokens", type=int, action="append")
    parser.add_argument("--requests-per-client", type=int, default=4)
    options = parser.parse_args()
    metrics, notes = {}, []
    for step_tokens in options.step_tokens or [1280]:
        server = Server(options.vayu, step_tokens)
        suffix = "" if not metrics else f"_step{step_tokens}"
        notes.append(f"{step_tokens} tokens a step: ready after {server.ready_s:.1f} s, OpenAI SDK {ask_openai(server.url)}")
        try:
            for clients in (32, 64):
                result, joules = measure(options.vayu, server.url, clients, clients * options.requests_per_client)
                metrics.update({f"c{clients}_{key}{suffix}": value for key, value in figures(result, joules).items()})
        finally:
            metrics[f"server_exit_code{suffix}"] = server.stop()
    metrics["tokens_per_joule"] = metrics["c64_tokens_per_joule"]
    common.write_result("h200_sla", metrics, "; ".join(notes), hardware="one NVIDIA H200", path=options.out)


def figures(result, joules):
    """What the file keeps of one run of `vayu bench serve`."""
    m = result["metrics"]
    assert m["failed"] == 0 and result["checks"]["output_tokens_wrong"] == 0, result["errors"]
    return {"req_per_s": m["requests_per_s"], "output_tokens_per_s": m["output_tokens_per_s"],
            "p95_ttft_ms": m["ttft_ms_p95"], "p50_ttft_ms": m["ttft_ms_p50"], "p95_itl_ms": m["itl_ms_p95"],
            "p50_itl_ms": m["itl_ms_p50"], "tokens_per_joule": m["output_tokens"] / joules}


if __name__ == "__main__":
    main()
