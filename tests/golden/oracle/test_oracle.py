#!/usr/bin/env python3
"""Checks of the oracle against the numbers of the architecture description and the known traps. Usage: test_oracle.py

Every check prints one line; the exit status is 1 if any failed. About half a minute on two cores.
"""
import math
import os
import sys

import numpy as np
import torch

import oracle as o
from golden_file import read_golden
from make_oracle_goldens import HERE, load_config, make_oracle
from tiny_weights import make_weights, seeded_values, tensor_specs

TOKENS = [17, 803, 5, 99, 512, 7, 640, 333, 2, 901, 45, 78]
FAILED = []


def check(name, passed, detail=""):
    print(f"{'ok  ' if passed else 'FAIL'}  {name}  {detail}", flush=True)
    if not passed:
        FAILED.append(name)


def difference(a, b):
    """Largest absolute difference over the largest magnitude."""
    return float((a - b).abs().max() / b.abs().max())


def same_experts(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.experts, b.experts))


def check_weights():
    for variant, tensors, parameters in (("sarvam_moe_base", 333, 24761440), ("sarvam_mla_flat", 337, 45077600),
                                         ("sarvam_mla_kernel_shape", 229, 33035328)):
        specs = tensor_specs(load_config(variant))
        check(f"{variant}: {tensors} tensors, {parameters} parameters",
              (len(specs), sum(int(np.prod(s.shape)) for s in specs)) == (tensors, parameters))
    values = seeded_values("model.norm.weight", 200000, 1.0, 0.3, 1234)
    check("seeded values: mean 1, deviation 0.3", abs(values.mean() - 1) < 3e-3 and abs(values.std() - 0.3) < 3e-3)
    check("seeded values: a prefix does not depend on the count",
          np.array_equal(values[:7], seeded_values("model.norm.weight", 7, 1.0, 0.3, 1234)), str(values[:3]))


def check_rope():
    config = dict(load_config("sarvam_mla_kernel_shape"), rope_scaling=None)
    inv_freq = o.make_rope(config, 64).inv_freq
    for pair, value in ((10, 5.623413e-2), (11, 3.900693e-2), (16, 5.5e-3), (22, 1.778279e-4), (23, 3.333804e-5),
                        (31, 3.333804e-6)):
        found = float(inv_freq[pair])
        check(f"YaRN inv_freq[{pair}] of the 105B", abs(found / value - 1) < 1e-6, f"{found:.6e}")
    check("YaRN range of the 105B is 10..23", o.yarn_correction_range(64, 1e4, 4096, 32, 1) == (10, 23))
    check("YaRN range of the tiny model is 0..7", o.yarn_correction_range(32, 1e4, 256, 32, 1) == (0, 7))
    for variant, scale in (("sarvam_mla_flat", 0.19124944), ("sarvam_mla_kernel_shape", 0.13523378)):
        found = o.Oracle(load_config(variant), weights={}).softmax_scale
        check(f"softmax scale of {variant}", abs(found - scale) < 1e-8, f"{found:.8f}")
    check("softmax scale of sarvam_moe is 1/8",
          o.Oracle(load_config("sarvam_moe_derived"), weights={}).softmax_scale == 0.125)
    mscale = o.make_rope(load_config("sarvam_mla_mscale"), 32)
    expected = (0.05 * math.log(40) + 1) / (0.08 * math.log(40) + 1)
    check("cos and sin carry mscale / mscale_all_dim", abs(mscale.multiplier - expected) < 1e-12, f"{expected:.6f}")
    narrow = dict(load_config("sarvam_mla_flat"), rope_scaling={
        "type": "yarn", "factor": 4, "original_max_position_embeddings": 8, "beta_fast": 32, "beta_slow": 32})
    check("a YaRN ramp of no width stays finite", bool(torch.isfinite(o.make_rope(narrow, 32).inv_freq).all()))


