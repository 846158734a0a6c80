"""`vayu profile --url` and POST /debug/profile: kernels of a running server's steps. The windows themselves need a GPU
(VAYU_E2E_DEVICE=cuda); what is refused does not."""
import json
import re
import subprocess
import threading
import time

import httpx2 as httpx
import pytest

from conftest import BIN, DEVICE, MODEL, Server, wait_idle

on_gpu = pytest.mark.skipif(DEVICE != "cuda", reason="records a GPU's steps")
on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="needs a server without a GPU")


@pytest.fixture(scope="module")
def profiled():
    """A server whose steps may be recorded; afterwards it is idle and has lost no page."""
    if not MODEL:
        pytest.skip("VAYU_TEST_MODEL is not set")
    s = Server("--enable-profiling", "--max-num-seqs", "16")
    yield s
    kv = wait_idle(s)
    assert kv["free"] + kv["cached"] == kv["total"], kv
    assert s.stop() == 0, "".join(s.lines[-20:])


def ask(server, timeout=60, **fields):
    return httpx.post(server.url + "/debug/profile", json=fields, timeout=timeout)


def profile(url, *flags):
    return subprocess.run([BIN, "profile", "--url", url, *flags], capture_output=True, text=True, timeout=120)


class Load:
    """Eight clients that ask without a pause."""

    def __init__(self, server, max_tokens=400):
        self.url, self.max_tokens = server.url, max_tokens
        self.stop, self.answers, self.faults = threading.Event(), [], []

    def client(self, number):
        while not self.stop.is_set():
            answer = httpx.post(self.url + "/v1/completions", timeout=60, json={
                "prompt": f"Chapter {number}. It was", "max_tokens": self.max_tokens, "ignore_eos": True, "temperature": 0})
            if answer.status_code != 200 or answer.json()["usage"]["completion_tokens"] != self.max_tokens:
                self.faults.append(answer.text)
            self.answers.append(number)

    def __enter__(self):
        self.threads = [threading.Thread(target=self.client, args=(n,)) for n in range(8)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        assert not self.faults and len(set(self.answers)) == 8, self.faults[:1]


def test_off_without_the_flag(server):
    answer = ask(server, steps=1)
    assert answer.status_code == 403
    assert "--enable-profiling" in answer.json()["error"]["message"]
    r = profile(server.url)
    assert r.returncode == 1
    assert "--enable-profiling" in r.stderr and r.stdout == "", r.stderr


@pytest.mark.parametrize("body, field", [
    ({"steps": 0}, "steps"), ({"steps": 201}, "steps"), ({"steps": "four"}, "steps"), ({"timeout_s": 0}, "timeout_s"),
    ({"timeout_s": 1e9}, "timeout_s"), ({"trace": "yes"}, "trace"), ({"seconds": 3}, "seconds"),
])
def test_bad_bodies_name_the_field(profiled, body, field):
    answer = ask(profiled, **body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field, answer.text
    assert field in answer.json()["error"]["message"]


@on_cpu
def test_without_a_gpu_it_says_what_it_needs(profiled):
    answer = ask(profiled, steps=1)
    assert answer.status_code == 400
    assert "--device cuda" in answer.json()["error"]["message"]
    r = profile(profiled.url, "--steps", "2")
    assert r.returncode != 0
    assert "--device cuda" in r.stderr, r.stderr


@pytest.mark.parametrize("flags", [["--decode", "4"], ["--prompts", "64"], ["--context", "100"], ["--model", "sarvam-30b"]])
def test_flags_of_own_steps_do_not_go_with_a_server(flags):
    r = profile("http://127.0.0.1:1", *flags)
    assert r.returncode == 2
    assert "--url" in r.stderr, r.stderr


def test_a_server_that_is_not_there_and_one_that_is_none_of_ours(server):
    r = profile("http://127.0.0.1:1")
    assert r.returncode == 1 and "127.0.0.1" in r.stderr, r.stderr
    r = profile("https://127.0.0.1:1")
    assert r.returncode != 0 and "https" in r.stderr, r.stderr
    r = profile(server.url + "/nothing")
    assert r.returncode == 1 and "/nothing/debug/profile" in r.stderr, r.stderr


@on_gpu
def test_no_load_is_said_so(profiled):
    wait_idle(profiled)
    start = time.time()
    answer = ask(profiled, steps=2, timeout_s=0.5)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert 0.4 < time.time() - start < 5
    assert found["complete"] is False and "No step ran within 0.5 s" in found["message"]
    assert found["steps"] == [] and found["kernels"] == []
    r = profile(profiled.url, "--timeout", "0.5")
    assert r.returncode == 1
    assert "No step ran within 0.5 s" in r.stderr, r.stderr


@on_gpu
def test_one_at_a_time_and_a_client_that_leaves_makes_room(profiled):
    wait_idle(profiled)
    left = []

    def leave():
        try:
            ask(profiled, timeout=2, timeout_s=100)
        except httpx.TimeoutException:
            left.append(True)

    leaving = threading.Thread(target=leave)
    leaving.start()
    time.sleep(1)
    second = ask(profiled, steps=1, timeout_s=0.2)
    assert second.status_code == 409, second.text
    leaving.join()
    assert left
    end = time.time() + 5
    while (answer := ask(profiled, steps=1, timeout_s=0.1)).status_code == 409 and time.time() < end:
        time.sleep(0.1)
    assert answer.status_code == 200, answer.text


@on_gpu
def test_the_table_of_steps_under_load(profiled):
    with Load(profiled):
        for wanted in (8, 1, 30):
            answer = ask(profiled, steps=wanted, timeout_s=30)
            assert answer.status_code == 200, answer.text
            found = answer.json()
            assert found["complete"] is True and found["message"] is None
            assert len(found["steps"]) == wanted
            assert all(1 <= step["rows"] <= 16 and step["tokens"] >= step["rows"] for step in found["steps"])
            kernels = {kernel["name"]: kernel for kernel in found["kernels"]}
            names = " ".join(kernels)
            assert re.search("linear|gemm", names), names
            # Whole steps: every layer's attention is there, whether a step came from a graph or not.
            attention = sum(kernel["calls"] for name, kernel in kernels.items() if re.search(r"^(split_kernel|kernel)\b", name))
            assert attention >= 30, names
            own = sum(kernel["own_us"] for kernel in kernels.values())
            assert own == pytest.approx(found["busy_us"], rel=1e-3)
            assert 0 < found["busy_us"] <= found["step_us"] * 1.001
            assert all(kernel["own_us"] <= kernel["us"] * 1.001 for kernel in kernels.values())


@on_gpu
def test_a_window_that_is_cut_short_keeps_what_it_saw(profiled):
    with Load(profiled, max_tokens=8):
        answer = ask(profiled, steps=200, timeout_s=0.05)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    if not found["complete"]:
        assert f"{len(found['steps'])} of 200 steps" in found["message"] or not found["steps"]
    assert bool(found["steps"]) == bool(found["kernels"])


@on_gpu
def test_the_command_prints_it_and_writes_the_timeline(profiled, tmp_path):
    trace, table = tmp_path / "trace.json", tmp_path / "table.json"
    with Load(profiled):
        r = profile(profiled.url, "--steps", "5", "--trace", str(trace), "--json", str(table))
    assert r.returncode == 0, r.stderr
    assert "5 steps" in r.stdout and "own us" in r.stdout and "kernel (a step)" in r.stdout
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event["name"] == "launch" for event in events) == 5
    on_device = [event for event in events if event.get("pid") == 1 and event["ph"] == "X"]
    written = json.loads(table.read_text())
    assert written["steps"] == 5
    assert len(on_device) == pytest.approx(5 * sum(kernel["calls"] for kernel in written["kernels"]))
