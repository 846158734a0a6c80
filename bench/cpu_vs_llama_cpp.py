#!/usr/bin/env python3
"""Vayu against llama.cpp on the same file and machine, 2 threads each, in turn over several rounds (medians of the rounds).

    bench/cpu_vs_llama_cpp.py [--llama-server PATH] [--rounds N]

Both servers get the same token-id prompts over HTTP from the same client. Prefill: time to the first token of a 512-token
prompt that no cache holds. Decode: gaps between the tokens of one stream. Concurrent: output tokens/s of 8 streams at once.
llama-server is built by tools/build_llama_cpp.sh when no path is given.
"""
import argparse
import random
import subprocess

from common import MODEL, ROOT, Server, median, parallel, stream, vayu_server, write_result

parser = argparse.ArgumentParser()
parser.add_argument("--llama-server")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--name", default="cpu_vs_llama_cpp", help="of the result file, when another build is compared (VAYU_BIN)")
args = parser.parse_args()
llama = args.llama_server or subprocess.run([ROOT / "tools/build_llama_cpp.sh"], check=True, capture_output=True,
                                            text=True).stdout.split()[-1]
rng = random.Random(1)


def prompt(length):
    return [rng.randrange(300, 40000) for _ in range(length)]


def measure(url, extra):
    prefill = min(stream(url, prompt(512), 1, extra)[0] for _ in range(3))
    times = stream(url, prompt(32), 129, extra)
    decode = (times[-1] - times[0]) / (len(times) - 1)
    results, seconds = parallel([lambda p=prompt(64): stream(url, p, 96, extra) for _ in range(8)])
    assert all(len(r) >= 95 for r in results), [len(r) for r in results]
    return {"prefill_tok_s": 512 / prefill, "decode_tok_s": 1 / decode, "concurrent8_tok_s": 8 * 96 / seconds}


rounds = {"vayu": [], "llama_cpp": []}
llama_command = [llama, "-m", MODEL, "--port", "8092", "-t", "2", "-tb", "2", "-np", "8", "-c", "8192", "-b", "2048", "-ub", "512",
                 "--no-webui"]
# Both run all the time and idle while the other is measured: neither burns a core when idle.
with vayu_server(8091) as ours, Server(llama_command, 8092, "/health") as theirs:
    for name, server, extra in (("vayu", ours, {}), ("llama_cpp", theirs, {"cache_prompt": False})):
        stream(server.url, prompt(128), 16, extra)  # warm-up
    for _ in range(args.rounds):
        rounds["vayu"].append(measure(ours.url, {}))
        rounds["llama_cpp"].append(measure(theirs.url, {"cache_prompt": False}))
        print({n: {k: round(v, 1) for k, v in r[-1].items()} for n, r in rounds.items()}, flush=True)

metrics = {}
for key in ("prefill", "decode", "concurrent8"):
    pairs = [a[key + "_tok_s"] / b[key + "_tok_s"] for a, b in zip(rounds["vayu"], rounds["llama_cpp"])]
    metrics[key + "_ratio"] = median(pairs)
    metrics["vayu_" + key + "_tok_s"] = median([a[key + "_tok_s"] for a in rounds["vayu"]])
    metrics["llama_cpp_" + key + "_tok_s"] = median([b[key + "_tok_s"] for b in rounds["llama_cpp"]])
write_result(args.name, metrics,
             f"median of {args.rounds} rounds, servers in turn; SmolLM2-135M Q4_1; llama.cpp from llama-cpp-python 0.3.36, "
             "GGML_NATIVE, -t 2 -np 8; ratios are round by round, Vayu over llama.cpp")
