"""`vayu eval` as a user runs it: perplexity, one configuration against another, expert load, and what it says of bad input."""
import json
import math
import pathlib
import shutil
import subprocess
import xml.etree.ElementTree

import pytest

from conftest import BIN, MODEL

CONFIGS = pathlib.Path(__file__).resolve().parents[1] / "golden/oracle/configs"
ENGLISH = """The river rises in the hills above the village and runs south through fields of rice and mustard. In spring
the snow melts and the water is cold and fast; by the end of summer a child can walk across it. People have lived here
for a very long time. They built the first bridge of wood, and when it was carried away by a flood they built another
of stone, which still stands. On market days the road over the bridge is full of carts, and the sound of bells can be
heard from the temple on the far bank. """ * 2


def run(*args):
    done = subprocess.run([BIN, "eval", *map(str, args)], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def figures(*args):
    code, out, err = run(*args, "--json", "-")
    assert code == 0, err
    assert err == ""  # the bar is for terminals
    return json.loads(out)


@pytest.fixture(scope="module")
def english(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "english.txt"
    path.write_text(ENGLISH)
    return path


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moe")
    shutil.copy(CONFIGS / "sarvam_moe_base.json", folder / "config.json")
    return folder


needs_model = pytest.mark.skipif(not MODEL, reason="VAYU_TEST_MODEL is not set")


@needs_model
def test_perplexity_does_not_depend_on_batches(english):
    flags = [MODEL, "--text", english, "--window", 64, "--stride", 32]
    whole = figures(*flags)["total"]
    assert 2 < whole["perplexity"] < 40
    assert whole["perplexity"] == pytest.approx(math.exp(whole["nll_nats"] / whole["tokens"]))
    assert whole["bits_per_byte"] == pytest.approx(whole["nll_nats"] / math.log(2) / whole["bytes"])
    assert len(ENGLISH.encode()) - 10 < whole["bytes"] < len(ENGLISH.encode())
    for tokens in (17, 100):
        cut = figures(*flags, "--max-num-batched-tokens", tokens)["total"]
        assert cut["tokens"] == whole["tokens"]
        assert cut["perplexity"] == pytest.approx(whole["perplexity"], rel=1e-5)
    longer = figures(MODEL, "--text", english, "--window", 512, "--stride", 256)["total"]
    assert longer["tokens"] == whole["tokens"]
    assert longer["perplexity"] < whole["perplexity"]  # more context, and the text repeats itself


@needs_model
def test_against_itself_and_against_its_quantised_self(english):
    flags = [MODEL, "--text", english, "--window", 128, "--stride", 64, "--max-tokens", 200]
    same = figures(*flags, "--against", MODEL)["total"]
    assert same["top1_agreement"] == 1
    assert same["kl_mean_nats"] == same["kl_p99_nats"] == 0
    assert same["reference_perplexity"] == same["perplexity"]
    code, table, err = run(*flags, "--quantization", "q4_0", "--against", MODEL)
    assert code == 0, err
    assert "top-1 agreement" in table and "q4_0" in table
    result = figures(*flags, "--quantization", "q4_0", "--against-kv-cache-dtype", "f32")
    coarse = result["total"]
    assert 0.5 < coarse["top1_agreement"] < 1
    assert 0 < coarse["kl_mean_nats"] < coarse["kl_p99_nats"] < 2
    assert coarse["reference_perplexity"] == pytest.approx(same["perplexity"], rel=0.01)
    assert result["model"]["quantization"] == "q4_0" and result["against"]["quantization"] is None
    assert result["against"]["kv_cache_dtype"] == "f32" and result["against"]["path"] == MODEL


@needs_model
def test_ignored_tensors_keep_their_precision(english):
    flags = [MODEL, "--text", english, "--window", 128, "--stride", 64, "--max-tokens", 200, "--quantization", "q4_0"]
    coarse = figures(*flags, "--against", MODEL)["total"]
    finer = figures(*flags, "--quantization-ignore", "blk.*.ffn_*", "--against", MODEL)["total"]
    same = figures(*flags, "--quantization-ignore", "*", "--against", MODEL)
    assert same["total"]["kl_mean_nats"] == 0 < finer["kl_mean_nats"] < coarse["kl_mean_nats"]
    assert same["model"]["quantization_ignore"] == ["*"] and same["against"]["quantization_ignore"] == []


def test_expert_load_and_plot(moe, english, tmp_path):
    plot = tmp_path / "load.svg"
    short = tmp_path / "short.txt"
    short.write_text("A second text.")
    result = figures(moe, "--load-format", "dummy", "--text", english, "--text", short, "--window", 128, "--stride", 64,
                     "--plot", plot)
    assert [t["path"] for t in result["texts"]] == [str(english), str(short)]
    tokens = result["total"]["tokens"]
    assert tokens == len(ENGLISH) - 1 + len("A second text.") - 1  # the placeholder tokenizer: a byte is a token
    assert result["total"]["bytes"] == tokens
    assert result["total"]["perplexity"] > 100  # random weights
    assert [load["layer"] for load in result["expert_load"]] == [1, 2, 3]  # the first layer is dense
    for load in result["expert_load"]:
        assert len(load["share"]) == 32
        assert sum(load["share"]) == pytest.approx(1)
        assert load["choices"] == tokens * 6
        assert load["max_over_uniform"] == pytest.approx(32 * max(load["share"]))
        assert load["never_chosen"] == [e for e, share in enumerate(load["share"]) if share == 0]
        assert 0 < load["gini"] < 1
    svg = xml.etree.ElementTree.parse(plot).getroot()
    assert len(svg.findall(".//{*}rect[@class='bar']")) == 3  # two texts and both together


def test_expert_load_does_not_depend_on_windows(moe, english):
    flags = [moe, "--load-format", "dummy", "--text", english, "--max-tokens", 300]
    for windows in (["--window", 300, "--stride", 299], ["--window", 100, "--stride", 10]):
        assert [load["choices"] for load in figures(*flags, *windows)["expert_load"]] == [299 * 6] * 3


def test_bad_input_is_named(moe, english, tmp_path):
    dummy = [moe, "--load-format", "dummy"]
    empty, single = tmp_path / "empty.txt", tmp_path / "single.txt"
    empty.write_text("")
    single.write_text("x")
    other = tmp_path / "other"
    other.mkdir()
    config = json.loads((CONFIGS / "sarvam_moe_base.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "vocab_size": 512}))
    cases = [
        (dummy, ["--text", "required"], 2),
        ([*dummy, "--text", tmp_path / "none.txt"], ["none.txt", "cannot be read"], 1),
        ([*dummy, "--text", tmp_path], ["is a folder"], 1),
        ([*dummy, "--text", empty], ["empty.txt", "is empty"], 2),
        ([*dummy, "--text", single], ["single.txt", "1 token"], 2),
        ([*dummy, "--text", english, "--window", 4097], ["--window 4097", "4096 tokens"], 2),
        ([*dummy, "--text", english, "--window", 64, "--stride", 64], ["--stride 64", "--window of 64"], 2),
        ([*dummy, "--text", english, "--against", other, "--against-load-format", "dummy"], ["512", "1024"], 2),
        ([*dummy, "--text", english, "--json", tmp_path / "no/such.json"], ["such.json", "no folder"], 1),
        ([*dummy, "--text", english, "--backend", "gpu"], ["--backend"], 2),
        ([*dummy, "--text", english, "--against-dtype", "int3"], ["--against", "int3"], 2),
    ]
    for args, words, expected in cases:
        code, out, err = run(*args)
        assert code == expected, (args, err)
        assert out == ""
        assert all(word in err for word in words), (args, err)
