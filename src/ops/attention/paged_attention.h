// Causal grouped-query attention of a ragged batch over paged K and V: softmax(q k^T * scale) v, in float.
// Token t of a row sees the row's first kv_len - (row tokens after t) cached tokens.
#pragma once

#include <cstdint>

#include "ops/attention/kv_cache.h"
#include "ops/context.h"

namespace vayu::ops {

struct PagedAttentionArgs {
  const float* q = nullptr;             // (num_tokens, num_q_heads, kv.head_dim) with row stride q_stride
  int64_t q_stride = 0;                 // floats between tokens
  float* out = nullptr;                 // (num_tokens, num_q_heads * kv.v_dim())
  const int32_t* qo_indptr = nullptr;   // (num_rows + 1)
  const int32_t* kv_indptr = nullptr;   // (num_rows + 1) into page_table
  const int32_t* page_table = nullptr;  // pages of each row in order
  const int32_t* kv_lens = nullptr;     // (num_rows)
  int32_t num_rows = 0;
  int32_t num_q_heads =
      0;  // a multiple of kv.num_kv_heads; query head h reads kv head h / (num_q_heads / num_kv_heads)
  float scale = 1.0f;
  KvLayer kv;
  // Bytes of scratch for `ctx.pool`; see paged_attention_scratch_bytes. 64-byte aligned.
  void* scratch = nullptr;
};

int64_t paged_attention_scratch_bytes(const OpContext& ctx, int32_t num_q_heads, const KvLayer& kv, int64_t max_tokens,
                                      int64_t max_context);
// The result of a token does not depend, to the last bit, on the other rows, on chunking, on page numbers or on
// threads.
void paged_attention(const OpContext& ctx, const PagedAttentionArgs& args);

}  // namespace vayu::ops
