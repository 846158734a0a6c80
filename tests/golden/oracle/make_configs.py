#!/usr/bin/env python3
"""Writes configs/<variant>.json: a Hugging Face style config.json for every tiny variant. Usage: make_configs.py"""
import json
import os

HERE = os.path.dirname(os.path.abspath(__file__))

SARVAM_MOE = {
    "architectures": ["SarvamMoEForCausalLM"], "model_type": "sarvam_moe",
    "vocab_size": 1024, "hidden_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "intermediate_size": 1024, "moe_intermediate_size": 128, "moe_shared_expert_intermediate_size": 128,
    "num_experts": 32, "num_experts_per_tok": 6, "num_shared_experts": 1, "first_k_dense_replace": 1,
    "n_group": 1, "topk_group": 1,
    "score_function": "sigmoid", "norm_topk_prob": True, "routed_scaling_factor": 2.5, "router_dtype": "fp32",
    "moe_router_enable_expert_bias": True,
    "use_qk_norm": True, "use_qkv_bias": False, "use_bias": False,
    "rope_theta": 8000000, "rope_scaling": None, "partial_rotary_factor": 1.0,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "tie_word_embeddings": False, "pad_token_id": 0, "eos_token_id": 1,
}
DEEPSEEK_YARN = {"type": "deepseek_yarn", "factor": 40, "original_max_position_embeddings": 256,
                 "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}
SARVAM_MLA = {
    "architectures": ["SarvamMLAForCausalLM"], "model_type": "sarvam_mla",
    "vocab_size": 1024, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "kv_lora_rank": 128, "head_dim": 160,
    "intermediate_size": 1024, "moe_intermediate_size": 256,
    "num_experts": 32, "num_experts_per_tok": 8, "num_shared_experts": 1, "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5, "moe_router_enable_expert_bias": True,
    "rope_theta": 10000, "rope_scaling": DEEPSEEK_YARN, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False, "pad_token_id": 0, "eos_token_id": 1,
}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
    "vocab_size": 1024, "hidden_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 768,
    "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02,
    "rope_theta": 1000000, "rope_scaling": None, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
    "use_sliding_window": False, "sliding_window": None, "max_window_layers": 3,
    "tie_word_embeddings": True, "bos_token_id": 2, "eos_token_id": 1, "torch_dtype": "bfloat16",
}
QWEN3_MOE = dict(
    QWEN3, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", tie_word_embeddings=False,
    moe_intermediate_size=96, num_experts=32, num_experts_per_tok=8, norm_topk_prob=True, decoder_sparse_step=1,
    mlp_only_layers=[], output_router_logits=False, router_aux_loss_coef=0.001)
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "vocab_size": 1024, "hidden_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 704,
    "attention_bias": False, "mlp_bias": False, "hidden_act": "silu",
    "rope_theta": 500000.0, "rope_scaling": None, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "bos_token_id": 2, "eos_token_id": 1, "torch_dtype": "bfloat16",
}


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


VARIANTS = {
    "sarvam_moe_base": SARVAM_MOE,
    "sarvam_moe_grouped": dict(SARVAM_MOE, n_group=4, topk_group=2),
    "sarvam_moe_hidden384": dict(SARVAM_MOE, hidden_size=384),
    "sarvam_moe_derived": without(SARVAM_MOE, "partial_rotary_factor", "head_dim"),
    "sarvam_moe_experts128": dict(
        SARVAM_MOE, vocab_size=512, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=512, moe_intermediate_size=64, moe_shared_expert_intermediate_size=64, num_experts=128),
    "sarvam_mla_flat": SARVAM_MLA,
    "sarvam_mla_grouped": dict(SARVAM_MLA, n_group=4, topk_group=2),
    "sarvam_mla_explicit_flat": dict(SARVAM_MLA, n_group=1, topk_group=1),
    "sarvam_mla_rope_type": dict(
        SARVAM_MLA, rope_scaling=dict(without(DEEPSEEK_YARN, "type"), rope_type="deepseek_yarn")),
    "sarvam_mla_mscale": dict(SARVAM_MLA, rope_scaling=dict(DEEPSEEK_YARN, mscale=0.5, mscale_all_dim=0.8)),
    "sarvam_mla_override": SARVAM_MLA,
    "sarvam_mla_kernel_shape": dict(
        SARVAM_MLA, num_hidden_layers=3, num_attention_heads=4, qk_nope_head_dim=128, qk_rope_head_dim=64,
        v_head_dim=128, kv_lora_rank=512, head_dim=576,
        rope_scaling=dict(DEEPSEEK_YARN, original_max_position_embeddings=4096), max_position_embeddings=131072),
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_moe_unnormalised": dict(QWEN3_MOE, norm_topk_prob=False),
    "qwen3_moe_dense_layer": dict(QWEN3_MOE, mlp_only_layers=[1]),
    "llama_llama3": dict(LLAMA, rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}),
    "llama_yarn": dict(LLAMA, rope_theta=10000.0, rope_scaling={
        "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 256}),
}


def main():
    os.makedirs(os.path.join(HERE, "configs"), exist_ok=True)
    for name, config in VARIANTS.items():
        with open(os.path.join(HERE, "configs", name + ".json"), "w") as file:
            json.dump(config, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
