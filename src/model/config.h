// What a decoder is, in numbers. Filled by the architecture (arch/), read by everything else.
#pragma once

#include <cstdint>
#include <string>

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
  double attn_factor = 1.0;       // yarn: on top of 0.1 ln(factor) + 1
  double beta_fast = 32.0;        // yarn: turns within original_context
  double beta_slow = 1.0;
};

struct ModelConfig {
  std::string architecture;  // as the checkpoint names it
  std::string name;          // of the checkpoint; may be empty
  int32_t num_layers = 0;
  int32_t hidden = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t ffn = 0;  // inner width of the dense MLP
  int32_t vocab_size = 0;
  int32_t max_context = 0;  // tokens, with RoPE scaling taken into account
  float norm_eps = 1e-6f;
  float attention_scale = 1.0f;
  bool tied_head = false;  // the head multiplies from the embedding's memory
  RopeConfig rope;

  int64_t q_width() const { return int64_t{num_q_heads} * head_dim; }
  int64_t kv_width() const { return int64_t{num_kv_heads} * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
};

}  // namespace vayu::model
