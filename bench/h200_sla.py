#!/usr/bin/env python3
"""sarvam-30b on one H200 as a voice agent's server: random weights, 3,584 tokens in, 128 out, 32 and 64 conversations at once.
Starts `vayu serve`, asks it through the OpenAI SDK, runs `vayu bench serve` and writes bench/results/h200_sla.json, which says what the
SDK was answered; without an SDK, or with an answer missing, the exit code is 1. Energy is the device's own counter (NVML), or sums of nvidia-smi's power where that has none.

    bench/h200_sla.py --vayu build/apps/vayu [--out FILE] [--step-tokens 1280 ...] [--requests-per-client 8]

Everything but the figures can be tried without a GPU (the file is then build-gpu/out/h200_sla.json):
--device cpu --model FOLDER --input-len 64 --output-len 8 --clients 2 4
"""
import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import threading
import time

import common

CUDA_FLAGS = ["--quantization", "fp8", "--kv-cache-dtype", "fp8", "--threads", "16"]
# Random weights bring no template; with this one the server answers chats too.
CHAT_TEMPLATE = """{% for message in messages %}<{{ message.role }}>{{ message.content }}
{% endfor %}<assistant>"""
NVML = ("libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")


def nvml_counter():
    """A function that reads joules since the driver was loaded; None where there is no such counter."""
    for name in NVML:
        try:
            nvml = ctypes.CDLL(name)
        except OSError:
            continue
        device, value = ctypes.c_void_p(), ctypes.c_ulonglong()
        if nvml.nvmlInit_v2() != 0 or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) != 0:
            continue
        if nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(value)) != 0:
            continue

        def joules():
            if nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(value)) != 0:
                raise RuntimeError("NVML lost its energy counter")
            return value.value / 1e3

        return joules
    return None


class PowerSum:
    """Joules from nvidia-smi's power, five times a second."""

    def __init__(self):
        self.total, self.watts, self.last, self.samples = 0.0, 0.0, time.monotonic(), 0
        command = ["nvidia-smi", "-i", "0", "--query-gpu=power.draw", "--format=csv,noheader,nounits", "-lms", "200"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._add, daemon=True).start()
        time.sleep(1)  # the tool takes a while to print
        if self.samples == 0:
            self.process.kill()
            raise OSError("nvidia-smi prints no power")

    def _add(self):
        for line in self.process.stdout:
            try:
                watts = float(line)
            except ValueError:  # [N/A]
                continue
            self.total, self.watts, self.last, self.samples = self(), watts, time.monotonic(), self.samples + 1

    def __call__(self):
        return self.total + self.watts * (time.monotonic() - self.last)

    def stop(self):
        self.process.kill()


class Energy:
    """read() gives joules up to now, or None; source says by what."""

    def __init__(self):
        self.source, self.read, self.sum = "none", lambda: None, None
        if counter := nvml_counter():
            self.source, self.read = "NVML's counter", counter
            return
        try:
            self.sum = PowerSum()
            self.source, self.read = "nvidia-smi's power every 200 ms", self.sum
        except OSError as error:
            print(f"no energy: {error}", file=sys.stderr)

    def stop(self):
        if self.sum:
            self.sum.stop()


def start_server(options, step_tokens, template):
    command = [options.vayu, "serve", options.model, "--load-format", "dummy", "--device", options.device,
               *(CUDA_FLAGS if options.device == "cuda" else []), "--max-model-len", str(options.max_model_len),
               "--max-num-seqs", str(max(options.clients)), "--port", str(options.port),
               "--max-num-batched-tokens", str(step_tokens), "--disable-prefix-cache", "--log-level", "warn",
               "--chat-template", template]
    return common.Server(command, options.port, "/ready", options.start_seconds, stderr=None)


def ask_openai(url):
    """Version and calls of the official SDK that were answered as asked for; any other answer raises."""
    import openai
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=60)
    model = client.models.list().data[0].id
    calls = ["models"]
    for name, create, prompt in (("completions", client.completions.create, {"prompt": [7] * 64}),
                                 ("chat", client.chat.completions.create, {"messages": [{"role": "user", "content": "Namaste"}]})):
        fields = {"model": model, "max_tokens": 16, "temperature": 0, "extra_body": {"ignore_eos": True}, **prompt}
        answer = create(**fields)
        chunks = list(create(**fields, stream=True, stream_options={"include_usage": True}))
        usage = [chunk.usage for chunk in chunks if chunk.usage][-1]
        reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
        for way, tokens, reason in (("", answer.usage.completion_tokens, [answer.choices[0].finish_reason]),
                                    ("_streamed", usage.completion_tokens, reasons)):
            if (tokens, reason) != (16, ["length"]):
                raise RuntimeError(f"OpenAI SDK, {name}{way}: {tokens} tokens, ended by {reason}, where 16 and length were asked for")
            calls.append(name + way)
    return openai.__version__, calls


