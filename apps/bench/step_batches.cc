#include "apps/bench/step_batches.h"

#include <cstring>

#include "base/check.h"

namespace vayu::bench {
namespace {

class EvenRouting final : public loader::Checkpoint {
 public:
  explicit EvenRouting(std::shared_ptr<const loader::Checkpoint> dummy) : dummy_(std::move(dummy)) {}

  const std::string& path() const override { return dummy_->path(); }
  std::span<const loader::CheckpointTensor> tensors() const override { return dummy_->tensors(); }
  const loader::CheckpointTensor* find_tensor(std::string_view name) const override {
    return dummy_->find_tensor(name);
  }
  Status read_rows(const loader::CheckpointTensor& tensor, int64_t first_row, int64_t num_rows,
                   std::byte* dst) const override {
    if (!is_selection_bias(tensor)) return dummy_->read_rows(tensor, first_row, num_rows, dst);
    std::memset(dst, 0, num_rows * row_bytes(tensor.format, tensor.cols()));
    return {};
  }
  const ops::SeededRows* seeded(const loader::CheckpointTensor& tensor) const override {
    return is_selection_bias(tensor) ? nullptr : dummy_->seeded(tensor);
  }
  Status check_unchanged() const override { return {}; }

 private:
  static bool is_selection_bias(const loader::CheckpointTensor& tensor) {
    return tensor.name.ends_with("expert_bias") || tensor.name.ends_with("e_score_correction_bias");
  }
  std::shared_ptr<const loader::Checkpoint> dummy_;
};

// Outlives every batch that points to it.
const SamplingParams& greedy() {
  static const SamplingParams params = [] {
    SamplingParams made;
    made.temperature = 0;
    return made;
  }();
  return params;
}

}  // namespace

std::shared_ptr<const loader::Checkpoint> even_routing(std::shared_ptr<const loader::Checkpoint> dummy) {
  return std::make_shared<EvenRouting>(std::move(dummy));
}

StepBatch::StepBatch(int32_t vocab_size, int32_t page_size, int32_t pages_each)
    : vocab_size_(vocab_size), page_size_(page_size), pages_each_(pages_each) {
  batch_.clear();
}

void StepBatch::clear() { batch_.clear(); }

void StepBatch::add(int32_t sequence, int32_t first, int32_t count) {
  const int32_t length = first + count;
  const int32_t pages = (length + page_size_ - 1) / page_size_;
  VAYU_CHECK(pages <= pages_each_, "{} tokens in {} pages", length, pages_each_);
  std::uniform_int_distribution<TokenId> token(0, vocab_size_ - 1);
  for (int32_t position = first; position < length; ++position) {
    batch_.token_ids.push_back(token(random_));
    batch_.positions.push_back(position);
    batch_.slot_mapping.push_back(sequence * pages_each_ * page_size_ + position);
  }
  for (int32_t page = 0; page < pages; ++page) batch_.page_table.push_back(sequence * pages_each_ + page);
  batch_.qo_indptr.push_back(batch_.num_tokens());
  batch_.kv_indptr.push_back(static_cast<int32_t>(batch_.page_table.size()));
  batch_.kv_lens.push_back(length);
  batch_.samples.push_back(
      {.logit_row = batch_.num_logits(), .seq = static_cast<SeqId>(sequence), .params = &greedy()});
  batch_.logit_rows.push_back(batch_.num_tokens() - 1);
}

void StepBatch::draw_tokens() {
  std::uniform_int_distribution<TokenId> token(0, vocab_size_ - 1);
  for (TokenId& id : batch_.token_ids) id = token(random_);
}

}  // namespace vayu::bench
