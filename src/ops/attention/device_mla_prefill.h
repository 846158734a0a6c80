// Causal attention of prompt rows with multi-head latent attention in its expanded form (DeepSeek-V2, 2024, section
// 2.1): the latents of a row's context lie expanded in memory, as the keys and values of every head. For token t of a
// row with q_len tokens in the batch and kv_len in all, visible = kv_len - q_len + t + 1,
//   logit_i = scale * (q[t, head, 0 .. 128) . k[i, head] + q[t, head, 128 .. 192) . rope[i])
//   out[t, head] = sum_i softmax_i(logit_i) v[i, head],  i < visible.
// NaN or infinity in what a token sees shows as NaN in its output. Context rows beyond kv_len may hold anything; the
// tokens of one row may see NaN that a later token of the same row wrote, never that of another row.
//
// Against the absorbed form (device_mla.h) a token and key cost 41 KFLOP of 64 heads in place of 139, and each key once
// 16.8 MFLOP for its expansion.
#pragma once

#include <cstdint>

#include "ops/attention/device_prefill.h"
#include "ops/cuda/types.h"

namespace vayu::ops {

constexpr int32_t kMlaPrefillNope = 128, kMlaPrefillRope = 64, kMlaPrefillValue = 128;  // dimensions of a head

// A row's tokens in the batch, and the context rows [kv_first, kv_first + kv_len) of its whole context.
struct MlaPrefillRow {
  int32_t q_begin = 0, q_len = 0, kv_len = 0, kv_first = 0;
};

// What a thread block does at one go: kMlaPrefillTileTokens tokens of a row from `first` on, cut off at its end, for
// one head.
struct alignas(16) MlaPrefillItem {
  int32_t q_begin, q_len, kv_len, kv_first;  // of the row
  int32_t first;                             // token of the row
  int32_t head;
  int32_t num_blocks;  // blocks of kPrefillBlockKeys keys that its last token sees
  int32_t next;        // item of the pass that the thread block does next; -1: none
};
constexpr int32_t kMlaPrefillTileTokens = 128;

// Rows whose context fits the workspace together; passes go one after the other over the same workspace. Thread block b
// of the launch begins with item b and goes on with what that names.
struct MlaPrefillPass {
  int32_t first_row = 0, num_rows = 0;
  int32_t first_item = 0, num_items = 0, num_blocks = 0;
  int32_t first_source = 0, num_pages = 0;  // of the sources; context row 16 i + s is slot s of page i of the pass
};

struct DeviceMlaPrefill {
  const Bf16* q = nullptr;  // (num_tokens, q_stride): num_heads queries of 192 first, the last 64 of each rotated;
                            // 16-byte aligned, like the two below
  int64_t q_stride = 0;     // elements, a multiple of 8
  int32_t num_tokens = 0;
  const Bf16* kv = nullptr;    // (num_context, 2 num_heads 128): the keys of all heads, then the values
  const Bf16* rope = nullptr;  // (num_context, 64): the rotated key, of all heads
  int32_t num_context = 0;     // context rows that there are
  Bf16* out = nullptr;         // (num_tokens, num_heads * 128), 16-byte aligned; other tokens stay as they are
  int32_t num_heads = 0;
  float scale = 1;  // of the logits, > 0
  // The definition reads the rows, which are in host memory, the CUDA kernel what plan_mla_prefill made of them.
  const MlaPrefillRow* rows = nullptr;
  int32_t num_rows = 0;
  const MlaPrefillItem* items = nullptr;  // of the pass, device memory
  int32_t num_blocks = 0;
};

enum class MlaPrefillChoice : uint8_t {
  kCheaper,  // rows of which the expanded form costs less
  kAlways,   // rows of more than one token
};

// Places for a plan, in host memory, and how much of them it took. The plan serves every layer of the step.
struct MlaPrefillPlan {
  int32_t num_blocks = 1;  // thread blocks of a launch: the multiprocessors, at most kPrefillMaxBlocks
  int32_t num_heads = 0;
  int32_t capacity = 0;  // context rows of the workspace; a row of a longer context is not chosen
  MlaPrefillChoice choice = MlaPrefillChoice::kCheaper;
  uint8_t* chosen = nullptr;  // (num_rows of the lists) 1: the row is in a pass
  MlaPrefillRow* rows = nullptr;
  int32_t max_rows = 0;
  int32_t num_rows = 0;
  MlaPrefillItem* tiles = nullptr;  // of one pass: the plan's own
  int64_t max_tiles = 0;
  MlaPrefillItem* items = nullptr;
  int64_t max_items = 0;
  int32_t num_items = 0;
  MlaPrefillPass* passes = nullptr;  // as many as rows always do
  int32_t num_passes = 0;
  int32_t* sources = nullptr;  // page of the KV memory
  int64_t max_sources = 0;
  int32_t num_sources = 0;
};

// Whether the expanded form costs less for a row. Measured or predicted, us on an H200 for 64 heads: a token and key
// 0.00061 absorbed and 0.00008 expanded, a key's expansion 0.033, so a key pays for itself when 64 tokens see it.
bool mla_prefill_pays(int32_t q_len, int32_t kv_len);
// Never less than what a batch of these sizes needs; a tile is an item for every head.
int64_t max_mla_prefill_tiles(int64_t num_tokens, int64_t num_rows);
// Chooses rows, cuts them into passes and the tiles of a pass into items; all limits of the plan are checked.
void plan_mla_prefill(const PrefillLists& lists, MlaPrefillPlan& plan);

void device_mla_prefill_ref(const DeviceMlaPrefill& args);
void device_mla_prefill_cuda(CudaStream stream, const DeviceMlaPrefill& args);

}  // namespace vayu::ops
