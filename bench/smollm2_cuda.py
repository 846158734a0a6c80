#!/usr/bin/env python3
"""SmolLM2 from its GGUF file on the GPU against the CPU, both in BF16: greedy continuations and log-probabilities of the golden
prompts, perplexity and divergence on text, and what FP8 costs. Writes bench/results/h200_smollm2.json; the exit code tells whether
the limits below hold. The CPU multiplies BF16 weights by activations of more bits, the GPU rounds activations to BF16 too.

    bench/smollm2_cuda.py [--vayu FILE] [--model FILE] [--out FILE] [--devices cpu cuda]
"""
import argparse
import concurrent.futures
import json
import math
import subprocess
import sys
import tempfile

import common
import fp8_parts

# A continuation may leave the CPU's only where the CPU itself finds the two tokens this close, in nats.
NEAR_TIE = 0.5
LIMITS = {"logprob_difference_rms": 0.15, "kl_mean_nats": 0.005, "perplexity_difference_percent": 0.5,
          # FP8 costs what its rules cost in plain PyTorch (bench/fp8_reference.py), to a tenth.
          "fp8_kl_off_reference": 0.1,
          # Where a small model must not lose more: 58 % of its linear weights in FP8.
          "fp8_most_perplexity_difference_percent": 0.5}
BF16 = ["--dtype", "bfloat16", "--kv-cache-dtype", "bf16"]
FP8 = {"fp8": ["--quantization", "fp8", "--kv-cache-dtype", "fp8"], "fp8_linears": ["--quantization", "fp8", "--kv-cache-dtype", "bf16"],
       "fp8_pages": ["--dtype", "bfloat16", "--kv-cache-dtype", "fp8"]}
FP8_MOST = ["--quantization", "fp8", *[word for pattern in fp8_parts.CHOICES["attention_last_5_down_5"]
                                       for word in ("--quantization-ignore", pattern)]]


def completion(server, ids, **fields):
    body = {"prompt": ids, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **fields}
    return common.post(server.url + "/v1/completions", body)["choices"][0]


def each(function, items):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(function, items))


def scores(server, ids):
    """Log-probability of every token but the first, given those before it."""
    return completion(server, ids, max_tokens=1, echo=True, logprobs=1)["logprobs"]["token_logprobs"][1:len(ids)]


def compare_greedy(reference, tested, cases):
    """Continuations of both; where they part, how much the reference prefers its own token."""
    def continuations(server):
        return each(lambda case: completion(server, case["prompt_ids"], max_tokens=len(case["greedy_ids"]))["token_ids"], cases)

    ours, theirs = continuations(tested), continuations(reference)
    equal, alike, gaps = 0, 0, []
    for case, got, want in zip(cases, ours, theirs):
        assert len(got) == len(want) == len(case["greedy_ids"]), (len(got), len(want))
        at = next((i for i in range(len(want)) if got[i] != want[i]), len(want))
        alike += at
        if at == len(want):
            equal += 1
            continue
        before = case["prompt_ids"] + want[:at]
        gap = scores(reference, before + [want[at]])[-1] - scores(reference, before + [got[at]])[-1]
        print(f"parts at token {at} of {len(want)}: the reference prefers its own by {gap:.3f} nats")
        gaps.append(gap)
    total = sum(len(want) for want in theirs)
    return {"greedy_equal_to_the_end": equal, "greedy_prompts": len(cases), "greedy_tokens_before_parting_share": alike / total,
            "greedy_largest_gap_nats": max(gaps, default=0.0)}


def compare_scores(reference, tested, cases):
    texts = [case["prompt_ids"] + case["greedy_ids"] for case in cases]
    ours, theirs = each(lambda ids: scores(tested, ids), texts), each(lambda ids: scores(reference, ids), texts)
    errors = [a - b for got, want in zip(ours, theirs) for a, b in zip(got, want, strict=True)]
    return {"logprob_positions": len(errors), "logprob_difference_rms": math.sqrt(sum(e * e for e in errors) / len(errors)),
            "logprob_difference_max": max(map(abs, errors))}


def evaluate(options, evaluated, against, tokens=8000):
    """`vayu eval` of the model against itself on English text."""
    text = str(common.ROOT / "tests/data/sarvam-tiny/heldout/en.txt")
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [options.vayu, "eval", options.model, *evaluated, "--against", options.model,
                   *[flag.replace("--", "--against-", 1) for flag in against], "--text", text, "--max-tokens", str(tokens),
                   "--json", out.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.load(open(out.name))["total"]


def percent(total):
    return 100 * abs(total["perplexity"] / total["reference_perplexity"] - 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vayu", default=common.VAYU)
    parser.add_argument("--model", default=common.MODEL)
    parser.add_argument("--out", help="file in place of bench/results/h200_smollm2.json")
    parser.add_argument("--devices", nargs=2, default=["cpu", "cuda"], help="reference and tested")
    options = parser.parse_args()
    cases = json.loads((common.ROOT / "tests/golden/smollm2_greedy.json").read_text())["cases"]
    on_cpu, on_device = options.devices

    def serve(device, port):
        return common.Server([options.vayu, "serve", options.model, "--device", device, *BF16, "--port", str(port),
                              "--max-model-len", "2048", "--mem-fraction-static", "0.3"], port, "/ready")

    with serve(on_cpu, 8131) as reference, serve(on_device, 8132) as tested:
        metrics = compare_greedy(reference, tested, cases) | compare_scores(reference, tested, cases)
    total = evaluate(options, ["--backend", on_device, *BF16], ["--backend", on_cpu, *BF16])
    metrics |= {"perplexity": total["perplexity"], "perplexity_cpu": total["reference_perplexity"], "text_tokens": total["tokens"],
                "perplexity_difference_percent": percent(total), "kl_mean_nats": total["kl_mean_nats"],
                "top1_agreement": total["top1_agreement"]}
    if on_device == "cuda":
        for name, flags in FP8.items():
            total = evaluate(options, ["--backend", "cuda", *flags], ["--backend", "cuda", *BF16])
            metrics |= {f"{name}_perplexity": total["perplexity"], f"{name}_perplexity_difference_percent": percent(total),
                        f"{name}_kl_mean_nats": total["kl_mean_nats"], f"{name}_top1_agreement": total["top1_agreement"]}
        total = evaluate(options, ["--backend", "cuda", *FP8_MOST], ["--backend", "cuda", *BF16], 20000)  # the whole text
        metrics |= {"fp8_most_perplexity": total["perplexity"], "fp8_most_perplexity_difference_percent": percent(total),
                    "fp8_most_kl_mean_nats": total["kl_mean_nats"], "fp8_most_text_tokens": total["tokens"]}
        expected = json.loads((common.ROOT / "bench/results/fp8_reference.json").read_text())["metrics"]
        metrics["fp8_kl_off_reference"] = abs(metrics["fp8_kl_mean_nats"] * 1e3 / expected["fp8_and_kv_kl_millinats"] - 1)
    limits = LIMITS | {"greedy_largest_gap_nats": NEAR_TIE}
    common.write_result("h200_smollm2", metrics, f"SmolLM2-135M Q4_1 in BF16, {on_device} against {on_cpu}; limits "
                        + ", ".join(f"{name} {limit}" for name, limit in limits.items()),
                        hardware=common.gpu_hardware() if on_device == "cuda" else None, path=options.out)
    broken = [name for name, limit in limits.items() if not metrics.get(name, 0) <= limit]
    sys.exit(f"beyond their limits: {', '.join(broken)}" if broken else 0)


if __name__ == "__main__":
    main()
