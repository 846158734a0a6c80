#include "engine/model_executor.h"

#include "ops/sampling/sample.h"

namespace vayu {

Result<std::unique_ptr<ModelExecutor>> ModelExecutor::load(model::Recipe recipe, const loader::Checkpoint& checkpoint,
                                                           ModelExecutorOptions options) {
  std::unique_ptr<ModelExecutor> executor(new ModelExecutor);
  executor->pool_ = std::make_unique<ThreadPool>(options.num_threads);
  executor->ops_ = options.model.ops;
  executor->ops_.pool = executor->pool_.get();
  options.model.ops = executor->ops_;
  VAYU_ASSIGN_OR_RETURN(executor->model_, model::Model::load(std::move(recipe), checkpoint, options.model));

  const model::ModelLoadOptions& planned = executor->model_->options();
  const int64_t vocab_size = executor->model_->config().vocab_size;
  executor->limits_ = {.vocab_size = static_cast<int32_t>(vocab_size),
                       .page_size = planned.page_size,
                       .num_pages = planned.num_pages,
                       .max_step_tokens = planned.max_step_tokens,
                       .max_rows = planned.max_rows,
                       .max_context = planned.max_context};
  VAYU_ASSIGN_OR_RETURN(executor->logits_,
                        model::AnonymousMemory::create(planned.max_logits * vocab_size * int64_t{sizeof(float)}));
  VAYU_ASSIGN_OR_RETURN(executor->sample_scratch_,
                        model::AnonymousMemory::create(ops::sample_scratch_bytes(executor->ops_, vocab_size)));
  return executor;
}

// The CPU has no second queue to run on: the step is done when launch returns.
void ModelExecutor::launch(const Batch& batch) {
  VAYU_CHECK(running_ == nullptr, "a step is running already");
  running_ = &batch;
  model_->forward(batch, reinterpret_cast<float*>(logits_.data()));
}

void ModelExecutor::wait(StepOutput& output) {
  VAYU_CHECK(running_ != nullptr, "no step is running");
  output.results.resize(running_->samples.size());
  ops::sample(ops_, {.logits = reinterpret_cast<const float*>(logits_.data()),
                     .vocab_size = limits_.vocab_size,
                     .tasks = running_->samples.data(),
                     .results = output.results.data(),
                     .num_samples = running_->num_logits(),
                     .scratch = sample_scratch_.data()});
  running_ = nullptr;
}

}  // namespace vayu
