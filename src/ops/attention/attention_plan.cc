#include "ops/attention/attention_plan.h"

#include <algorithm>

namespace vayu::ops {
namespace {

constexpr int64_t kSplitUnitsPerThread = 8;

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

AttentionLayout::AttentionLayout(int num_threads, int32_t num_q_heads, int32_t head_dim, int64_t max_tokens,
                                 int64_t max_context)
    : num_threads(num_threads) {
  dim = round_up(head_dim, 16);
  max_queries = std::max<int64_t>(kBlockQueries, round_up(num_q_heads, 16));
  scores_stride = kChunkKeys + 16;  // off a power of two, so that the rows of a tile do not share cache sets
  worker_floats = max_queries * (3 * dim + scores_stride + 4) + kBlockKeys * dim;
  partial_floats = dim + 16;
  unit_partials = num_q_heads * partial_floats;
  max_split_units = num_key_chunks(max_context) + kSplitUnitsPerThread * num_threads;
  max_units = max_tokens + max_split_units;
  total_bytes = (num_threads * worker_floats + max_split_units * unit_partials) * static_cast<int64_t>(sizeof(float)) +
                max_units * static_cast<int64_t>(sizeof(AttentionUnit));
}

int64_t plan_attention(const PagedAttentionArgs& args, const AttentionLayout& layout, AttentionUnit* units) {
  const int32_t block_tokens = std::max(1, kBlockQueries / (args.num_q_heads / args.kv.num_kv_heads));
  int64_t num_units = 0;
  int32_t num_split = 0;
  for (int32_t row = 0; row < args.num_rows; ++row) {
    const int32_t tokens = args.qo_indptr[row + 1] - args.qo_indptr[row];
    const int32_t chunks = num_key_chunks(args.kv_lens[row]);
    // Rows are split while there is room for their partial results; past that there are rows enough for every thread.
    if (tokens == 1 && chunks > 1 && num_split + chunks <= layout.max_split_units) {
      for (int32_t chunk = 0; chunk < chunks; ++chunk) units[num_units++] = {row, 0, 1, chunk, num_split++};
      continue;
    }
    // Last tokens first: they see the most keys, and the longest work should not be the last to start.
    for (int32_t end = tokens; end > 0; end -= std::min(end, block_tokens)) {
      const int32_t first = std::max(0, end - block_tokens);
      units[num_units++] = {row, first, end - first, -1, -1};
    }
  }
  return num_units;
}

}  // namespace vayu::ops
