// Multi-head latent attention in its expanded form: the cached latents c of a row's context are multiplied out to the
// keys and values of every head, which queries then attend to as they are.
//   k[h] = [U_K[h] c | shared rotated key], v[h] = U_V[h] c, out[h] = softmax(q[h] k[h]^T * scale) v[h], causal
// Reads more than it saves for a decode row; paged_attention over latents (the absorbed form) is the other way to the
// same result.
#pragma once

#include <cstdint>

#include "ops/attention/kv_cache.h"
#include "ops/context.h"
#include "ops/gemm/matrix.h"

namespace vayu::ops {

struct MlaExpandedShape {
  int32_t num_q_heads = 0;
  int32_t nope_dim = 0;
  int32_t rope_dim = 0;
  int32_t v_dim = 0;
  int32_t latent_dim = 0;
};

struct MlaExpandedArgs {
  MlaExpandedShape shape;
  const float* q = nullptr;  // (num_tokens, num_q_heads, nope_dim + rope_dim) with row stride q_stride
  int64_t q_stride = 0;
  const Matrix* latent_to_k = nullptr;  // (num_q_heads * nope_dim, latent_dim)
  const Matrix* latent_to_v = nullptr;  // (num_q_heads * v_dim, latent_dim)
  float* out = nullptr;                 // (num_tokens, num_q_heads * v_dim)
  const int32_t* qo_indptr = nullptr;   // (num_rows + 1)
  const int32_t* kv_indptr = nullptr;   // (num_rows + 1) into page_table
  const int32_t* page_table = nullptr;
  const int32_t* kv_lens = nullptr;  // (num_rows)
  int32_t num_rows = 0;
  float scale = 1.0f;
  KvLayer kv;
  void* scratch = nullptr;  // mla_expanded_scratch_bytes, 64-byte aligned
};

int64_t mla_expanded_scratch_bytes(const OpContext& ctx, const MlaExpandedShape& shape, int64_t max_tokens);
// A token's result does not depend, to the last bit, on the other rows, on chunking, on page numbers or on threads.
void mla_expanded_attention(const OpContext& ctx, const MlaExpandedArgs& args);

}  // namespace vayu::ops
