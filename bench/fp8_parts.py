#!/usr/bin/env python3
"""Which linears of a model may be FP8: perplexity and divergence from BF16 with some of them as stored (--quantization-ignore), on a GPU.
Without --keep the choices of SmolLM2 in docs/decisions/0009-fp8-accuracy.md. Writes bench/results/h200_fp8_parts.json.

    bench/fp8_parts.py [--vayu FILE] [--model FILE] [--text FILE] [--out FILE] [--keep 'NAME=PATTERN PATTERN ...' ...]

To try it without a GPU: --backend cpu --quantization q8_0
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

import common

LAST_5 = [f"blk.{i}.*" for i in range(25, 30)]
ATTENTION = ["blk.*.attn_*"]


def down(layers):
    return [f"blk.{i}.ffn_down" for i in range(layers)]


CHOICES = {"nothing": [], "last_5": LAST_5, "attention": ATTENTION, "attention_last_5": ATTENTION + LAST_5,
           "attention_last_5_down_5": ATTENTION + LAST_5 + down(5), "attention_last_5_down_10": ATTENTION + LAST_5 + down(10),
           "attention_last_5_down": ATTENTION + LAST_5 + ["blk.*.ffn_down"], "attention_down": ATTENTION + ["blk.*.ffn_down"]}


def evaluate(options, patterns):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        ignored = [word for pattern in patterns for word in ("--quantization-ignore", pattern)]
        subprocess.run([options.vayu, "eval", options.model, "--backend", options.backend, "--quantization", options.quantization, *ignored,
                        "--against", options.model, "--against-backend", options.backend, "--against-dtype", "bfloat16",
                        "--text", options.text, "--json", out.name], check=True, stdout=subprocess.DEVNULL)
        return json.load(open(out.name))["total"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vayu", default=common.VAYU)
    parser.add_argument("--model", default=common.MODEL)
    parser.add_argument("--text", default=str(common.ROOT / "tests/data/sarvam-tiny/heldout/en.txt"))
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--quantization", default="fp8")
    parser.add_argument("--keep", action="append", default=[], help="NAME=PATTERN PATTERN ...: what stays as stored")
    parser.add_argument("--out", help="file in place of bench/results/h200_fp8_parts.json")
    options = parser.parse_args()
    choices = {name: patterns.split() for name, patterns in (keep.split("=", 1) for keep in options.keep)} or CHOICES
    metrics = {}
    for name, patterns in choices.items():
        total = evaluate(options, patterns)
        metrics |= {f"{name}_percent": 100 * (total["perplexity"] / total["reference_perplexity"] - 1),
                    f"{name}_kl_millinats": 1e3 * total["kl_mean_nats"], f"{name}_top1_agreement": total["top1_agreement"],
                    "text_tokens": total["tokens"]}
        print(f"{name}: {metrics[f'{name}_percent']:+.3f} %, divergence {metrics[f'{name}_kl_millinats']:.2f}e-3 nats", flush=True)
    common.write_result("h200_fp8_parts", metrics, f"{pathlib.Path(options.model).stem}: perplexity against BF16 with --quantization "
                        f"{options.quantization}; names: what stays as stored", hardware=common.gpu_hardware() if options.backend == "cuda" else None, path=options.out)


if __name__ == "__main__":
    main()
