// Builds ragged batches by hand for tests: each sequence owns a fixed list of pages.
#pragma once

#include <vector>

#include "core/batch.h"

namespace vayu::model::testing {

struct TestSequence {
  std::vector<TokenId> tokens;  // all of them, computed or not
  std::vector<PageId> pages;    // enough for all tokens
  int32_t computed = 0;         // tokens whose K and V are cached
};

// Appends the next `count` tokens of the sequence as a row; logits are asked for all of them, or only the last.
inline void append_row(Batch& batch, TestSequence& seq, int32_t count, int32_t page_size, bool all_logits) {
  if (batch.qo_indptr.empty()) batch.clear();
  for (int32_t i = 0; i < count; ++i) {
    const int32_t position = seq.computed + i;
    if (all_logits || i == count - 1) batch.logit_rows.push_back(batch.num_tokens());
    batch.token_ids.push_back(seq.tokens[position]);
    batch.positions.push_back(position);
    batch.slot_mapping.push_back(seq.pages[position / page_size] * page_size + position % page_size);
  }
  seq.computed += count;
  const int32_t num_pages = (seq.computed + page_size - 1) / page_size;
  batch.page_table.insert(batch.page_table.end(), seq.pages.begin(), seq.pages.begin() + num_pages);
  batch.qo_indptr.push_back(batch.num_tokens());
  batch.kv_indptr.push_back(static_cast<int32_t>(batch.page_table.size()));
  batch.kv_lens.push_back(seq.computed);
}

}  // namespace vayu::model::testing
