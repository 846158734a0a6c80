#!/usr/bin/env python3
"""A device that is lost while requests run, on a machine with a GPU: from the root of the tree after tools/gpu_pack.sh.

    . tools/gpu_env.sh; tools/gpu_fault.py

Serves sarvam-tiny with tools/gpu_fault.cc preloaded, which spoils a graph launch: by a kernel that traps, and by answers that the
device is unavailable. Four streamed requests must each end with an error that says why, /ready must turn 503 with the reason, the
process must end by itself with 1, and a server started after that must answer. Writes $OUT/h200_device_loss.json for bench/results/;
exit code 1 on any miss.
"""
import concurrent.futures
import http.client
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

import gpu_tests

PORT = 8177
URL = f"http://127.0.0.1:{PORT}"
MODEL = "tests/data/sarvam-tiny"
CLIENTS, TOKENS = 4, 300


def get(path):
    """Status and body, or None while nobody listens."""
    try:
        with urllib.request.urlopen(URL + path, timeout=5) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


def stream():
    """Tokens received, the error's message, and seconds."""
    body = {"prompt": "The river", "max_tokens": TOKENS, "stream": True, "ignore_eos": True, "temperature": 0}
    request = urllib.request.Request(URL + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    begin, tokens, message = time.monotonic(), 0, None
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            for line in reply:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    message = event["error"]["message"]
                else:
                    tokens += 1
    except urllib.error.HTTPError as error:  # before the first token
        message = json.loads(error.read())["error"]["message"]
    except (OSError, http.client.HTTPException) as error:
        message = f"cut off: {error}"
    return tokens, message, time.monotonic() - begin


def start(binary, fault=None):
    environment = dict(os.environ)
    if fault:
        environment |= {"LD_PRELOAD": str(pathlib.Path("build-gpu/lib/gpu_fault.so").resolve()), "VAYU_FAULT": fault, "VAYU_FAULT_AT": "40"}
    command = [binary, "serve", MODEL, "--device", "cuda", "--port", str(PORT), "--log-level", "warn", "--max-model-len", "1024"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    for _ in range(600):
        state = get("/ready")
        if state and state[0] == 200:
            return process
        if process.poll() is not None:
            sys.exit(f"the server ended with {process.returncode} before it was ready")
        time.sleep(0.05)
    process.kill()
    sys.exit("the server is not ready after 30 s")


def lose(binary, fault):
    process = start(binary, fault)
    try:
        return watch(process)
    finally:
        process.kill()


def watch(process):
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        streams = [pool.submit(stream) for _ in range(CLIENTS)]
        not_ready = None
        begin = time.monotonic()
        while process.poll() is None and time.monotonic() - begin < 60:
            state = get("/ready")
            not_ready = state[1] if state and state[0] == 503 else not_ready
            time.sleep(0.02)
        ended = [future.result() for future in streams]
    if process.poll() is None:
        process.kill()  # it should have ended by itself: the exit code tells
    return {"exit_code": process.wait(), "not_ready": not_ready, "seconds": round(max(s for _, _, s in ended), 2),
            "tokens": [tokens for tokens, _, _ in ended], "errors": sorted({message for _, message, _ in ended if message}),
            "passed": process.returncode == 1 and bool(not_ready) and
                      all(message and tokens < TOKENS and "cut off" not in message for tokens, message, _ in ended)}


def main():
    binary = "build-gpu/bin/vayu" if pathlib.Path("build-gpu/bin/vayu").exists() else "build/apps/vayu"
    results = {fault: lose(binary, fault) for fault in ("trap", "gone")}
    process = start(binary)
    try:
        tokens, message, _ = stream()
    finally:
        process.terminate()
        process.wait()
    results["afterwards"] = {"tokens": tokens, "errors": [message] if message else [], "passed": tokens == TOKENS and not message}
    metrics = {f"{fault}_{key}": results[fault][key] for fault in ("trap", "gone") for key in ("passed", "exit_code", "seconds")}
    metrics |= {"afterwards_passed": results["afterwards"]["passed"]}
    record = {"name": "h200_device_loss", "commit": os.environ.get("COMMIT", "unknown"), "hardware": gpu_tests.gpu_hardware(),
              "command": "tools/gpu_proof.sh fault", "metrics": {key: int(v) if v is True or v is False else v for key, v in metrics.items()},
              "notes": f"{CLIENTS} streams of sarvam-tiny, seconds: until the last had its error; answers: {json.dumps(results)}"}
    out = pathlib.Path(os.environ.get("OUT", "build-gpu/out"))
    out.mkdir(parents=True, exist_ok=True)
    (out / "h200_device_loss.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(results, indent=2))
    sys.exit(0 if all(result["passed"] for result in results.values()) else 1)


if __name__ == "__main__":
    main()
