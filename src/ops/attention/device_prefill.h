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

// Rows of queries are packed token-major with the heads of a KV head's group inside: packed row p of a row of the batch
// is its token p / group and head p % group of the group. A tile has device_prefill_tile_rows() of them from `first`
// on, cut off at the end of the row. The plan's own: the device gets items.
struct PrefillTile {
  int32_t q_begin = 0;     // the row's first token in the batch
  int32_t q_len = 0;       // its tokens
  int32_t kv_len = 0;      // its cached tokens
  int32_t page_begin = 0;  // its first entry of page_table; of FP8 pages, its first page of the scratch
  int32_t first = 0;       // first packed row
  int32_t num_keys = 0;    // keys that the last token of the tile sees
  int32_t row = 0;
};

// What a thread block does at one go: a tile for one KV head, over all of its keys or over a part of them. Blocks of
// keys have kPrefillBlockKeys.
struct alignas(16) PrefillItem {
  int32_t q_begin, q_len, kv_len, page_begin, first;  // of the tile
  int32_t head;                                       // KV head
  int32_t first_block, end_block;                     // blocks of keys
  int32_t part;                                       // where a part leaves its sums; -1: the item is a whole tile
  int32_t next;                                       // item of the pass that the thread block does next; -1: none
  int32_t unused[2];
};
constexpr int32_t kPrefillBlockKeys = 128;

// The parts of one tile and head, whose sums are added up behind the launch: `num_parts` from that of `item` on.
struct PrefillMerge {
  int32_t item;  // of the pass
  int32_t num_parts;
};

enum class PrefillRows : uint8_t { kAll, kMultiToken };  // kMultiToken: rows of one token belong to the decode kernel

// One launch: thread block b begins with item b and goes on with what that names. FP8 pages of the rows are widened to
// BF16 into a scratch, which the launch reads; rows that do not fit together are passes one after the other over the
// same scratch. BF16 is one pass.
struct PrefillPass {
  int32_t first_tile = 0, num_tiles = 0;
  int32_t first_item = 0, num_items = 0, num_blocks = 0;
  int32_t first_merge = 0, num_merges = 0;
  int32_t first_source = 0, num_pages = 0;  // of wide_sources; page i of the scratch is source first_source + i
};

struct DevicePrefill {
  const Bf16* q = nullptr;  // (num_tokens, q_stride): the query heads first, rotated; 16-byte aligned, like q_stride
  int64_t q_stride = 0;     // elements
  Bf16* out = nullptr;      // (num_tokens, num_q_heads * head_dim); tokens outside of the tiles stay as they are
  DeviceKvLayer kv;         // pages of 16 tokens, head dim 64 or 128
  DeviceBatch batch;
  int32_t num_q_heads = 0;
  float scale = 1;  // of the logits, > 0
  // The definition reads `rows`, the CUDA kernels what plan_device_prefill made of the same lists. They read its lists
  // while the kernel before still runs.
  PrefillRows rows = PrefillRows::kAll;
  const PrefillPass* passes = nullptr;  // host memory
  int32_t num_passes = 0;
  const PrefillItem* items = nullptr;    // device memory, like all that follows
  const PrefillMerge* merges = nullptr;  // device memory
  float* parts = nullptr;                // device_prefill_scratch_bytes, 16-byte aligned
  // FP8 pages.
  const int32_t* wide_sources = nullptr;
  Bf16* wide_pages = nullptr;  // PrefillPlan::wide_capacity pages of BF16
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
  int32_t num_blocks = 1;  // thread blocks of a launch: the multiprocessors, at most kPrefillMaxBlocks
  bool may_split = true;   // tiles into parts, where that ends sooner
  PrefillTile* tiles = nullptr;
  int64_t max_tiles = 0;
  int32_t num_tiles = 0;
  PrefillItem* items = nullptr;
  int64_t max_items = 0;
  int32_t num_items = 0;
  PrefillMerge* merges = nullptr;
  int32_t max_merges = 0;  // kPrefillMaxBlocks let one pass be split, which is all there is but for very many contexts
  int32_t num_merges = 0;
  PrefillPass* passes = nullptr;
  int32_t max_passes = 0;  // as many as rows always do
  int32_t num_passes = 0;
  // FP8 pages; BF16 has a capacity of 0 and none of these.
  int32_t wide_capacity = 0;        // pages of the scratch; at least those of the longest row
  int32_t* wide_sources = nullptr;  // page of the KV memory
  int64_t max_sources = 0;
  int32_t num_sources = 0;
};

struct PrefillHeads {
  int32_t group = 0;  // query heads of a KV head
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
};

constexpr int32_t kPrefillMaxBlocks = 144;  // multiprocessors of a whole GH100

// Three warpgroups of 64 rows at head dim 64, two at 128, where the accumulators need twice the registers.
template <int32_t kHeadDim>
constexpr int32_t kPrefillTileRows = kHeadDim == 64 ? 192 : 128;
int32_t device_prefill_tile_rows(int32_t head_dim);
// Never less than what a batch of these sizes needs.
int64_t max_device_prefill_tiles(int64_t num_tokens, int64_t num_rows, const PrefillHeads& heads);
int64_t max_device_prefill_items(int64_t num_tokens, int64_t num_rows, const PrefillHeads& heads);
// A part is, of every row of the tile, the sum of values by their weights (tile rows, head_dim), and behind these the
// logit, before the scale, that the weights are relative to, and their sum (tile rows, 2).
template <int32_t kHeadDim>
constexpr int64_t kPrefillPartFloats = kPrefillTileRows<kHeadDim>*(kHeadDim + 2);
// Nothing needs clearing; one scratch serves all layers.
int64_t device_prefill_scratch_bytes(int32_t head_dim);
// A capacity of the scratch at which a step is one pass unless its rows have more than 65,536 tokens of context
// together.
int32_t device_prefill_wide_pages(int32_t max_rows, int32_t max_context);
// The tiles of the selected rows, heaviest first (of each pass), and the items that they are dealt out as; all limits
// of the plan are checked.
void plan_device_prefill(const PrefillLists& lists, PrefillRows rows, const PrefillHeads& heads, PrefillPlan& plan);

void device_prefill_ref(const DevicePrefill& args);
void device_prefill_cuda(CudaStream stream, const DevicePrefill& args);

}  // namespace vayu::ops
