"""The trained model in tests/data/sarvam-tiny, served from its folder: text as PyTorch gives it, chat, faults of the folder."""
import json
import pathlib
import shutil
import subprocess

import httpx2 as httpx
import pytest

from conftest import BIN, Server

MODEL = pathlib.Path(__file__).resolve().parents[1] / "data/sarvam-tiny"
REFERENCE = json.loads((MODEL / "reference.json").read_text())
END_OF_TURN = next(t["id"] for t in json.loads((MODEL / "tokenizer.json").read_text())["added_tokens"]
                   if t["content"] == "<|end_of_turn|>")


@pytest.fixture(scope="module")
def server():
    s = Server("--debug-hooks", model=str(MODEL))
    yield s
    s.stop()


def chat(server, text, **fields):
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 60, "temperature": 0, **fields}
    r = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=60)
    assert r.status_code == 200, r.text
    return r.json()["choices"][0]


@pytest.mark.parametrize("case", [g for g in REFERENCE["greedy"] if "text" in g and not g["text"].startswith("[@BOS@]")],
                         ids=lambda g: f"{g['lang']}-{g['ids'][0]}")
def test_continues_as_pytorch_does(server, case):
    assert httpx.post(server.url + "/tokenize", json={"prompt": case["text"]}).json()["tokens"] == case["ids"]
    body = {"prompt": case["text"], "max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    choice = httpx.post(server.url + "/v1/completions", json=body, timeout=60).json()["choices"][0]
    assert choice["token_ids"] == case["output_ids"][:24]


def test_hindi_and_tamil_make_sense(server):
    for prompt, words in (("फ़ाइल को", ("खोल", "सहेज", "मिटा", "फ़ाइल")), ("கோப்பை", ("திற", "சேமி", "அழி", "கோப்ப"))):
        body = {"prompt": prompt, "max_tokens": 24, "temperature": 0}
        text = httpx.post(server.url + "/v1/completions", json=body, timeout=60).json()["choices"][0]["text"]
        assert any(word in text for word in words), text
        assert "\ufffd" not in text


def test_chat_in_sarvams_markers(server):
    tamil = chat(server, "Translate to Tamil: Could not open the file.")
    assert tamil["finish_reason"] == "stop"  # the end-of-turn marker is one of the declared ends
    assert "முடியவில்லை" in tamil["message"]["content"]
    assert "<" not in tamil["message"]["content"]
    prompt = httpx.post(server.url + "/tokenize", json={"messages": [{"role": "user", "content": "S<|end_of_turn|>"}]}).json()
    text = prompt["prompt"]
    assert text == "[@BOS@]\n<|start_of_turn|><|user|>\nS<|end_of_turn|><|end_of_turn|>\n<|start_of_turn|><|assistant|>\n"
    assert prompt["tokens"].count(END_OF_TURN) == 1  # the template's; the user's is plain text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("end", ["eos", "turn"])
def test_every_declared_end_ends(server, end, stream):
    """F06: ids of generation_config.json and the turn marker; ignore_eos and min_tokens hold them back."""
    ends = json.loads((MODEL / "generation_config.json").read_text())["eos_token_id"]
    forced = [300, ends[0] if end == "eos" else END_OF_TURN, 301, 302]
    body = {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "stream": stream,
            "vayu_debug": {"forced_ids": forced}, "return_token_ids": True}
    if stream:
        lines = httpx.post(server.url + "/v1/completions", json=body, timeout=60).text.split("\n\n")
        events = [json.loads(l[6:]) for l in lines if l.startswith("data: {")]
        assert [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]] == ["stop"]
        assert "<|" not in "".join(c["text"] for e in events for c in e["choices"])
        return
    choice = httpx.post(server.url + "/v1/completions", json=body, timeout=60).json()["choices"][0]
    assert choice["finish_reason"] == "stop" and "<|" not in choice["text"]
    free = httpx.post(server.url + "/v1/completions", json={**body, "ignore_eos": True}, timeout=60).json()
    assert free["choices"][0]["finish_reason"] == "length" and free["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("fault", ["missing", "cut", "swapped"])
def test_a_broken_folder_is_one_error(tmp_path, name, fault):
    """F25: never ready, one line that names the file."""
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    path = folder / name
    if fault == "missing":
        path.unlink()
    elif fault == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    else:
        path.write_bytes((folder / "tokenizer_config.json").read_bytes())
    done = subprocess.run([BIN, "serve", str(folder), "--port", "0"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("vayu: ")]
    assert len(errors) == 1 and (name in errors[0] or (fault == "missing" and str(folder) in errors[0])), done.stderr


def test_converted_and_quantised_it_says_the_same(tmp_path):
    """Written to GGUF in 8 bits and to shards in bf16, it still answers in Tamil."""
    q8_0 = ["--quantization", "q8_0"]
    for out, flags in (("tiny.gguf", q8_0), ("mixed.gguf", [*q8_0, "--quantization-ignore", "*.down_proj"]),
                       ("shards", ["--max-shard-gb", "0.01"])):
        subprocess.run([BIN, "convert", str(MODEL), str(tmp_path / out), *flags], check=True, timeout=120)
        s = Server(model=str(tmp_path / out))
        try:
            assert "முடியவில்லை" in chat(s, "Translate to Tamil: Could not open the file.")["message"]["content"]
        finally:
            s.stop()
    assert (tmp_path / "mixed.gguf").stat().st_size > 1.1 * (tmp_path / "tiny.gguf").stat().st_size  # down_proj in 16 bits
    again = subprocess.run([BIN, "convert", str(MODEL), str(tmp_path / "shards")], capture_output=True, text=True)
    assert again.returncode == 1 and str(tmp_path / "shards") in again.stderr
