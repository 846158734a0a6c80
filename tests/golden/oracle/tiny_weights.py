"""Seeded random weights of tiny models: the rule of `--load-format dummy`, bit-identical to the engine's.

Element i (row-major) of the tensor called `name` depends on the name, the seed and i alone:

  key   = mix(fnv1a64(name) + seed * GOLDEN)                        all arithmetic mod 2^64
  z     = mix(key + (i + 1) * GOLDEN),  s = sum of the four 16-bit fields of z    (mean 131070, deviation 37837.22659)
  value = float32(mean + (s - 131070) * (sigma / 37837.22659))      in double, rounded once

so any part of any tensor can be made without the rest. mean and sigma follow from the role of the tensor.
"""
import math
from collections import namedtuple

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
MASK = 0xFFFFFFFFFFFFFFFF
FIELD_SUM_MEAN = 131070
FIELD_SUM_DEVIATION = 37837.22659
CHUNK = 1 << 20

# role: embedding, norm, router, router_bias or matrix; fan_in is the last dimension.
TensorSpec = namedtuple("TensorSpec", "name shape role")


def _mix_int(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def _mix_array(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def tensor_key(name, seed):
    fnv = 0xCBF29CE484222325
    for byte in name.encode("utf-8"):
        fnv = ((fnv ^ byte) * 0x100000001B3) & MASK
    return _mix_int((fnv + seed * GOLDEN) & MASK)


def seeded_values(name, count, mean, sigma, seed):
    """float32 (count): the first `count` elements of the tensor."""
    key = np.array([tensor_key(name, seed)], dtype=np.uint64)
    step = sigma / FIELD_SUM_DEVIATION
    out = np.empty(count, dtype=np.float32)
    for begin in range(0, count, CHUNK):
        end = min(count, begin + CHUNK)
        index = np.arange(begin + 1, end + 1, dtype=np.uint64)
        z = _mix_array(key + index * np.array([GOLDEN], dtype=np.uint64))
        total = np.zeros(end - begin, dtype=np.int64)
        for shift in (0, 16, 32, 48):
            total += ((z >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64)
        out[begin:end] = (mean + (total - FIELD_SUM_MEAN).astype(np.float64) * step).astype(np.float32)
    return out


def mean_and_sigma(spec, tied_embeddings):
    fan_in = spec.shape[-1]
    if spec.role == "embedding":
        return 0.0, 1.0 / math.sqrt(fan_in) if tied_embeddings else 1.0
    if spec.role == "norm":
        return 1.0, 0.3
    if spec.role == "router":
        return 0.0, 1.5 / math.sqrt(fan_in)
    if spec.role == "router_bias":
        return 0.2, 0.3
    return 0.0, 1.0 / math.sqrt(fan_in)


def head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def is_moe_layer(config, layer):
    """Whether the FFN of this layer is a mixture of experts."""
    if config["model_type"] in ("sarvam_moe", "sarvam_mla"):
        return layer >= config.get("first_k_dense_replace", 1) and layer % config.get("moe_layer_freq", 1) == 0
    if config["model_type"] == "qwen3_moe":
        return layer not in (config.get("mlp_only_layers") or []) and \
            config["num_experts"] > 0 and (layer + 1) % config.get("decoder_sparse_step", 1) == 0
    return False


def shared_expert_width(config):
    width = config.get("moe_shared_expert_intermediate_size") or config["moe_intermediate_size"]
    return width * config.get("num_shared_experts", 0)


def _ffn(prefix, width, hidden):
    return [TensorSpec(prefix + "gate_proj.weight", (width, hidden), "matrix"),
            TensorSpec(prefix + "up_proj.weight", (width, hidden), "matrix"),
            TensorSpec(prefix + "down_proj.weight", (hidden, width), "matrix")]


def _feed_forward(config, layer, prefix, bias_name):
    hidden = config["hidden_size"]
    if not is_moe_layer(config, layer):
        return _ffn(prefix, config["intermediate_size"], hidden)
    num_experts = config["num_experts"]
    specs = [TensorSpec(prefix + "gate.weight", (num_experts, hidden), "router")]
    if bias_name and config.get("moe_router_enable_expert_bias", True):
        specs.append(TensorSpec(prefix + "gate." + bias_name, (num_experts,), "router_bias"))
    for expert in range(num_experts):
        specs += _ffn(f"{prefix}experts.{expert}.", config["moe_intermediate_size"], hidden)
    if bias_name and shared_expert_width(config):
        specs += _ffn(prefix + "shared_experts.", shared_expert_width(config), hidden)
    return specs


def _sarvam_moe_attention(config, prefix):
    hidden, dim = config["hidden_size"], head_dim(config)
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    specs = [TensorSpec(prefix + "query_key_value.weight", ((num_heads + 2 * num_kv_heads) * dim, hidden), "matrix")]
    if config.get("use_qk_norm", True):
        specs += [TensorSpec(prefix + "query_layernorm.weight", (dim,), "norm"),
                  TensorSpec(prefix + "key_layernorm.weight", (dim,), "norm")]
    return specs + [TensorSpec(prefix + "dense.weight", (hidden, num_heads * dim), "matrix")]


def _sarvam_mla_attention(config, prefix):
    if config.get("q_lora_rank"):
        raise ValueError("q_lora_rank: only a direct q_proj is described for sarvam_mla")
    hidden, num_heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    nope, rope, v_dim = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    return [TensorSpec(prefix + "q_proj.weight", (num_heads * (nope + rope), hidden), "matrix"),
            TensorSpec(prefix + "kv_a_proj_with_mqa.weight", (rank + rope, hidden), "matrix"),
            TensorSpec(prefix + "kv_a_layernorm.weight", (rank,), "norm"),
            TensorSpec(prefix + "kv_b_proj.weight", (num_heads * (nope + v_dim), rank), "matrix"),
            TensorSpec(prefix + "o_proj.weight", (hidden, num_heads * v_dim), "matrix")]


def _llama_attention(config, prefix):
    hidden, dim = config["hidden_size"], head_dim(config)
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    specs = [TensorSpec(prefix + "q_proj.weight", (num_heads * dim, hidden), "matrix"),
             TensorSpec(prefix + "k_proj.weight", (num_kv_heads * dim, hidden), "matrix"),
             TensorSpec(prefix + "v_proj.weight", (num_kv_heads * dim, hidden), "matrix"),
             TensorSpec(prefix + "o_proj.weight", (hidden, num_heads * dim), "matrix")]
    if config["model_type"] in ("qwen3", "qwen3_moe"):
        specs += [TensorSpec(prefix + "q_norm.weight", (dim,), "norm"),
                  TensorSpec(prefix + "k_norm.weight", (dim,), "norm")]
    return specs


# model_type: embedding, attention folder, attention tensors, router bias (None: neither bias nor shared expert)
FAMILIES = {
    "sarvam_moe": ("word_embeddings", "attention", _sarvam_moe_attention, "expert_bias"),
    "sarvam_mla": ("embed_tokens", "self_attn", _sarvam_mla_attention, "e_score_correction_bias"),
    "qwen3": ("embed_tokens", "self_attn", _llama_attention, None),
    "qwen3_moe": ("embed_tokens", "self_attn", _llama_attention, None),
    "llama": ("embed_tokens", "self_attn", _llama_attention, None),
}


def tensor_specs(config):
    """[TensorSpec]: every tensor of the checkpoint under its canonical name."""
    embedding, attention_folder, attention, bias_name = FAMILIES[config["model_type"]]
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    specs = [TensorSpec(f"model.{embedding}.weight", (vocab, hidden), "embedding")]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        specs.append(TensorSpec(prefix + "input_layernorm.weight", (hidden,), "norm"))
        specs += attention(config, prefix + attention_folder + ".")
        specs.append(TensorSpec(prefix + "post_attention_layernorm.weight", (hidden,), "norm"))
        specs += _feed_forward(config, layer, prefix + "mlp.", bias_name)
    specs.append(TensorSpec("model.norm.weight", (hidden,), "norm"))
    if not config.get("tie_word_embeddings", False):
        specs.append(TensorSpec("lm_head.weight", (vocab, hidden), "matrix"))
    return specs


def make_weights(config, seed):
    """{name: float32 array} for every tensor of tensor_specs(config)."""
    tied = config.get("tie_word_embeddings", False)
    weights = {}
    for spec in tensor_specs(config):
        mean, sigma = mean_and_sigma(spec, tied)
        count = int(np.prod(spec.shape))
        weights[spec.name] = seeded_values(spec.name, count, mean, sigma, seed).reshape(spec.shape)
    return weights
