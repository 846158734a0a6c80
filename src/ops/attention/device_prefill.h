// Causal attention of prompt rows over paged GQA KV on the device. For token t of row r, which has q_len tokens in the
// batch and kv_len tokens in the cache (its own included: they are written before), with visible = kv_len - q_len + t +
// 1
//   out[t, head] = sum_i softmax_i(scale * q[t, head] . k[i, kv_head]) v[i, kv_head],  i < visible,
//   kv_head = head / (num_q_heads / num_kv_heads).
// NaN or infinity in what a token sees shows as NaN in its output. Pages and slots beyond kv_len may hold anything; the
// tokens of one row may see NaN that a later token of the same row wrote, never that of another row.
#pragma once

#include <cstdint>

#include "ops/cuda/types.h"

namespace vayu::ops {

// The work of one block and KV head: rows of queries, token-major with the heads of the group inside, so that
// packed row p is token p / group of the row and head p % group of the group. A tile has device_prefill_tile_rows() of
// them from `first` on, cut off at the end of the row.
struct alignas(16) PrefillTile {
  int32_t q_begin;     // the row's first token in the batch
  int32_t q_len;       // its tokens
  int32_t kv_len;      // its cached tokens
  int32_t page_begin;  // its first entry of page_table; of FP8 pages, its first page of the scratch
  int32_t first;       // first packed row
  int32_t num_keys;    // keys that the last token of the tile sees
  int32_t row;
  int32_t unused;
};

enum class PrefillRows : uint8_t { kAll, kMultiToken };  // kMultiToken: rows of one token belong to the decode kernel

// FP8 pages of the rows are widened to BF16 into a scratch, then the tiles read that. Rows that do not fit together are
// passes one after the other over the same scratch.
struct PrefillPass {
  int32_t first_tile, num_tiles;
  int32_t first_source, num_pages;  // of wide_sources; page i of the scratch is source first_source + i
};

struct DevicePrefill {
  const Bf16* q = nullptr;  // (num_tokens, q_stride): the query heads first, rotated; 16-byte aligned, like q_stride
  int64_t q_stride = 0;     // elements
  Bf16* out = nullptr;      // (num_tokens, num_q_heads * head_dim); tokens outside of the tiles stay as they are
  DeviceKvLayer kv;         // pages of 16 tokens, head dim 64 or 128
  DeviceBatch batch;
  int32_t num_q_heads = 0;
  float scale = 1;  // of the logits, > 0
  // The definition reads `rows`, the CUDA kernel the tiles that plan_device_prefill made of the same lists.
  PrefillRows rows = PrefillRows::kAll;
  const PrefillTile* tiles = nullptr;
  int32_t num_tiles = 0;
  // FP8 pages, CUDA only.
  const PrefillPass* passes = nullptr;  // host memory
  int32_t num_passes = 0;
  const int32_t* wide_sources = nullptr;  // device memory
  Bf16* wide_pages = nullptr;             // PrefillPlan::wide_capacity pages of BF16
};

// Host copies of the lists of DeviceBatch.
struct PrefillLists {
  const int32_t* qo_indptr = nullptr;
  const int32_t* kv_indptr = nullptr;
  const int32_t* page_table = nullptr;  // FP8 pages only
  const int32_t* kv_lens = nullptr;
  int32_t num_rows = 0;
};

// Places for a plan, in host memory, and how much of them it took. The plan serves every layer of the step.
struct PrefillPlan {
  PrefillTile* tiles = nullptr;
  int64_t max_tiles = 0;
  int32_t num_tiles = 0;
  // FP8 pages; BF16 has a capacity of 0 and none of these.
  int32_t wide_capacity = 0;        // pages of the scratch; at least those of the longest row
  int32_t* wide_sources = nullptr;  // page of the KV memory
  int64_t max_sources = 0;
  int32_t num_sources = 0;
  PrefillPass* passes = nullptr;
  int32_t max_passes = 0;  // as many as rows always do
  int32_t num_passes = 0;
};

int32_t device_prefill_tile_rows(int32_t head_dim);
// Never less than what a batch of these sizes needs. `group` = num_q_heads / num_kv_heads.
int64_t max_device_prefill_tiles(int64_t num_tokens, int64_t num_rows, int32_t group, int32_t head_dim);
// A capacity of the scratch at which a step is one pass unless its rows have more than 65,536 tokens of context
// together.
int32_t device_prefill_wide_pages(int32_t max_rows, int32_t max_context);
// The tiles of the selected rows, heaviest first (of each pass); all limits of the plan are checked.
void plan_device_prefill(const PrefillLists& lists, PrefillRows rows, int32_t group, int32_t head_dim,
                         PrefillPlan& plan);

void device_prefill_ref(const DevicePrefill& args);
void device_prefill_cuda(CudaStream stream, const DevicePrefill& args);

}  // namespace vayu::ops
