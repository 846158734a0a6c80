// What a decoder is, in numbers. Filled by the architecture (arch/), read by everything else.
#pragma once

#include <cstdint>
#include <string>

#include "ops/moe/route.h"
#include "ops/rope/rope_kv_write.h"

namespace vayu::model {

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };

struct RopeConfig {
  ops::RopePairing pairing = ops::RopePairing::kHalfSplit;
  int32_t rotary_dim = 0;  // even, <= head_dim
  double base = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;            // linear, llama3, yarn
  double original_context = 0;    // llama3, yarn: tokens the model was trained for before scaling
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  double ext_factor = 1.0;        // yarn: weight of extrapolation, 0 is pure interpolation
  double attn_factor = 1.0;       // yarn: on top of the temperature below
  // yarn: cos and sin are scaled by yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim) when both are
  // given, else by 0.1 ln(factor) + 1; 0: not given
  double mscale = 0;
  double mscale_all_dim = 0;
  double temperature = 0;   // yarn: stated outright ("attention_factor"), in place of the formula; 0: not given
  bool truncate = true;     // yarn: the correction range is rounded outwards to whole pairs
  double beta_fast = 32.0;  // yarn: turns within original_context
  double beta_slow = 1.0;
};

// Multi-head latent attention (DeepSeek-V2, 2024): K and V of a token are one latent and one rotary key for all heads.
enum class MlaForm : uint8_t {
  kAuto,      // the CPU: absorbed; CUDA: prompts expanded where that costs less, everything else absorbed
  kAbsorbed,  // queries go into the space of the latents, which are read as they are cached
  kExpanded,  // latents are expanded to the K and V of every head; CUDA: those of prompts, whatever it costs
};

struct MlaConfig {
  int32_t latent_dim = 0;  // kv_lora_rank; 0: the model has no MLA
  int32_t nope_dim = 0;    // of a query or key head, not rotated
  int32_t rope_dim = 0;    // of a query head, and of the shared key
  int32_t v_dim = 0;       // of a value head
  MlaForm form = MlaForm::kAuto;
  bool expands_prompts = false;  // set by the CUDA backend: it holds the weights of both forms
};

struct MoeConfig {
  ops::RouterShape router;  // hidden filled in; num_experts 0: the model has no experts
  int32_t expert_ffn = 0;   // inner width of a routed expert
  int32_t shared_ffn = 0;   // inner width of the shared expert; 0: none
};

struct ModelConfig {
  std::string architecture;  // as the checkpoint names it
  std::string name;          // of the checkpoint; may be empty
  int32_t num_layers = 0;
  int32_t hidden = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // of a cached key: latent_dim + rope_dim with MLA
  int32_t ffn = 0;       // inner width of the dense MLP; 0: no layer has one
  int32_t vocab_size = 0;
  int32_t max_context = 0;  // tokens, with RoPE scaling taken into account
  float norm_eps = 1e-6f;
  float attention_scale = 1.0f;
  bool tied_head = false;  // the head multiplies from the embedding's memory
  bool qk_norm = false;    // RMS norm of each Q and K head before rotation
  RopeConfig rope;
  MlaConfig mla;
  MoeConfig moe;

  bool has_mla() const { return mla.latent_dim > 0; }
  bool has_moe() const { return moe.router.num_experts > 0; }
  // Floats a token has in front of the attention: Q, and with GQA K and V, with MLA the latent and the shared key.
  int64_t q_width() const { return int64_t{num_q_heads} * (has_mla() ? mla.nope_dim + mla.rope_dim : head_dim); }
  int64_t kv_width() const { return int64_t{num_kv_heads} * head_dim; }  // of K
  int64_t qkv_width() const { return q_width() + (has_mla() ? 1 : 2) * kv_width(); }
  int64_t attention_width() const { return has_mla() ? int64_t{num_q_heads} * mla.v_dim : q_width(); }
};

}  // namespace vayu::model
