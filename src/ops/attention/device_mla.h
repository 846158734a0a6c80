// Multi-head latent attention in its absorbed form (DeepSeek-V2, 2024, section 2.1) over paged latents in device
// memory.
#pragma once

#include <cstdint>

#include "ops/cuda/types.h"

namespace vayu::ops {

// Token t of a row of `batch` sees the row's first n = kv_len - (tokens of the row after t) cached rows; every head h
// attends to the same ones:
//   out[t][h] = sum_j softmax_j(scale * q[t][h] . cache_j) cache_j[0 .. latent_dim)
// q holds the query multiplied into latent space, then its rotated part. Rows may have any number of new tokens, whose
// cache rows are in the pages already. A token that belongs to no row, or sees nothing, yields zeros. NaN or infinity
// in q, or in a cache row that is seen, shows as NaN in what depends on it and nowhere else; page slots that no token
// sees may hold anything.
struct MlaAttentionArgs {
  DeviceBatch batch;        // of up to kMlaMaxTokens tokens
  int32_t max_context = 0;  // bound of kv_lens; with num_tokens it fixes the launch
  int32_t num_heads = 0;    // <= kMlaMaxHeads
  const Bf16* q = nullptr;  // (num_tokens, num_heads, kv.head_dim), 16-byte aligned
  Bf16* out = nullptr;      // (num_tokens, num_heads, kv.latent_dim)
  float scale = 1.0f;       // > 0
  // page_size 16; latent_dim <= kMlaMaxLatentDim and head_dim <= kMlaMaxRowDim, multiples of 16; pages aligned
  DeviceKvLayer kv;
  void* scratch = nullptr;  // mla_attention_scratch_bytes, 16-byte aligned; device only
  // FP8, device only: steps of more than kMlaWideTokens tokens read the cache widened to BF16, if all pages of the
  // step's table fit. Else, and with wide_pages null, every token's block widens what it reads.
  int32_t num_table_pages = 0;  // entries of batch.page_table
  Bf16* wide_pages = nullptr;
  int32_t wide_capacity = 0;  // pages
};

// The limits of what the kernels take. Tokens are counted along a grid's second dimension.
constexpr int32_t kMlaMaxHeads = 64;
constexpr int32_t kMlaMaxLatentDim = 512;
constexpr int32_t kMlaMaxRowDim = 576;  // latent and rotated key
constexpr int32_t kMlaMaxTokens = 65535;

constexpr int32_t kMlaWideTokens = 132;  // fewer are split over keys

// Whatever the batch: only steps of few tokens are split over keys. Nothing needs clearing between steps.
int64_t mla_attention_scratch_bytes(int32_t num_heads, const DeviceKvLayer& kv);

void mla_attention_ref(const MlaAttentionArgs& args);
void mla_attention_cuda(CudaStream stream, const MlaAttentionArgs& args);

}  // namespace vayu::ops
