"""Flags that choose where a model runs, and what is said when it cannot run there."""
import shutil
import subprocess

import pytest
from conftest import BIN, MODEL

HAS_GPU = shutil.which("nvidia-smi") is not None


def refused(*flags):
    """The one line a refused start leaves, and its exit code."""
    r = subprocess.run([BIN, "serve", MODEL, "--port", "0", "--log-level", "off", *flags], capture_output=True, text=True, timeout=60)
    return r.returncode, r.stderr.strip()


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_cuda_without_a_device_says_so_and_what_to_do():
    code, text = refused("--device", "cuda")
    assert code == 1
    assert "CUDA" in text and "--device cpu" in text and "\n" not in text


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
