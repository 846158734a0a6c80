// Batches for measuring whole steps without a server, and dummy weights that spread rows over the experts.
#pragma once

#include <cstdint>
#include <memory>
#include <random>

#include "core/batch.h"
#include "loader/checkpoint.h"

namespace vayu::bench {

// Seeded weights whose router has no selection bias: the bias of a trained model evens out the load of its experts,
// that of seeded weights would do the opposite.
std::shared_ptr<const loader::Checkpoint> even_routing(std::shared_ptr<const loader::Checkpoint> dummy);

// A ragged batch of sequences that own their pages: sequence s has pages [s * pages_each, (s + 1) * pages_each).
class StepBatch {
 public:
  StepBatch(int32_t vocab_size, int32_t page_size, int32_t pages_each);

  void clear();
  // Tokens [first, first + count) of a sequence, drawn at random; the last one's logits are sampled greedily.
  void add(int32_t sequence, int32_t first, int32_t count);
  void draw_tokens();  // other ids for the same rows
  const Batch& batch() const { return batch_; }

 private:
  int32_t vocab_size_;
  int32_t page_size_;
  int32_t pages_each_;
  std::mt19937 random_{12345};
  Batch batch_;
};

}  // namespace vayu::bench
