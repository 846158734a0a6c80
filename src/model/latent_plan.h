// Latent attention of a step on the device: which rows are attended in which form. Prompts in the expanded form where
// that costs less (device_mla_prefill.h), everything else in the absorbed form, over the latents as they are cached.
#pragma once

#include <cstdint>
#include <vector>

#include "core/batch.h"
#include "model/config.h"
#include "model/device_model.h"
#include "ops/attention/device_mla_prefill.h"

namespace vayu::model {

// Whether there is a kernel for it.
bool has_expanded_form(const MlaConfig& mla);
// Tokens of context that the workspace of the expanded form holds at a time, for mla.expands_prompts. The forms take
// turns in the same memory, so it is what the absorbed queries and outputs of max_step_tokens leave room for (4.2 a
// token with 64 heads), but at least one context of up to 8,192. A row whose context is longer than the workspace is
// absorbed.
int32_t expanded_capacity(const ModelConfig& config, const DeviceModelOptions& options);
// Of the latents, the rotated key and the keys and values of a token.
int64_t expanded_token_bytes(const ModelConfig& config);

// One batch. Lists are places in the words that go to the device with it.
struct LatentStep {
  const ops::MlaPrefillPass* passes = nullptr;  // in the planner, until the next batch
  int32_t num_passes = 0;                       // 0: all rows are absorbed, by the lists of the batch
  int64_t sources_at = 0, items_at = 0;
  // Absorbed rows, from the first to the last; expanded ones between them have no context here.
  int32_t first_row = 0, num_rows = 0;
  int32_t first_token = 0, num_tokens = 0;
  int32_t max_context = 0;
  int64_t qo_indptr_at = 0, kv_lens_at = 0;  // relative to first_token, first_row
};

class LatentPlanner {
 public:
  LatentPlanner() = default;
  LatentPlanner(const ModelConfig& config, const DeviceModelOptions& options);
  // The most words a batch's lists take, all roundings included.
  static int64_t max_words(const ModelConfig& config, const DeviceModelOptions& options);
  // Lists go to words[at] and on; returns where they end. num_blocks: thread blocks of a launch.
  int64_t plan(const Batch& batch, int32_t num_blocks, int32_t* words, int64_t at, LatentStep& step);

 private:
  int64_t list_absorbed(const Batch& batch, int32_t* words, int64_t at, LatentStep& step) const;

  int32_t num_heads_ = 0;
  int32_t capacity_ = 0;
  ops::MlaPrefillChoice choice_ = ops::MlaPrefillChoice::kCheaper;
  std::vector<uint8_t> chosen_;
  std::vector<ops::MlaPrefillRow> rows_;
  std::vector<ops::MlaPrefillItem> tiles_;
  std::vector<ops::MlaPrefillPass> passes_;
};

}  // namespace vayu::model
