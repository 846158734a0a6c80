// Optional QK-norm, rotary embedding of Q and K, and the write of K and V into their pages: one pass over the QKV rows.
#pragma once

#include <cstdint>

#include "ops/attention/kv_cache.h"
#include "ops/context.h"

namespace vayu::ops {

enum class RopePairing : uint8_t {
  kHalfSplit,    // pairs (i, i + rotary_dim / 2): NeoX
  kInterleaved,  // pairs (2i, 2i + 1): original
};

struct RopeKvWriteArgs {
  float* qkv = nullptr;  // (num_tokens, (num_q_heads + 2 * num_kv_heads) * head_dim): Q, K, V; Q is rotated in place
  const int32_t* positions = nullptr;     // (num_tokens)
  const int32_t* slot_mapping = nullptr;  // (num_tokens) page * page_size + offset
  const float* inv_freq = nullptr;        // (rotary_dim / 2) radians a position, scaling already applied
  float attention_factor = 1.0f;          // multiplies cos and sin (YaRN)
  const float* q_norm = nullptr;          // (head_dim) or null: RMS norm of each Q head before rotation
  const float* k_norm = nullptr;          // (head_dim) or null
  float norm_eps = 1e-6f;
  RopePairing pairing = RopePairing::kHalfSplit;
  int32_t rotary_dim = 0;  // <= head_dim, even; the rest of a head is copied
  int32_t num_q_heads = 0;
  int64_t num_tokens = 0;
  KvLayer kv;  // written
};

void rope_kv_write(const OpContext& ctx, const RopeKvWriteArgs& args);

}  // namespace vayu::ops
