// A decoder ready to run: weights, KV pages and every buffer of a step, all planned at load.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/batch.h"
#include "loader/checkpoint.h"
#include "model/logit_model.h"
#include "model/memory.h"
#include "model/recipe.h"

namespace vayu::model {

struct ModelLoadOptions {
  ops::OpContext ops;
  ops::KvFormat kv_format = ops::KvFormat::kF16;
  int32_t page_size = 16;                   // tokens
  int32_t num_pages = 0;                    // KV pages, each holding page_size tokens of all layers
  int32_t max_step_tokens = 512;            // most tokens of one batch
  int32_t max_rows = 64;                    // most rows of one batch
  int32_t max_logits = 64;                  // most logit rows of one batch
  int32_t max_context = 0;                  // longest sequence in tokens; 0: what the model allows
  std::optional<DataFormat> weight_format;  // see WeightOptions
  std::vector<std::string> quantization_ignore;
  LoadProgress progress;  // may be empty
};

struct ModelMemory {
  int64_t weight_bytes = 0;
  int64_t kv_bytes = 0;         // reserved; resident only where a page was written
  int64_t workspace_bytes = 0;  // reserved; resident as far as the largest step so far
};

// Bytes one KV page takes over all layers: what a memory budget is divided by to get num_pages.
int64_t kv_bytes_per_page(const ModelConfig& config, ops::KvFormat format, int32_t page_size);

class Model final : public LogitModel {
 public:
  // The checkpoint is not needed afterwards. Errors: those of load_weights; kInvalidArgument naming the option.
  static Result<std::unique_ptr<Model>> load(Recipe recipe, const loader::Checkpoint& checkpoint,
                                             const ModelLoadOptions& options);

  const ModelConfig& config() const override { return recipe_.config; }
  LogitLimits logit_limits() const override { return {options_.max_logits, options_.max_rows, options_.page_size}; }
  const ModelLoadOptions& options() const { return options_; }  // max_context resolved
  int64_t kv_bytes_per_page() const;
  const ModelMemory& memory() const { return memory_; }

  // Runs one step and writes the logits of batch.logit_rows. logits: (num_logits, vocab_size), 64-byte aligned for
  // speed. One caller at a time. Allocates nothing. The batch must respect the limits of the options: token ids below
  // vocab_size, positions below max_context, pages below num_pages.
  // observer, when given, sees the router's choices of each MoE layer.
  void forward(const Batch& batch, float* logits, const RouterObserver* observer = nullptr);
  Status compute_logits(const Batch& batch, float* logits, const RouterObserver* observer) override {
    forward(batch, logits, observer);
    return {};
  }

 private:
  Model(Recipe recipe, ModelLoadOptions options) : recipe_(std::move(recipe)), options_(std::move(options)) {}
  Status plan_workspace();
  Status reserve_kv();
  void check_batch(const Batch& batch) const;
  ops::KvLayer kv_layer(int32_t layer) const;

  Recipe recipe_;
  ModelLoadOptions options_;
  ModelWeights weights_;
  RopeFrequencies rope_;
  AnonymousMemory kv_;         // (num_layers, num_pages, page_bytes)
  AnonymousMemory workspace_;  // Activations
  Activations act_;
  ModelMemory memory_;
};

}  // namespace vayu::model
