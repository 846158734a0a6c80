#!/usr/bin/env python3
"""Rotary tables of Hugging Face transformers for every kind of scaling, as config.json blocks and their results.

    make_rope_goldens.py --out FILE     (torch, transformers 5; no network)

For each case: config (what config.json would hold), inv_freq, attention_factor, and cos and sin of every pair at positions
1, 8192 and 40000, computed as transformers does (float32 angle, float32 cosine, times the factor).
"""
import argparse
import json

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

BASE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, "hidden_size": 128, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 64, "rms_norm_eps": 1e-6}
CASES = {
    "plain": {"rope_theta": 1e4, "max_position_embeddings": 65536},
    "large_base": {"rope_theta": 8e6, "max_position_embeddings": 131072},
    "type_linear": {"rope_theta": 1e4, "max_position_embeddings": 8192, "rope_scaling": {"type": "linear", "factor": 8.0}},
    "rope_type_linear": {"rope_theta": 1e4, "max_position_embeddings": 8192, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "both_spellings": {"rope_theta": 1e4, "max_position_embeddings": 8192,
                       "rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 8.0}},
    "nested": {"max_position_embeddings": 8192, "rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0}},
    "llama3": {"rope_theta": 5e5, "max_position_embeddings": 131072,
               "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                "original_max_position_embeddings": 8192}},
    "yarn": {"rope_theta": 1e6, "max_position_embeddings": 131072,
             "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
    "yarn_without_original": {"rope_theta": 1e6, "max_position_embeddings": 32768, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "yarn_mscale": {"rope_theta": 1e4, "max_position_embeddings": 131072,
                    "rope_scaling": {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32,
                                     "beta_slow": 1, "mscale": 0.7, "mscale_all_dim": 1.3}},
    "yarn_attention_factor": {"rope_theta": 1e6, "max_position_embeddings": 131072,
                              "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768,
                                               "attention_factor": 1.25, "beta_fast": 16, "beta_slow": 2}},
    "dynamic_within_its_length": {"rope_theta": 1e4, "max_position_embeddings": 65536, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
}
POSITIONS = [1, 8192, 40000]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    out = {"positions": POSITIONS, "cases": {}}
    for name, fields in CASES.items():
        config = LlamaConfig(**{**BASE, **json.loads(json.dumps(fields))})
        rotary = LlamaRotaryEmbedding(config)
        cos, sin = rotary(torch.zeros(1, dtype=torch.float32), torch.tensor([POSITIONS]))
        half = cos.shape[-1] // 2
        out["cases"][name] = {
            "config": {**BASE, **fields}, "inv_freq": rotary.inv_freq.tolist(), "attention_factor": float(rotary.attention_scaling),
            "cos": cos[0, :, :half].tolist(), "sin": sin[0, :, :half].tolist()}
        print(f"{name:28s} factor {float(rotary.attention_scaling):.6f}  inv_freq[1] {rotary.inv_freq[1]:.6g}  [20] {rotary.inv_freq[20]:.6g}")
    with open(args.out, "w") as file:
        json.dump(out, file)
        file.write("\n")


if __name__ == "__main__":
    main()
