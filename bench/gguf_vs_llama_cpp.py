#!/usr/bin/env python3
"""The GGUF that `vayu convert` writes, in llama.cpp and in Vayu: greedy ids must be equal.

    bench/gguf_vs_llama_cpp.py --llama-cpp DIR [--tokens 48]

DIR holds the unpacked llama-cpp-python source package with its shared libraries built (tools/build_llama_cpp.sh; the package is
imported from there, its pure-Python dependencies from the running interpreter). Two models: a tiny random sarvam_moe of
tests/golden/oracle without a vocabulary, and tests/data/sarvam-tiny, whose vocabulary goes along, so that token ids of text are
compared too. fp32 weights and KV on both sides. Exit status 1 when an id differs.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

import common

TEXTS = ["फ़ाइल को खोलने में", "கோப்பை திறக்க", "Could not open the", "ফাইলটি খোলা", "ఈ ఫైలును", "ही फाइल उघडण्यासाठी"]
IDS = [[5, 17, 230, 411, 999, 3], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [1000, 500, 250, 125], [7] * 20]


def convert(source, out, *flags):
    subprocess.run([common.VAYU, "convert", str(source), str(out), "--dtype", "float32", *flags], check=True)


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.loads(urllib.request.urlopen(request, timeout=120).read())


def vayu_ids(gguf, prompts, count):
    """(prompt ids, greedy ids) of each prompt, text or ids."""
    command = [common.VAYU, "serve", str(gguf), "--port", "8221", "--kv-cache-dtype", "f32"]
    out = []
    with common.Server(command, 8221, "/ready") as server:
        for prompt in prompts:
            ids = prompt if isinstance(prompt, list) else post(server.url + "/tokenize", {"prompt": prompt})["tokens"]
            body = {"prompt": ids, "max_tokens": count, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
            out.append((ids, post(server.url + "/v1/completions", body)["choices"][0]["token_ids"]))
    return out


def llama_cpp_ids(gguf, prompts, count):
    import llama_cpp
    import numpy as np

    model = llama_cpp.Llama(str(gguf), n_ctx=512, n_threads=2, verbose=False, type_k=0, type_v=0)
    out = []
    for prompt in prompts:
        ids = prompt if isinstance(prompt, list) else model.tokenize(prompt.encode(), add_bos=False, special=False)
        model.reset()
        model.eval(ids)
        greedy = []
        for _ in range(count):
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(model._ctx.ctx), shape=(model.n_vocab(),))
            greedy.append(int(logits.argmax()))
            model.eval(greedy[-1:])
        out.append((list(ids), greedy))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", required=True)
    parser.add_argument("--tokens", type=int, default=48)
    args = parser.parse_args()
    package = next(pathlib.Path(args.llama_cpp).glob("**/llama_cpp/__init__.py")).parent.parent
    libraries = next(pathlib.Path(args.llama_cpp).glob("**/libllama.so")).parent
    os.environ["LLAMA_CPP_LIB_PATH"] = str(libraries)
    sys.path.insert(0, str(package))
    metrics = {}
    with tempfile.TemporaryDirectory(prefix="vayu_gguf_") as work:
        work = pathlib.Path(work)
        (work / "random").mkdir()
        config = common.ROOT / "tests/golden/oracle/configs/sarvam_moe_base.json"
        (work / "random/config.json").write_text(config.read_text())
        convert(work / "random", work / "random.gguf", "--load-format", "dummy", "--dummy-seed", "1234")
        convert(common.ROOT / "tests/data/sarvam-tiny", work / "sarvam-tiny.gguf")
        for name, prompts in (("random", IDS), ("sarvam-tiny", TEXTS)):
            ours = vayu_ids(work / f"{name}.gguf", prompts, args.tokens)
            theirs = llama_cpp_ids(work / f"{name}.gguf", prompts, args.tokens)
            key = name.replace("-", "_")
            metrics[f"{key}_prompts"] = len(prompts)
            metrics[f"{key}_prompt_ids_equal"] = sum(a[0] == b[0] for a, b in zip(ours, theirs))
            metrics[f"{key}_greedy_equal"] = sum(a[1] == b[1] for a, b in zip(ours, theirs))
            for prompt, a, b in zip(prompts, ours, theirs):
                if a != b:
                    print(f"{name}: {prompt!r}\n  vayu      {a}\n  llama.cpp {b}")
    metrics["greedy_tokens"] = args.tokens
    common.write_result("gguf_vs_llama_cpp", metrics, "fp32 weights and KV on both sides")
    equal = all(metrics[f"{k}_greedy_equal"] == metrics[f"{k}_prompts"] for k in ("random", "sarvam_tiny"))
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
