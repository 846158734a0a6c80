"""Starts the real server on the default model and hands tests its address.

Environment: VAYU_BIN (the binary), VAYU_TEST_MODEL (a GGUF file); both are set by test.sh. VAYU_E2E_DEVICE: cpu (default) or cuda.
"""
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

import httpx2 as httpx
import pytest

BIN = os.environ.get("VAYU_BIN", str(pathlib.Path(__file__).resolve().parents[2] / "build/apps/vayu"))
MODEL = os.environ.get("VAYU_TEST_MODEL", "")
DEVICE = os.environ.get("VAYU_E2E_DEVICE", "cpu")
KEY = "test-key"


class Server:
    """One `vayu serve` process on a free port of the loopback interface."""

    def __init__(self, *flags, model=MODEL, wait=True):
        self.process = subprocess.Popen(
            [BIN, "serve", model, "--port", "0", "--device", DEVICE, *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines = []
        self.url = None
        self._found = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        if not self._found.wait(30):
            self.stop()
            raise RuntimeError("the server printed no address:\n" + "".join(self.lines))
        if wait:
            self.wait_ready()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            match = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if match and not self.url:
                self.url = match[0]
                self._found.set()

    def wait_ready(self, seconds=60):
        end = time.time() + seconds
        while time.time() < end:
            if self.process.poll() is not None:
                raise RuntimeError("the server ended:\n" + "".join(self.lines))
            if httpx.get(self.url + "/ready").status_code == 200:
                return
            time.sleep(0.05)
        raise RuntimeError("not ready in time")

    def stats(self, key=None):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.get(self.url + "/stats", headers=headers).json()

    def rss_mb(self):
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("no VmRSS")

    def stop(self, seconds=20):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        return self.process.returncode


def alike(got, want):
    """Equal; on a GPU, where the last bits of a row depend on the batch and a near tie may fall either way, half of them."""
    if DEVICE == "cpu":
        return got == want
    return len(got) == len(want) and sum(a == b for a, b in zip(got, want)) * 2 >= len(want)


def near(got, want):
    """Log-probabilities: equal; on a GPU within what BF16 and another batch make of them."""
    if DEVICE == "cpu":
        return got == want
    return len(got) == len(want) and all(a == b or abs(a - b) < 0.3 for a, b in zip(got, want))


def wait_idle(server, seconds=10):
    """Waits until nothing runs or waits, and returns the page counts."""
    end = time.time() + seconds
    while time.time() < end:
        stats = server.stats()
        if stats["running"] == 0 and stats["waiting"] == 0:
            return stats["kv"]
        time.sleep(0.02)
    raise AssertionError(f"still busy: {stats}")


@pytest.fixture(scope="session")
def server():
    if not MODEL:
        pytest.skip("VAYU_TEST_MODEL is not set")
    s = Server("--debug-hooks", "--max-num-seqs", "32")
    yield s
    assert s.stop() == 0, "".join(s.lines[-20:])


@pytest.fixture(scope="session")
def client(server):
    import openai

    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(autouse=True)
def control_request(request):
    """After every test that used the shared server: same process, idle, no page lost, same answer as before."""
    yield
    if "server" not in request.fixturenames and "client" not in request.fixturenames:
        return
    s = request.getfixturevalue("server")
    assert s.process.poll() is None, "the server died:\n" + "".join(s.lines[-20:])
    kv = wait_idle(s)
    assert kv["free"] + kv["cached"] == kv["total"], kv
    answer = httpx.post(s.url + "/v1/completions", timeout=60, json={
        "prompt": "The capital of France is", "max_tokens": 6, "temperature": 0, "return_token_ids": True})
    assert answer.status_code == 200, answer.text
    text = answer.json()["choices"][0]["text"]
    expected = s.__dict__.setdefault("control_text", text)
    assert text == expected
