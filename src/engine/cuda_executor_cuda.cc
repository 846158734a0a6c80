#include "engine/cuda_executor.h"

#include "base/check.h"
#include "model/device_model.h"
#include "ops/cpu/thread_pool.h"
#include "ops/cuda/device.h"
#include "ops/sampling/device_sample_table.h"

namespace vayu {
namespace {

constexpr double kGiB = 1 << 30;
// Words of lists a row may need beyond its tokens: logit_bias and banned ids as the API limits them.
constexpr int64_t kListWordsBesideTokens = 8192;

class CudaExecutorImpl final : public CudaExecutor {
 public:
  ~CudaExecutorImpl() override {
    if (stream_) ops::destroy_stream(stream_);
  }

  Status load(model::Recipe recipe, const loader::Checkpoint& checkpoint, const CudaExecutorOptions& options) {
    VAYU_ASSIGN_OR_RETURN(const ops::DeviceInfo device, ops::open_device());
    device_ = device.name;
    VAYU_ASSIGN_OR_RETURN(stream_, ops::create_stream());
    const int32_t context = options.max_context > 0 ? options.max_context : recipe.config.max_context;
    // Ahead of the model, which takes all memory that is left.
    VAYU_ASSIGN_OR_RETURN(samples_, ops::DeviceSampleTable::create(
                                        {.max_samples = std::max(options.max_logits, options.max_rows),
                                         .max_edited_rows = options.max_rows,
                                         .vocab_size = recipe.config.vocab_size,
                                         .max_list_words = options.max_rows * (context + kListWordsBesideTokens)}));
    VAYU_ASSIGN_OR_RETURN(next_tokens_, ops::DeviceMemory::create(options.max_logits * int64_t{sizeof(int32_t)}));
    ThreadPool pool(options.num_threads);
    VAYU_ASSIGN_OR_RETURN(model_, model::DeviceModel::load(std::move(recipe), checkpoint,
                                                           {.f8_weights = options.f8_weights,
                                                            .kv_format = options.kv_format == CudaKvFormat::kBF16
                                                                             ? ops::DeviceKvFormat::kBF16
                                                                             : ops::DeviceKvFormat::kF8E4M3,
                                                            .num_pages = options.num_pages,
                                                            .memory_fraction = options.memory_fraction,
                                                            .max_step_tokens = options.max_step_tokens,
                                                            .max_rows = options.max_rows,
                                                            .max_logits = options.max_logits,
                                                            .max_context = options.max_context,
                                                            .pool = &pool,
                                                            .progress = options.progress}));
    if (options.graphs) VAYU_RETURN_IF_ERROR(model_->capture_graphs(stream_));
    limits_ = {.vocab_size = model_->config().vocab_size,
               .page_size = model::kDevicePageSize,
               .num_pages = model_->options().num_pages,
               .max_step_tokens = options.max_step_tokens,
               .max_rows = options.max_rows,
               .max_context = model_->options().max_context};
    return {};
  }

  const ExecutorLimits& limits() const override { return limits_; }

  void launch(const Batch& batch) override {
    VAYU_CHECK(running_ == nullptr, "a step is running already");
    running_ = &batch;
    failure_ = enqueue(batch);
  }

  void wait(StepOutput& output) override {
    VAYU_CHECK(running_ != nullptr, "no step is running");
    if (failure_.ok()) failure_ = ops::synchronize(stream_);
    output.results.clear();
    if (!failure_.ok()) {
      output.failure = failure_.error();
    } else if (running_->num_logits() > 0) {
      samples_.read_results(output.results);
    }
    running_ = nullptr;
  }

  ops::CudaStream stream() const override { return stream_; }

  std::string memory_plan() const override {
    const model::DeviceMemoryPlan& m = model_->memory();
    return fmt::format(
        "{}: weights {:.2f} GiB, KV pages {:.2f} GiB ({} tokens in {} pages), workspace {:.2f} GiB, reserve {:.2f} of "
        "{:.2f} GiB",
        device_, m.weights / kGiB, m.kv_pages / kGiB, int64_t{limits_.num_pages} * limits_.page_size, limits_.num_pages,
        m.workspace / kGiB, m.free / kGiB, m.total / kGiB);
  }

 private:
  Status enqueue(const Batch& batch) {
    const int32_t num_samples = batch.num_logits();
    if (num_samples > 0) VAYU_RETURN_IF_ERROR(samples_.upload(batch.samples, {}, num_samples, stream_));
    VAYU_RETURN_IF_ERROR(model_->launch(batch, stream_));
    if (num_samples == 0) return {};
    ops::DeviceSampleArgs args = samples_.args(model_->logits(), limits_.vocab_size, num_samples,
                                               reinterpret_cast<int32_t*>(next_tokens_.data()));
    args.draw = samples_.draw_needed();
    ops::device_sample_cuda(stream_, args);
    VAYU_RETURN_IF_ERROR(ops::last_launch("sampling"));
    return samples_.download(stream_);
  }

  std::string device_;
  ops::CudaStream stream_ = nullptr;
  ops::DeviceSampleTable samples_;
  ops::DeviceMemory next_tokens_;  // (max_logits)
  std::unique_ptr<model::DeviceModel> model_;
  ExecutorLimits limits_;
  const Batch* running_ = nullptr;
  Status failure_;
};

}  // namespace

bool CudaExecutor::built() { return true; }

Result<std::string> CudaExecutor::device_name() {
  VAYU_ASSIGN_OR_RETURN(const ops::DeviceInfo device, ops::open_device());
  return device.name;
}

Result<std::unique_ptr<CudaExecutor>> CudaExecutor::load(model::Recipe recipe, const loader::Checkpoint& checkpoint,
                                                         const CudaExecutorOptions& options) {
  auto executor = std::make_unique<CudaExecutorImpl>();
  VAYU_RETURN_IF_ERROR(executor->load(std::move(recipe), checkpoint, options));
  return std::unique_ptr<CudaExecutor>(std::move(executor));
}

}  // namespace vayu
