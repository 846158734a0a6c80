// Multi-head latent attention: norm of the latent, rotary embedding of the queries' rotary parts and of the shared key,
// and the write of both into the pages. One pass over the rows [q heads | latent | shared key].
#pragma once

#include <cstdint>

#include "ops/attention/kv_cache.h"
#include "ops/context.h"
#include "ops/rope/rope_kv_write.h"

namespace vayu::ops {

struct MlaRopeKvWriteArgs {
  // (num_tokens, num_q_heads * (nope_dim + rope_dim) + latent_dim + rope_dim); the last rope_dim of each query head are
  // rotated in place, the rest of a row is scratch afterwards
  float* q_kv = nullptr;
  const int32_t* positions = nullptr;     // (num_tokens)
  const int32_t* slot_mapping = nullptr;  // (num_tokens) page * page_size + offset
  const float* inv_freq = nullptr;        // (rope_dim / 2) radians a position, scaling already applied
  float attention_factor = 1.0f;          // multiplies cos and sin
  const float* latent_norm = nullptr;     // (latent_dim) RMS norm of the latent
  float norm_eps = 1e-6f;
  RopePairing pairing = RopePairing::kInterleaved;
  int32_t nope_dim = 0;
  int32_t rope_dim = 0;  // even; kv.head_dim = kv.latent_dim + rope_dim
  int32_t num_q_heads = 0;
  int64_t num_tokens = 0;
  KvLayer kv;  // written: normed latent, then rotated key
};

void mla_rope_kv_write(const OpContext& ctx, const MlaRopeKvWriteArgs& args);

}  // namespace vayu::ops
