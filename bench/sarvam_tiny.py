#!/usr/bin/env python3
"""Evaluation of tests/data/sarvam-tiny on its held-out texts: perplexity a language against the PyTorch reference beside it,
what quantisation costs, and the load of the experts. Writes bench/results/sarvam_tiny_eval.json and the plot beside it, and
the sarvam_tiny_* figures of bench/results/accuracy.json.

    bench/sarvam_tiny.py

With --devices one device against another, both in BF16: greedy continuations and log-probabilities of the prompts of reference.json,
perplexity and divergence on the held-out texts; on CUDA also what FP8 costs. Writes bench/results/h200_sarvam_tiny.json; the exit code
tells whether DEVICE_LIMITS hold.

    bench/sarvam_tiny.py --devices cpu cuda [--vayu FILE] [--out FILE]
"""
import argparse
import json
import subprocess
import sys
import tempfile

import common
import smollm2_cuda as devices

MODEL = common.ROOT / "tests/data/sarvam-tiny"
LANGUAGES = ("hi", "bn", "ta", "te", "mr", "en")
FORMATS = ("q8_0", "q5_1", "q4_1", "q4_0", "q4_k")
# As in smollm2_cuda.py: where continuations part, the reference finds the two tokens this close. A router may choose otherwise where two
# of its scores nearly tie, so single positions differ by more than in a dense model.
DEVICE_LIMITS = {"greedy_largest_gap_nats": devices.NEAR_TIE, "logprob_difference_rms": 0.15, "kl_mean_nats": 0.001,
                 "perplexity_difference_percent": 0.5}
FP8 = {"fp8": ["--quantization", "fp8", "--kv-cache-dtype", "bf16"], "fp8_kv_fp8": ["--quantization", "fp8", "--kv-cache-dtype", "fp8"]}


def evaluate(*flags, vayu=common.VAYU):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [vayu, "eval", str(MODEL), "--json", out.name, *flags]
        for language in LANGUAGES:
            command += ["--text", str(MODEL / f"heldout/{language}.txt")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.load(open(out.name))


def evaluate_against(vayu, flags, reference):
    against = ["--against", str(MODEL), *[flag.replace("--", "--against-", 1) for flag in reference]]
    return evaluate(*flags, *against, vayu=vayu)["total"]


def compare_devices(options):
    reference, tested = options.devices
    cases = [{"prompt_ids": case["ids"], "greedy_ids": case["output_ids"]}
             for case in json.loads((MODEL / "reference.json").read_text())["greedy"]]

    def serve(device, port):
        return common.Server([options.vayu, "serve", str(MODEL), "--device", device, *devices.BF16, "--port", str(port),
                              "--mem-fraction-static", "0.3"], port, "/ready")

    def equal_to_pytorch(server):
        answers = devices.each(lambda case: devices.completion(server, case["prompt_ids"], max_tokens=len(case["greedy_ids"])), cases)
        return sum(answer["token_ids"] == case["greedy_ids"] for answer, case in zip(answers, cases, strict=True))

    with serve(reference, 8133) as one, serve(tested, 8134) as other:
        metrics = devices.compare_greedy(one, other, cases) | devices.compare_scores(one, other, cases)
        metrics |= {"greedy_equal_to_pytorch_fp32": equal_to_pytorch(other),
                    "greedy_reference_equal_to_pytorch_fp32": equal_to_pytorch(one)}
    bf16 = ["--backend", tested, *devices.BF16]
    total = evaluate_against(options.vayu, bf16, ["--backend", reference, *devices.BF16])
    metrics |= {"perplexity": total["perplexity"], "perplexity_reference": total["reference_perplexity"], "text_tokens": total["tokens"],
                "perplexity_difference_percent": devices.percent(total), "kl_mean_nats": total["kl_mean_nats"],
                "top1_agreement": total["top1_agreement"]}
    for name, flags in FP8.items() if tested == "cuda" else ():
        total = evaluate_against(options.vayu, ["--backend", tested, *flags], bf16)
        metrics |= {f"{name}_perplexity": total["perplexity"], f"{name}_perplexity_difference_percent": devices.percent(total),
                    f"{name}_kl_mean_nats": total["kl_mean_nats"], f"{name}_top1_agreement": total["top1_agreement"]}
    common.write_result("h200_sarvam_tiny", metrics, f"sarvam-tiny in BF16, {tested} against {reference}, which is the reference; limits "
                        + ", ".join(f"{name} {limit}" for name, limit in DEVICE_LIMITS.items()),
                        hardware=common.gpu_hardware() if tested == "cuda" else None, path=options.out)
    broken = [name for name, limit in DEVICE_LIMITS.items() if not metrics[name] <= limit]
    sys.exit(f"beyond their limits: {', '.join(broken)}" if broken else 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", nargs=2, metavar=("REFERENCE", "TESTED"), help="compare these in place of the evaluation: cpu cuda")
    parser.add_argument("--vayu", default=common.VAYU, help="with --devices")
    parser.add_argument("--out", help="with --devices: file in place of bench/results/h200_sarvam_tiny.json")
    options = parser.parse_args()
    if options.devices:
        compare_devices(options)
    evaluate_all()


def evaluate_all():
    plot = common.ROOT / "bench/results/sarvam_tiny_eval.svg"
    plain = evaluate("--plot", str(plot))
    reference = json.loads((MODEL / "reference.json").read_text())["languages"]
    metrics = {}
    for language, result in zip(LANGUAGES, plain["texts"]):
        metrics[f"ppl_{language}"] = result["perplexity"]
        metrics[f"ppl_{language}_pytorch_fp32"] = reference[language]["perplexity"]
        metrics[f"ppl_{language}_unigram"] = reference[language]["unigram_perplexity"]
    for layer in plain["expert_load"]:
        metrics[f"layer{layer['layer']}_max_over_uniform"] = layer["max_over_uniform"]
        metrics[f"layer{layer['layer']}_gini"] = layer["gini"]
    accuracy = {"sarvam_tiny_ppl_bf16": plain["total"]["perplexity"]}
    for name in FORMATS:
        result = evaluate("--quantization", name, "--against-dtype", "auto")
        metrics[f"{name}_ppl"] = accuracy[f"sarvam_tiny_ppl_{name}"] = result["total"]["perplexity"]
        metrics[f"{name}_top1_agreement"] = result["total"]["top1_agreement"]
        metrics[f"{name}_mean_kl"] = result["total"]["kl_mean_nats"]
    common.write_result("sarvam_tiny_eval", metrics, "windows of 512 tokens at a stride of 256; weights bf16, KV f16; "
                        "quantised while loading, compared with the bf16 model")
    path = common.ROOT / "bench/results/accuracy.json"
    whole = json.loads(path.read_text())
    whole["metrics"].update({key: round(value, 4) for key, value in accuracy.items()})
    if "sarvam_tiny" not in whole["notes"]:
        whole["notes"] += "; sarvam_tiny_*: bench/sarvam_tiny.py"
    path.write_text(json.dumps(whole, indent=2) + "\n")


if __name__ == "__main__":
    main()
