#!/usr/bin/env python3
"""How far the CPU backend's logits are from transformers in float32, beside llama.cpp's on the same file.

    bench/cpu_accuracy.py [--llama-cpp DIR]

Vayu's figures are those that the golden test prints (build/src/engine/engine_test). With DIR (made by
tools/build_llama_cpp.sh) llama.cpp is measured on the same positions through its Python package (needs numpy,
typing_extensions, diskcache, jinja2). Errors are over 16 logits a position (8 largest, 8 fixed), all positions of 20 prompts and
their 96-token continuations.
"""
import argparse
import glob
import json
import os
import re
import subprocess
import sys

from common import MODEL, ROOT, write_result

parser = argparse.ArgumentParser()
parser.add_argument("--llama-cpp")
args = parser.parse_args()

out = subprocess.run([ROOT / "build/src/engine/engine_test", "--gtest_filter=GoldenTest.CpuLogits*:GoldenTest.Greedy*"],
                     env={**os.environ, "VAYU_TEST_MODEL": MODEL}, capture_output=True, text=True, check=True).stdout
rms, largest = map(float, re.search(r"worst rms ([\d.]+), worst ([\d.]+)", out).groups())
metrics = {"smollm2_logit_rms_worst_prompt": rms, "smollm2_logit_error_max": largest,
           "smollm2_greedy_equal_of_20": int(re.search(r"(\d+) of 20 continuations", out)[1])}

if args.llama_cpp:
    import numpy as np

    os.environ["LLAMA_CPP_LIB_PATH"] = os.path.join(args.llama_cpp, "build/bin")
    sys.path.insert(0, glob.glob(os.path.join(args.llama_cpp, "llama_cpp_python-*"))[0])
    import llama_cpp

    golden = json.load(open(ROOT / "tests/golden/smollm2_greedy.json"))
    raw = np.fromfile(ROOT / "tests/golden/smollm2_logits.bin", dtype=np.uint8)
    llm = llama_cpp.Llama(MODEL, n_ctx=1024, logits_all=True, n_threads=2, n_threads_batch=2, verbose=False)
    at, rms, largest = 0, [], []
    for case in golden["cases"]:
        tokens = case["prompt_ids"] + case["greedy_ids"]
        record = raw[at:at + 80 * len(tokens)].reshape(-1, 80)
        at += record.size
        values, top = record[:, :64].copy().view("<f4"), record[:, 64:].copy().view("<u2").astype(int)
        llm.reset()
        llm.eval(tokens)
        logits = np.array(llm.scores[:len(tokens)])
        error = np.concatenate([np.take_along_axis(logits, top, 1), logits[:, golden["fixed_ids"]]], 1) - values
        rms.append(float(np.sqrt((error**2).mean())))
        largest.append(float(np.abs(error).max()))
    metrics |= {"llama_cpp_logit_rms_worst_prompt": max(rms), "llama_cpp_logit_rms_median_prompt": sorted(rms)[len(rms) // 2],
                "llama_cpp_logit_error_max": max(largest)}
write_result("accuracy", metrics, "SmolLM2-135M Q4_1 against transformers 5.17 in float32 (tests/golden/make_model_goldens.py)")
