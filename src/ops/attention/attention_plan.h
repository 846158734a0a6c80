// How paged_attention_cpu cuts a batch into work, and where its buffers lie in the scratch. A plan depends on threads
// and on the batch; the arithmetic of a token does not depend on the plan.
#pragma once

#include <cstdint>

#include "ops/attention/paged_attention.h"

namespace vayu::ops {

constexpr int kChunkKeys = 256;    // keys under one softmax; chunks start at its multiples and are merged in order
constexpr int kBlockKeys = 64;     // keys converted to float at a time, so that they stay in the first-level cache
constexpr int kBlockQueries = 96;  // queries (tokens x heads of a group) that share converted keys

inline int32_t num_key_chunks(int64_t keys) { return static_cast<int32_t>((keys + kChunkKeys - 1) / kChunkKeys); }

// What one worker does at a time, for one KV head: some tokens of a row against all they see, or, when chunk >= 0, the
// one token of a row against one chunk, left in `partial` for the merge.
struct AttentionUnit {
  int32_t row = 0;
  int32_t first_token = 0;  // in the row
  int32_t num_tokens = 0;
  int32_t chunk = -1;
  int32_t partial = -1;
};

// Sizes in floats, multiples of 16. Grows with max_tokens and max_context, so a scratch made for the largest batch
// holds the layout of every smaller one.
struct AttentionLayout {
  AttentionLayout(int num_threads, int32_t num_q_heads, int32_t head_dim, int64_t max_tokens, int64_t max_context);

  int64_t dim;          // head_dim, padded to whole vectors
  int64_t max_queries;  // of a unit
  int64_t scores_stride;
  int64_t worker_floats;   // buffers of one worker
  int64_t partial_floats;  // of one query: dim sums, then maximum and weight
  int64_t unit_partials;   // floats of one split unit: (num_q_heads, partial_floats)
  int64_t max_split_units;
  int64_t max_units;
  int64_t total_bytes;

  float* worker(void* scratch, int index) const { return static_cast<float*>(scratch) + index * worker_floats; }
  float* partials(void* scratch, int32_t index) const { return worker(scratch, num_threads) + index * unit_partials; }
  AttentionUnit* units(void* scratch) const {
    return reinterpret_cast<AttentionUnit*>(partials(scratch, static_cast<int32_t>(max_split_units)));
  }

 private:
  int num_threads;
};

// Fills `units` (layout.max_units of them) and returns how many there are.
int64_t plan_attention(const PagedAttentionArgs& args, const AttentionLayout& layout, AttentionUnit* units);

}  // namespace vayu::ops
