// Grouped-query attention of decode rows over paged K and V in device memory, with the quantisation of its output.
#pragma once

#include <cstdint>

#include "ops/cuda/types.h"

namespace vayu::ops {

// For every i < num_decode_rows with row = decode_rows[i] >= 0, token = batch.qo_indptr[row] and every query head h
// (kv head h / (num_q_heads / num_kv_heads)), over the row's keys j < kv_lens[row]:
//   out[token][h] = sum_j softmax_j(scale * q[token][h] . k_j) v_j
// then the row of num_q_heads * head_dim values is written as `out` says: FP8 with one scale a row, or BF16. A row has
// one new token, whose K and V are in the pages already. A padded row (kv_len 0) yields zeros, unless its token lies
// beyond num_tokens: then nothing. NaN or infinity in q, or in a key or value the row sees, shows as NaN in that row
// and nowhere else; page slots behind kv_len may hold anything. Rows of other tokens are left alone.
struct DecodeAttentionArgs {
  DeviceBatch batch;
  const int32_t* decode_rows = nullptr;  // (num_decode_rows) indices of rows of `batch`; -1 is skipped
  int32_t num_decode_rows = 0;           // <= kDecodeMaxRows
  int32_t max_context = 0;               // bound of kv_lens of these rows; with num_decode_rows it fixes the launch
  const Bf16* q = nullptr;               // (num_tokens, num_q_heads, head_dim), rotated, 16-byte aligned
  int64_t q_stride = 0;                  // elements between tokens, a multiple of 8
  int32_t num_q_heads = 0;  // up to kDecodeMaxGroup for a kv head; num_q_heads * head_dim <= kDecodeMaxWidth
  float scale = 1.0f;       // > 0
  DeviceKvLayer kv;         // page_size 16, head_dim 32, 64 or 128, pages 16-byte aligned
  // All keys of these rows but each one's last were written by earlier steps: they may be read while the kernel before
  // still runs. The lists of `batch`, and decode_rows, are read so in any case: they must not come from that kernel.
  bool keys_settled = false;
  ActRows out;              // cols = num_q_heads * head_dim, scale_group 0
  void* scratch = nullptr;  // decode_attention_scratch_bytes, 16-byte aligned; device only
};

constexpr int32_t kDecodeMaxRows = 1024;
constexpr int32_t kDecodeMaxGroup = 16;    // query heads of a KV head
constexpr int32_t kDecodeMaxWidth = 8192;  // num_q_heads * head_dim
constexpr bool decode_takes_head_dim(int32_t head_dim) { return head_dim == 32 || head_dim == 64 || head_dim == 128; }

// Of a step of at most max_rows decode rows. Nothing needs clearing between steps; one scratch serves all layers.
int64_t decode_attention_scratch_bytes(const DeviceKvLayer& kv, int32_t max_rows);

void decode_attention_ref(const DecodeAttentionArgs& args);
void decode_attention_cuda(CudaStream stream, const DecodeAttentionArgs& args);

}  // namespace vayu::ops
