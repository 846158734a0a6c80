#include "model/geometries.h"

namespace vayu::model {
namespace {

// sarvam-3b-like keeps what decides the shape of the work in the 30B (128 experts, 6 a token, head size 64, one shared
// expert, a dense first layer) and shrinks widths, depth and vocabulary, so that the same kernels and routing run on a
// desktop: 2.9 billion parameters, 1.6 GB in 4 bits, 0.21 billion of them active a token beside embedding and head.
constexpr Geometry kGeometries[] = {
    {"sarvam-30b", "32.2 billion parameters, 2.4 active: 19 layers, 128 experts, top 6, GQA", R"({
      "architectures": ["SarvamMoEForCausalLM"], "model_type": "sarvam_moe", "torch_dtype": "bfloat16",
      "vocab_size": 262144, "hidden_size": 4096, "num_hidden_layers": 19, "num_attention_heads": 64,
      "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 8192, "moe_intermediate_size": 1024,
      "moe_shared_expert_intermediate_size": 1024, "num_experts": 128, "num_experts_per_tok": 6,
      "num_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
      "score_function": "sigmoid", "norm_topk_prob": true, "routed_scaling_factor": 2.5, "use_qk_norm": true,
      "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 8000000, "max_position_embeddings": 131072,
      "tie_word_embeddings": false, "pad_token_id": 0, "eos_token_id": 1})"},
    {"sarvam-105b", "106 billion parameters, 10.3 active: 32 layers, 128 experts, top 8, MLA", R"({
      "architectures": ["SarvamMLAForCausalLM"], "model_type": "sarvam_mla", "torch_dtype": "bfloat16",
      "vocab_size": 262144, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 64,
      "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "head_dim": 576,
      "intermediate_size": 16384, "moe_intermediate_size": 2048, "num_experts": 128, "num_experts_per_tok": 8,
      "num_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "hidden_act": "silu",
      "rms_norm_eps": 1e-6, "rope_theta": 10000, "rope_scaling": {"type": "deepseek_yarn", "factor": 40,
      "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
      "mscale_all_dim": 1.0}, "max_position_embeddings": 131072, "tie_word_embeddings": false,
      "pad_token_id": 0, "eos_token_id": 1})"},
    {"sarvam-3b-like", "2.9 billion parameters, 0.2 active: the 30B's routing at a desktop's size", R"({
      "architectures": ["SarvamMoEForCausalLM"], "model_type": "sarvam_moe", "torch_dtype": "bfloat16",
      "vocab_size": 65536, "hidden_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 24,
      "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 4096, "moe_intermediate_size": 384,
      "moe_shared_expert_intermediate_size": 384, "num_experts": 128, "num_experts_per_tok": 6,
      "num_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
      "score_function": "sigmoid", "norm_topk_prob": true, "routed_scaling_factor": 2.5, "use_qk_norm": true,
      "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 8000000, "max_position_embeddings": 131072,
      "tie_word_embeddings": false, "pad_token_id": 0, "eos_token_id": 1})"},
};

}  // namespace

std::span<const Geometry> geometries() { return kGeometries; }

const Geometry* find_geometry(std::string_view name) {
  for (const Geometry& geometry : kGeometries) {
    if (geometry.name == name) return &geometry;
  }
  return nullptr;
}

}  // namespace vayu::model
