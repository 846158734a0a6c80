// The executor over a model in this process: forward, then sampling, on the thread pool it owns.
#pragma once

#include <memory>

#include "core/executor.h"
#include "loader/checkpoint.h"
#include "model/memory.h"
#include "model/model.h"
#include "ops/cpu/thread_pool.h"

namespace vayu {

struct ModelExecutorOptions {
  int num_threads = 0;            // 0: the cores this process may use
  model::ModelLoadOptions model;  // ops.pool is filled in
};

class ModelExecutor final : public Executor {
 public:
  // Errors: those of Model::load.
  static Result<std::unique_ptr<ModelExecutor>> load(model::Recipe recipe, const loader::Checkpoint& checkpoint,
                                                     ModelExecutorOptions options);

  const ExecutorLimits& limits() const override { return limits_; }
  void launch(const Batch& batch) override;
  void wait(StepOutput& output) override;

  const model::Model& model() const { return *model_; }
  int num_threads() const { return pool_->num_threads(); }
  int64_t logits_bytes() const { return logits_.bytes() + sample_scratch_.bytes(); }

 private:
  ModelExecutor() = default;

  std::unique_ptr<ThreadPool> pool_;
  ops::OpContext ops_;
  std::unique_ptr<model::Model> model_;
  ExecutorLimits limits_;
  model::AnonymousMemory logits_;  // (max_logits, vocab_size) floats
  model::AnonymousMemory sample_scratch_;
  const Batch* running_ = nullptr;
};

}  // namespace vayu
