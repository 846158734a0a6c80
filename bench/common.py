"""Shared by the benchmark scripts: servers, streaming requests, result files."""
import json
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = os.environ.get("VAYU_TEST_MODEL", str(ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"))
VAYU = os.environ.get("VAYU_BIN", str(ROOT / "build/apps/vayu"))


class Server:
    """A server process on a loopback port, stopped at the end of the with block."""

    def __init__(self, command, port, ready, seconds=60, stderr=subprocess.DEVNULL):
        self.url = f"http://127.0.0.1:{port}"
        self.started = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
        while not self.answers(ready):
            if self.process.poll() is not None:
                raise RuntimeError(f"ended with {self.process.returncode}: {shlex.join(command)}")
            if time.perf_counter() - self.started > seconds:
                self.process.kill()
                self.process.wait()
                raise RuntimeError(f"not ready after {seconds} s: {shlex.join(command)}")
            time.sleep(0.01)
        self.ready_s = time.perf_counter() - self.started

    def answers(self, path):
        try:
            with urllib.request.urlopen(self.url + path, timeout=2) as response:
                return response.status == 200
        except OSError:  # no connection yet, or 503
            return False

    def stop(self):
        """The exit code; where nothing ends within a minute, that of a kill."""
        self.process.terminate()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def memory_mb(self, key="VmRSS"):
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith(key + ":"):
                return int(line.split()[1]) / 1024
        raise KeyError(key)


def vayu_server(port, *flags):
    return Server([VAYU, "serve", MODEL, "--port", str(port), "--threads", "2", *flags], port, "/ready")


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)


def stream(url, prompt_ids, max_tokens, extra=None):
    """One streamed completion over token ids. Returns seconds to each token event, from sending the request."""
    body = {"prompt": prompt_ids, "max_tokens": max_tokens, "temperature": 0, "stream": True, "ignore_eos": True, **(extra or {})}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    start = time.perf_counter()
    times = []
    with urllib.request.urlopen(request, timeout=300) as response:
        for line in response:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            choices = json.loads(line[6:]).get("choices") or []
            if choices and (choices[0].get("text") or choices[0].get("finish_reason") is None):
                times.append(time.perf_counter() - start)
    return times


def parallel(jobs):
    """Runs the jobs in threads of their own and returns (results, seconds for all)."""
    results = [None] * len(jobs)

    def run(i):
        results[i] = jobs[i]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    start = time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results, time.perf_counter() - start


def median(values):
    values = sorted(values)
    return values[len(values) // 2] if len(values) % 2 else (values[len(values) // 2 - 1] + values[len(values) // 2]) / 2


def cpu_hardware():
    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.processor())
    flags = next((l for l in open("/proc/cpuinfo") if l.startswith("flags")), "")
    simd = [f for f in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if re.search(rf"\b{f}\b", flags)]
    return f"{cpu}, {os.cpu_count()} cores, {' '.join(simd)}"


def gpu_hardware():
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return "one " + subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "a GPU that nvidia-smi does not name"


def recorded_command(argv):
    """The command to repeat a run with: paths in the tree from its root, others by the name of their flag: --model MODEL."""
    def shown(word, flag):
        if not os.path.isabs(word):
            return word
        if pathlib.Path(word).is_relative_to(ROOT):
            return os.path.relpath(word, ROOT)
        return flag.lstrip("-").replace("-", "_").upper() or "PATH"

    words, flag = [os.path.relpath(argv[0], ROOT)], ""
    for word in argv[1:]:
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            words.append(name + equals + (shown(value, name) if equals else ""))
            flag = "" if equals else word
        else:
            words.append(shown(word, flag))  # several values of one flag are all of its name
    return shlex.join(words)


def result_path(name, hardware):
    """bench/results/, but what is called after a GPU and comes from another machine (a try without one) stays out of it."""
    elsewhere = name.startswith("h200_") and "H200" not in hardware
    return ROOT / ("build-gpu/out" if elsewhere else "bench/results") / f"{name}.json"


def write_result(name, metrics, notes, hardware=None, path=None, **more):
    hardware = hardware or cpu_hardware()
    commit = os.environ.get("COMMIT")  # of binaries that were built elsewhere
    if not commit:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    result = {"name": name, "commit": commit, "hardware": hardware, "command": recorded_command(sys.argv),
              "metrics": {k: round(v, 4) for k, v in metrics.items()}, "notes": notes, **more}
    path = pathlib.Path(path) if path else result_path(name, hardware)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    print(f"wrote {path}", file=sys.stderr)
