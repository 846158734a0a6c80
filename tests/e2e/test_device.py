"""Flags that choose where a model runs, and what is said when it cannot run there."""
import ctypes
import json
import os
import shutil
import subprocess

import pytest
from conftest import BIN, MODEL

HAS_GPU = shutil.which("nvidia-smi") is not None


def has_driver_library():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def refused(*flags):
    """The one line a refused start leaves, and its exit code."""
    r = subprocess.run([BIN, "serve", MODEL, "--port", "0", "--log-level", "off", *flags], capture_output=True, text=True, timeout=60)
    return r.returncode, r.stderr.strip()


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_cuda_without_a_device_says_so_and_what_to_do():
    code, text = refused("--device", "cuda")
    assert code == 1
    assert "CUDA" in text and "--device cpu" in text and "\n" not in text


def auto_lines(tmp_path, **env):
    """What --device auto logs from `warning` on, up to the refusal of a model that is not there."""
    r = subprocess.run([BIN, "serve", str(tmp_path / "nothing.gguf"), "--port", "0", "--device", "auto", "--log-level", "warn"],
                       capture_output=True, text=True, timeout=60, env=os.environ | env)
    assert r.returncode != 0
    return [line for line in r.stderr.splitlines() if "nothing.gguf" not in line]


@pytest.mark.skipif(HAS_GPU or has_driver_library(), reason="there is a GPU, or its driver")
def test_auto_is_quiet_on_a_machine_without_a_gpu(tmp_path):
    assert auto_lines(tmp_path) == []


@pytest.mark.skipif(HAS_GPU or shutil.which("cc") is None, reason="there is a GPU, or no compiler")
def test_auto_warns_where_a_driver_is_installed_and_says_why(tmp_path):
    (tmp_path / "empty.c").write_text("")
    subprocess.run(["cc", "-shared", "-o", tmp_path / "libcuda.so.1", tmp_path / "empty.c"], check=True)
    lines = auto_lines(tmp_path, LD_LIBRARY_PATH=str(tmp_path))
    assert len(lines) == 1 and "warn" in lines[0], lines
    assert all(part in lines[0] for part in ["--device auto", "running on the CPU", "libcuda.so.1", "CUDA"]), lines


@pytest.mark.skipif(not HAS_GPU, reason="there is no GPU")
@pytest.mark.parametrize(
    "model, flags, overrides, names",
    [
        ("sarvam-30b", ["--max-num-batched-tokens", "131072"], {}, ["--max-num-batched-tokens is 131072", "65536"]),
        ("sarvam-105b", ["--max-num-batched-tokens", "65536"], {}, ["--max-num-batched-tokens is 65536", "65535"]),
        ("sarvam-105b", ["--max-num-seqs", "65536"], {}, ["--max-num-seqs is 65536", "65535"]),
        ("sarvam-30b", ["--max-num-seqs", "65536"], {}, ["--max-num-seqs 65536", "--max-model-len 131072", "cannot take"]),
        ("sarvam-30b", ["--max-model-len", "200000"], {}, ["--max-model-len is 200000", "131072"]),
        ("sarvam-30b", ["--max-model-len", "1000000000"], {}, ["--max-model-len is 1000000000", "131072"]),
        ("sarvam-30b", [], {"num_experts": 512}, ["num_experts is 512", "256"]),
        ("sarvam-30b", [], {"num_experts_per_tok": 20}, ["num_experts_per_tok is 20", "16"]),
        ("sarvam-30b", [], {"n_group": 64, "topk_group": 32}, ["n_group is 64", "32"]),
        ("sarvam-30b", [], {"vocab_size": 600000}, ["vocab_size is 600000", "524288"]),
        ("sarvam-30b", [], {"hidden_size": 16448, "num_hidden_layers": 1}, ["hidden_size is 16448", "16384"]),
        ("sarvam-30b", [], {"partial_rotary_factor": 0.375}, ["rotary_dim 24", "multiples of 16"]),
        ("sarvam-105b", [], {"partial_rotary_factor": 0.5}, ["rotary_dim 32", "qk_rope_head_dim 64"]),
        ("sarvam-105b", [], {"v_head_dim": 512}, ["v_head_dim 512", "16384"]),
    ],
)
def test_what_no_kernel_takes_is_refused_before_anything_is_loaded(model, flags, overrides, names):
    r = subprocess.run([BIN, "serve", model, "--load-format", "dummy", "--quantization", "fp8", "--device", "cuda", "--port", "0",
                        "--log-level", "off", "--hf-overrides", json.dumps(overrides), *flags],
                       capture_output=True, text=True, timeout=120)
    assert r.returncode == 1, r.stderr
    assert all(name in r.stderr for name in names), r.stderr


@pytest.mark.parametrize(
    "flags, names",
    [
        (["--device", "tpu"], ["--device", "tpu", "cuda"]),
        (["--device", "cpu", "--quantization", "fp8"], ["--quantization fp8", "--device cuda"]),
        (["--device", "cpu", "--kv-cache-dtype", "fp8"], ["--kv-cache-dtype", "fp8"]),
        (["--device", "cpu", "--backend", "cuda"], ["--backend", "cuda"]),
        (["--device", "cpu", "--quantization-ignore", "lm_head"], ["--quantization-ignore", "--quantization"]),
        (["--device", "cpu", "--quantization", "none", "--quantization-ignore", "*"], ["--quantization-ignore needs"]),
        (["--device", "cpu", "--quantization", "q8_0", "--quantization-ignore", "blk.*", "--quantization-ignore", "blk.*.attnq"],
         ["--quantization-ignore 'blk.*.attnq'", "matches no weight matrix"]),
    ],
)
def test_flags_of_another_device_are_named(flags, names):
    code, text = refused(*flags)
    assert code == 1
    assert all(name in text for name in names), text


def test_patterns_may_stand_in_a_config_file(tmp_path):
    config = tmp_path / "serve.yaml"
    config.write_text("device: cpu\nquantization: q8_0\nquantization-ignore: ['blk.0.*', 'blk.*.nothing']\n")
    code, text = refused("--config", str(config))
    assert code == 1
    assert "'blk.*.nothing' matches no weight matrix" in text, text


@pytest.mark.parametrize("command", ["chat", "eval"])
def test_other_commands_name_the_pattern_too(command, tmp_path):
    text_file = tmp_path / "text.txt"
    text_file.write_text("A short text of a few words.")
    flags = {"chat": [], "eval": ["--text", str(text_file)]}[command]
    r = subprocess.run([BIN, command, MODEL, *flags, "--quantization", "q8_0", "--quantization-ignore", "lm_hed"],
                       capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert r.returncode != 0
    assert "--quantization-ignore 'lm_hed' matches no weight matrix" in r.stderr, r.stderr


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
@pytest.mark.parametrize("command", [["bench", "kernels"], ["bench", "steps", "--load-format", "dummy"], ["profile"], ["profile", "--decode", "0", "--prompts", "64"]])
def test_gpu_commands_refuse_without_one(command):
    r = subprocess.run([BIN, *command], capture_output=True, text=True, timeout=60)
    assert r.returncode != 0
    assert "CUDA" in r.stderr, r.stderr


def test_a_profile_of_nothing_is_refused():
    r = subprocess.run([BIN, "profile", "--decode", "0"], capture_output=True, text=True, timeout=60)
    assert r.returncode == 2
    assert "--decode 0" in r.stderr, r.stderr