def openai_record(url):
    """What the result file says of the SDK. A call that fails ends this script."""
    try:
        version, calls = ask_openai(url)
    except ModuleNotFoundError as error:
        if error.name != "openai":
            raise
        return {"version": None, "answered": [], "why_not": "the SDK is not installed"}
    return {"version": version, "answered": calls}


def measure(options, url, clients, energy):
    requests = clients * options.requests_per_client
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [options.vayu, "bench", "serve", "--url", url, "--concurrency", str(clients), "--num-requests", str(requests),
                   "--warmup", str(clients), "--input-len", str(options.input_len), "--output-len", str(options.output_len),
                   "--token-range", *map(str, options.token_range), "--json", out.name, "--no-progress"]
        before = energy.read()
        done = subprocess.run(command, capture_output=True, text=True)
        after = energy.read()
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        print(f"{clients} clients\n{done.stdout}", flush=True)
        result = json.load(open(out.name))
    # The counter saw the warm-up too, so its tokens count.
    joules = None if before is None else after - before
    return figures(result, (requests + clients) * options.output_len, joules)


def figures(result, tokens, joules):
    """What the file keeps of one run of `vayu bench serve`."""
    m = result["metrics"]
    if m["failed"] or any(result["checks"].values()):
        sys.exit(f"a run with faults: {m['failed']} failed, {result['checks']}, {result['errors']}")
    out = {"req_per_s": m["requests_per_s"], "output_tokens_per_s": m["output_tokens_per_s"],
           "prompt_tokens_per_s": m["prompt_tokens_per_s"], "p95_ttft_ms": m["ttft_ms_p95"], "p50_ttft_ms": m["ttft_ms_p50"],
           "p95_itl_ms": m["itl_ms_p95"], "p50_itl_ms": m["itl_ms_p50"]}
    if joules:
        out |= {"tokens_per_joule": tokens / joules, "joules_per_request": joules / (tokens / result["config"]["output_len"])}
    return out


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vayu", default=str(common.VAYU))
    parser.add_argument("--model", default="sarvam-30b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", help="file in place of bench/results/h200_sla.json")
    parser.add_argument("--step-tokens", type=int, nargs="+", default=[1280], help="a server for each")
    parser.add_argument("--clients", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--requests-per-client", type=int, default=8)
    parser.add_argument("--input-len", type=int, default=3584)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--token-range", type=int, nargs=2, default=[1000, 30000])
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--start-seconds", type=float, default=240)
    return parser.parse_args()


def measure_all(options, energy):
    """(metrics, notes, what the SDK was answered)"""
    metrics, notes, sdk = {}, [], {}
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write(CHAT_TEMPLATE)
        template.flush()
        for step_tokens in options.step_tokens:
            suffix = f"_step{step_tokens}" if metrics else ""
            server = start_server(options, step_tokens, template.name)
            try:
                sdk = openai_record(server.url)
                notes.append(f"{step_tokens} tokens a step: ready after {server.ready_s:.1f} s")
                for clients in options.clients:
                    run = measure(options, server.url, clients, energy)
                    metrics |= {f"c{clients}_{key}{suffix}": value for key, value in run.items()}
            finally:
                code = server.stop()
            metrics[f"server_exit_code{suffix}"] = code
    return metrics, notes, sdk


def main():
    options = parse()
    energy = Energy()
    try:
        metrics, notes, sdk = measure_all(options, energy)
    finally:
        energy.stop()
    if (best := f"c{max(options.clients)}_tokens_per_joule") in metrics:
        metrics["tokens_per_joule"] = metrics[best]
    metrics["openai_sdk_calls_answered"] = len(sdk["answered"])
    notes.append(f"{options.input_len} tokens in, {options.output_len} out, closed loop; energy: {energy.source}; "
                 "the server has a small chat template of this script's, since random weights bring none")
    common.write_result("h200_sla", metrics, "; ".join(notes), path=options.out,
                        hardware=common.gpu_hardware() if options.device == "cuda" else None, openai_sdk=sdk)
    sys.exit(not sdk["answered"] or any(value != 0 for key, value in metrics.items() if key.startswith("server_exit_code")))


if __name__ == "__main__":
    main()
