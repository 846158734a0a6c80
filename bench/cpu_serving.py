#!/usr/bin/env python3
"""Serving figures of the CPU backend: batching gain, prefix cache, memory, start-up.

    bench/cpu_serving.py [--rounds N]
"""
import argparse
import os
import random
import time

from common import MODEL, median, parallel, stream, vayu_server, write_result

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=5)
args = parser.parse_args()
rng = random.Random(2)


def prompt(length):
    return [rng.randrange(300, 40000) for _ in range(length)]


speedups, ratios, starts, single, eight = [], [], [], [], []
POOL_TOKENS = 16384
for _ in range(args.rounds):
    with vayu_server(8093, "--max-total-tokens", str(POOL_TOKENS)) as server:  # the file is in the page cache
        stream(server.url, prompt(16), 1)
        starts.append(time.perf_counter() - server.started)
        stream(server.url, prompt(64), 32)
        _, one = parallel([lambda: stream(server.url, prompt(32), 128)])
        _, all8 = parallel([lambda p=prompt(32): stream(server.url, p, 128) for _ in range(8)])
        single.append(128 / one)
        eight.append(8 * 128 / all8)
        speedups.append(eight[-1] / single[-1])
        shared = prompt(1000)
        cold = stream(server.url, shared + prompt(24), 1)[0]
        warm = stream(server.url, shared + prompt(24), 1)[0]
        ratios.append(warm / cold)
        # Fill the whole pool so that its memory is resident, then read what the process holds.
        for _ in range(POOL_TOKENS // 2048):
            stream(server.url, prompt(2048), 1)
        rss = server.memory_mb()
kv_mb = POOL_TOKENS * 30 * 2 * 3 * 64 * 2 / 2**20  # layers, K and V, kv heads, head_dim, bytes
model_mb = os.path.getsize(MODEL) / 2**20
write_result("cpu_serving", {
    "streams8_speedup": median(speedups), "prefix_ttft_ratio": median(ratios), "rss_over_model_mb": rss - model_mb - kv_mb,
    "start_to_first_token_s": median(starts), "one_stream_tok_s": median(single), "eight_streams_tok_s": median(eight),
    "rss_mb": rss, "kv_pool_mb": kv_mb, "model_file_mb": model_mb},
    f"median of {args.rounds} fresh servers; rss_over_model_mb = resident - model file - full KV pool; shared prefix 1,000 tokens")
