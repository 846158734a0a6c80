#!/usr/bin/env python3
"""Writes goldens/<variant>.safetensors from the fp32 oracle. Usage: make_oracle_goldens.py [variant ...]

README.md lists the tensors. Prompts are searched, not fixed: a prompt grows token by token (a token's routing depends
on what precedes it only), and a candidate is taken once its margin in every MoE layer is large enough.
"""
import json
import os
import random
import sys

import numpy as np
import torch

from golden_file import write_golden
from oracle import Oracle

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = 1234
PROMPT_TOKENS, PROMPT_MARGIN = 40, 1e-3   # fp32 engines agree from 1e-4 on; ten times that is easy to find
LOGIT_POSITIONS = (0, 1, 7, 19, 31, 39)
BF16_TOKENS, BF16_MARGIN = 10, 0.03       # bf16 flips experts at margins up to about 0.03
BF16_LOGIT_POSITIONS = (4, 9)
LEAST_MARGIN, LEAST_BF16_MARGIN = 1e-4, 0.01
TRIES = 200
OVERRIDES = {"sarvam_mla_override": (8, 4)}


def load_config(variant):
    with open(os.path.join(HERE, "configs", variant + ".json")) as file:
        return json.load(file)


def make_oracle(variant, **options):
    n_group, topk_group = OVERRIDES.get(variant, (None, None))
    return Oracle(load_config(variant), seed=SEED, n_group=n_group, topk_group=topk_group, **options)


def find_prompt(oracle, length, wanted_margin, rng):
    """Token ids whose least margin reaches wanted_margin, or comes as close as TRIES candidates a token allow."""
    tokens, cache = [], None
    for _ in range(length):
        best_margin, best = -1.0, None
        for _ in range(TRIES):
            candidate = rng.randrange(2, oracle.config["vocab_size"])
            out = oracle.forward([candidate], cache=cache)
            margin = min((float(m.min()) for m in out.margins), default=float("inf"))
            if margin > best_margin:
                best_margin, best = margin, (candidate, out.cache)
            if best_margin >= wanted_margin:
                break
        tokens.append(best[0])
        cache = best[1]
    return tokens


def golden_tensors(oracle, tokens, positions, suffix):
    """({name: array}, least margin)"""
    out = oracle.forward(tokens)
    tensors = {"tokens" + suffix: np.array(tokens), "logit_positions" + suffix: np.array(positions),
               "logits" + suffix: out.logits[list(positions)].numpy()}
    if not out.experts:
        return tensors, float("inf")
    margins = torch.stack(out.margins)
    tensors["experts" + suffix] = torch.stack(out.experts).numpy()
    tensors["margins" + suffix] = margins.numpy()
    return tensors, float(margins.min())


def make_golden(variant):
    oracle = make_oracle(variant)
    rng = random.Random(oracle.family)  # variants that compute the same thing then get the same golden
    tokens = find_prompt(oracle, PROMPT_TOKENS, PROMPT_MARGIN, rng)
    tokens_bf16 = find_prompt(oracle, BF16_TOKENS, BF16_MARGIN, rng)
    tensors, margin = golden_tensors(oracle, tokens, LOGIT_POSITIONS, "")
    tensors_bf16, margin_bf16 = golden_tensors(oracle, tokens_bf16, BF16_LOGIT_POSITIONS, "_bf16")
    assert margin >= LEAST_MARGIN and margin_bf16 >= LEAST_BF16_MARGIN, (variant, margin, margin_bf16)
    tensors.update(tensors_bf16)
    metadata = {"variant": variant, "config": f"configs/{variant}.json", "seed": SEED, "source": "oracle.py, float32"}
    if variant in OVERRIDES:
        metadata["override_n_group"], metadata["override_topk_group"] = OVERRIDES[variant]
    path = os.path.join(HERE, "goldens", variant + ".safetensors")
    write_golden(path, tensors, metadata)
    exact = make_oracle(variant, dtype=torch.float64).forward(tokens).logits[list(LOGIT_POSITIONS)].numpy()
    error = np.abs(tensors["logits"] - exact).max() / np.abs(exact).max()
    print(f"{variant:26s} {os.path.getsize(path):6d} bytes  margin {margin:.5f}  bf16 margin {margin_bf16:.4f}  "
          f"fp32 against fp64 {error:.1e}", flush=True)


def main():
    os.makedirs(os.path.join(HERE, "goldens"), exist_ok=True)
    variants = sys.argv[1:] or sorted(name[:-5] for name in os.listdir(os.path.join(HERE, "configs")))
    for variant in variants:
        make_golden(variant)


if __name__ == "__main__":
    main()