def check_router():
    logits = torch.tensor([[2, -3, 1, 0.9, -0.2, -0.3, 1.5, -2.5]])
    bias = torch.tensor([0, -0.6, 0, 0, 0.1, 0.1, -0.05, -0.4])
    flat = o.route_sigmoid(logits, bias, 3, 1, 1, 2.5, True)
    check("router vector, flat", flat.ids.tolist() == [[0, 6, 2]] and
          difference(flat.weights, torch.tensor([[0.906382, 0.841323, 0.752294]])) < 1e-5, str(flat.weights.tolist()))
    grouped = o.route_sigmoid(logits, bias, 3, 4, 2, 2.5, True)
    check("router vector, group scores", difference(o.group_scores(torch.sigmoid(logits) + bias, 4), torch.tensor(
        [[0.328223, 1.442008, 1.075723, 0.443433]])) < 1e-5)
    order = grouped.ids[0].argsort()
    check("router vector, grouped", sorted(grouped.ids[0].tolist()) == [2, 3, 4] and
          difference(grouped.weights[0][order], torch.tensor([0.965898, 0.939329, 0.594774])) < 1e-5)
    scores = torch.tensor([[0.95, -0.55, 0.30, 0.02, 0.05, 0.04, 0.20, -0.40]])
    check("mask vector, grouped: -inf", o.select_experts(scores, 4, 4, 2)[0].tolist() == [[0, 2, 3, 1]])
    check("mask vector, flat", o.select_experts(scores, 4)[0].tolist() == [[0, 2, 6, 4]])
    check("equal scores: lowest index", o.select_experts(torch.zeros(1, 8), 3)[0].tolist() == [[0, 1, 2]])


