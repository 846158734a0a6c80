#!/usr/bin/env python3
"""Evaluation of tests/data/sarvam-tiny on its held-out texts: perplexity a language against the PyTorch reference beside it,
what quantisation costs, and the load of the experts. Writes bench/results/sarvam_tiny_eval.json and the plot beside it, and
the sarvam_tiny_* figures of bench/results/accuracy.json.

    bench/sarvam_tiny.py
"""
import json
import subprocess
import tempfile

import common

MODEL = common.ROOT / "tests/data/sarvam-tiny"
LANGUAGES = ("hi", "bn", "ta", "te", "mr", "en")
FORMATS = ("q8_0", "q5_1", "q4_1", "q4_0", "q4_k")


def evaluate(*flags):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [common.VAYU, "eval", str(MODEL), "--json", out.name, *flags]
        for language in LANGUAGES:
            command += ["--text", str(MODEL / f"heldout/{language}.txt")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.load(open(out.name))


def main():
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
