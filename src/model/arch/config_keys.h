// What the config.json of every decoder shares: sizes, RoPE and its scaling, and the settings that nobody here
// computes. Errors name the file and the field.
#pragma once

#include <string_view>

#include "loader/json_config.h"
#include "model/config.h"

namespace vayu::model {

// vocab_size, hidden_size, num_hidden_layers, rms_norm_eps, tie_word_embeddings, intermediate_size,
// num_attention_heads; refuses hidden_act other than silu, biases and sliding windows.
Status read_common(const loader::JsonConfig& json, ModelConfig& config);

// num_key_value_heads and head_dim (absent: hidden_size / num_attention_heads), and the softmax scale.
Status read_gqa(const loader::JsonConfig& json, ModelConfig& config);

// rope_theta, partial_rotary_factor and scaling, in any of its spellings: rope_scaling {type | rope_type}, or
// rope_parameters with rope_theta inside. rotary_dim must be set to the width that partial_rotary_factor is a part of.
// Also max_context. The result has passed check_rope.
Status read_rope(const loader::JsonConfig& json, ModelConfig& config);

// Routed experts: num_experts (or n_routed_experts), num_experts_per_tok, moe_intermediate_size, groups (absent: one),
// norm_topk_prob, routed_scaling_factor.
Status read_experts(const loader::JsonConfig& json, ModelConfig& config);

// num_shared_experts (absent: 1) of moe_shared_expert_intermediate_size each, or of the routed experts' width; also
// refuses moe_layer_freq other than 1.
Status read_shared_experts(const loader::JsonConfig& json, ModelConfig& config);

// kCorrupt when the numbers of experts, groups and choices contradict each other.
Status check_router(const ops::RouterShape& router);

// kUnsupported unless the field is absent or has this value.
Status expect_flag(const loader::JsonConfig& json, std::string_view key, bool value);
Status expect_text(const loader::JsonConfig& json, std::string_view key, std::string_view value);

}  // namespace vayu::model