def check_qkv_blocks():
    config = load_config("sarvam_moe_base")
    rows = torch.arange((8 + 2 * 2) * 64.0)
    q, k, v = o.split_qkv(rows[None], config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"])
    check("QKV row blocks: heads 0..7 are Q, 8..9 K, 10..11 V", all(
        [float(block[0, h, 0]) for h in range(block.shape[1])] == [64.0 * (first + h) for h in range(block.shape[1])]
        and torch.equal(block[0, 0], rows[64 * first:64 * first + 64]) for block, first in ((q, 0), (k, 8), (v, 10))))


def check_cache_and_positions(variant):
    model = make_oracle(variant)
    whole = model.forward(TOKENS)
    cache, rows = None, []
    for token in TOKENS:
        out = model.forward([token], cache=cache)
        cache = out.cache
        rows.append(out.logits[0])
    check(f"{variant}: prefill = token by token", difference(torch.stack(rows), whole.logits) < 2e-5)
    head = model.forward(TOKENS[:5])
    tail = model.forward(TOKENS[5:], cache=head.cache)
    check(f"{variant}: prefill = two chunks", difference(torch.cat((head.logits, tail.logits)), whole.logits) < 2e-5)
    exact = make_oracle(variant, dtype=torch.float64)
    base, shifted = (exact.forward(TOKENS, positions=torch.arange(len(TOKENS)) + shift).logits for shift in (0, 777))
    check(f"{variant}: only relative positions matter", difference(shifted, base) < 1e-9)
    swapped = make_oracle(variant, mutations=["swap_pairing"]).forward(TOKENS)
    check(f"{variant}: swapping the RoPE pairing changes the output", difference(swapped.logits, whole.logits) > 1e-2)


def check_bias(variant, bias_name):
    config = load_config(variant)
    weights = make_weights(config, 1234)
    base = o.Oracle(config, weights=weights).forward(TOKENS)
    raised = {n: w + np.float32(0.75) if n.endswith(bias_name) else w for n, w in weights.items()}
    moved = o.Oracle(config, weights=raised).forward(TOKENS)
    check(f"{variant}: bias + constant leaves experts and output", same_experts(moved, base) and
          difference(moved.logits, base.logits) < 1e-5)
    dropped = {n: w * np.float32(0) if n.endswith(bias_name) else w for n, w in weights.items()}
    check(f"{variant}: dropping the bias changes experts",
          not same_experts(o.Oracle(config, weights=dropped).forward(TOKENS), base))
    biased = o.Oracle(config, weights=weights, mutations=["biased_combine"]).forward(TOKENS)
    check(f"{variant}: biased combine weights change the output", difference(biased.logits, base.logits) > 1e-2)


def check_mla():
    base = make_oracle("sarvam_mla_flat").forward(TOKENS)
    for variant in ("sarvam_mla_flat", "sarvam_mla_mscale", "sarvam_mla_kernel_shape"):
        expanded = make_oracle(variant).forward(TOKENS)
        absorbed = make_oracle(variant, absorbed=True).forward(TOKENS)
        check(f"{variant}: absorbed = expanded", same_experts(absorbed, expanded) and
              difference(absorbed.logits, expanded.logits) < 2e-5)
    dropped = make_oracle("sarvam_mla_flat", mutations=["drop_mscale"]).forward(TOKENS)
    check("sarvam_mla: dropping mscale squared changes the output", difference(dropped.logits, base.logits) > 1e-2)
    for variant in ("sarvam_mla_rope_type", "sarvam_mla_explicit_flat"):
        check(f"{variant} = sarvam_mla_flat", torch.equal(make_oracle(variant).forward(TOKENS).logits, base.logits))
    grouped = make_oracle("sarvam_mla_grouped").forward(TOKENS)
    check("sarvam_mla: explicit 4/2 differs from flat", not same_experts(grouped, base))
    forced = o.Oracle(load_config("sarvam_mla_flat"), n_group=4, topk_group=2).forward(TOKENS)
    check("sarvam_mla: override 4/2 = explicit 4/2", torch.equal(forced.logits, grouped.logits))
    override = make_oracle("sarvam_mla_override").forward(TOKENS)
    check("sarvam_mla: override 8/4 differs from 4/2 and flat",
          not same_experts(override, grouped) and not same_experts(override, base))
    widths = dict(load_config("sarvam_mla_flat"), head_dim=64)
    check("sarvam_mla: head_dim is not read", torch.equal(o.Oracle(widths).forward(TOKENS).logits, base.logits))


def check_moe():
    base = make_oracle("sarvam_moe_base").forward(TOKENS)
    derived = make_oracle("sarvam_moe_derived").forward(TOKENS)
    check("sarvam_moe_derived = sarvam_moe_base", torch.equal(derived.logits, base.logits))
    half = o.Oracle(dict(load_config("sarvam_moe_base"), partial_rotary_factor=0.5)).forward(TOKENS)
    check("sarvam_moe: partial_rotary_factor 0.5 differs", difference(half.logits, base.logits) > 1e-2)
    grouped = make_oracle("sarvam_moe_grouped").forward(TOKENS)
    check("sarvam_moe: 4/2 differs from flat", not same_experts(grouped, base))


def check_goldens():
    for file in sorted(f for f in os.listdir(os.path.join(HERE, "goldens")) if f.count(".") == 1):
        tensors, metadata = read_golden(os.path.join(HERE, "goldens", file))
        out = make_oracle(metadata["variant"]).forward(tensors["tokens"].astype(int).tolist())
        logits = out.logits[torch.as_tensor(tensors["logit_positions"]).long()]
        experts = not out.experts or np.array_equal(torch.stack(out.experts).numpy(), tensors["experts"])
        least = min(float(tensors[t].min()) / limit for t, limit in (("margins", 1e-4), ("margins_bf16", 0.01))) \
            if out.experts else 1.0
        check(f"golden {file}",
              experts and least >= 1 and difference(logits, torch.as_tensor(tensors["logits"])) < 1e-5)


def main():
    check_weights()
    check_rope()
    check_router()
    check_qkv_blocks()
    for variant in ("sarvam_moe_base", "sarvam_moe_hidden384", "sarvam_mla_grouped", "qwen3", "qwen3_moe", "llama_yarn",
                    "llama_llama3"):
        check_cache_and_positions(variant)
    check_bias("sarvam_moe_grouped", "expert_bias")
    check_bias("sarvam_mla_flat", "e_score_correction_bias")
    check_mla()
    check_moe()
    check_goldens()
    print(f"{len(FAILED)} failed" if FAILED else "all passed")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
