#include "engine/cuda_executor.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "model/device_limits.h"
#include "model/device_model.h"
#include "ops/cpu/thread_pool.h"
#include "ops/cuda/device.h"
#include "ops/sampling/device_sample_table.h"

namespace vayu {
namespace {

constexpr double kGiB = 1 << 30;
// Words of lists a row may need beyond its tokens: logit_bias and banned ids as the API limits them.
constexpr int64_t kListWordsBesideTokens = 8192;

Status to_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return make_error(ErrorKind::kUnavailable, "CUDA: {}: {}", what, cudaGetErrorString(error));
}

// A step under way, or the place of one.
struct Step {
  cudaEvent_t landed = nullptr;  // behind the step's results
  int32_t num_samples = 0;
};

// Steps run in launch order on one stream; all that a step reads on the device is written on that stream, behind the
// step before. Only host memory needs two places: the batch, the sampling tasks and the results. And the sampled tokens
// have two, since a step's penalties read those of the step before while its sampling writes.
class CudaExecutorImpl final : public CudaExecutor {
 public:
  ~CudaExecutorImpl() override {
    if (stream_) static_cast<void>(ops::synchronize(stream_));  // copies to and from memory that goes now
    for (const Step& step : steps_) {
      if (step.landed) cudaEventDestroy(step.landed);
    }
    if (stream_) ops::destroy_stream(stream_);
  }

  Status load(model::Recipe recipe, const loader::Checkpoint& checkpoint, const CudaExecutorOptions& options) {
    VAYU_ASSIGN_OR_RETURN(const ops::DeviceInfo device, ops::open_device());
    device_ = device.name;
    VAYU_ASSIGN_OR_RETURN(stream_, ops::create_stream());
    for (Step& step : steps_) {
      VAYU_RETURN_IF_ERROR(to_status(cudaEventCreateWithFlags(&step.landed, cudaEventDisableTiming), "event"));
    }
    overlaps_ = options.overlap;
    max_samples_ = std::max(options.model.max_logits, options.model.max_rows);
    prev_samples_.reserve(max_samples_);
    const int32_t context = options.model.max_context > 0 ? options.model.max_context : recipe.config.max_context;
    model::DeviceModelOptions planned = options.model;
    planned.max_context = context;
    VAYU_RETURN_IF_ERROR(model::check_device_flags(recipe.config, planned));  // the sampling table grows with them
    const ops::DeviceSampleCapacity capacity{
        .max_samples = max_samples_,
        .max_edited_rows = options.model.max_rows,
        .vocab_size = recipe.config.vocab_size,
        .max_list_words = options.model.max_rows * (context + kListWordsBesideTokens)};
    // Ahead of the model, which takes what is left for pages.
    auto samples = ops::DeviceSampleTable::create(capacity);
    if (!samples.ok()) {
      return Error{samples.error().kind,
                   fmt::format("sampling for --max-num-seqs {} and --max-model-len {}: {}", options.model.max_rows,
                               context, samples.error().message),
                   "--max-num-seqs"};
    }
    samples_ = std::move(*samples);
    VAYU_ASSIGN_OR_RETURN(sampled_, ops::DeviceMemory::create(2 * max_samples_ * int64_t{sizeof(int32_t)}));
    ThreadPool pool(options.num_threads);
    planned.pool = &pool;
    planned.prev_tokens = sampled_tokens(0);
    planned.graphs = options.graphs;
    planned.workspace_taken = ops::DeviceSampleTable::device_bytes(capacity) + sampled_.bytes();
    VAYU_ASSIGN_OR_RETURN(model_, model::DeviceModel::load(std::move(recipe), checkpoint, std::move(planned)));
    if (options.graphs) VAYU_RETURN_IF_ERROR(model_->capture_graphs(stream_));
    limits_ = {.vocab_size = model_->config().vocab_size,
               .page_size = model::kDevicePageSize,
               .num_pages = model_->options().num_pages,
               .max_step_tokens = options.model.max_step_tokens,
               .max_rows = options.model.max_rows,
               .max_context = model_->options().max_context};
    return {};
  }

  const ExecutorLimits& limits() const override { return limits_; }

  bool overlaps() const override { return overlaps_; }

  void launch(const Batch& batch) override {
    VAYU_CHECK(launches_ - waits_ < (overlaps_ ? 2 : 1), "{} steps are under way already", launches_ - waits_);
    const auto turn = static_cast<int>(launches_++ % 2);
    if (failure_.ok()) failure_ = enqueue(batch, turn);
  }

  void wait(StepOutput& output) override {
    VAYU_CHECK(launches_ > waits_, "no step is under way");
    const Step& step = steps_[waits_++ % 2];
    if (failure_.ok()) failure_ = to_status(cudaEventSynchronize(step.landed), "wait for a step");
    output.results.clear();
    if (!failure_.ok()) {
      output.failure = failure_.error();
    } else if (step.num_samples > 0) {
      samples_.read_results(output.results);
    }
  }

  ops::CudaStream stream() const override { return stream_; }

  std::string memory_plan() const override {
    const model::DeviceMemoryPlan& m = model_->memory();
    return fmt::format(
        "{}: weights {:.2f} GiB, KV pages {:.2f} GiB ({} tokens in {} pages), workspace {:.2f} GiB, graphs {:.2f} GiB, "
        "context with kernels and other processes {:.2f} GiB, reserve {:.2f} of {:.2f} GiB",
        device_, m.weights / kGiB, m.kv_pages / kGiB, int64_t{limits_.num_pages} * limits_.page_size, limits_.num_pages,
        m.workspace / kGiB, m.graphs / kGiB, m.other / kGiB, m.free / kGiB, m.total / kGiB);
  }

 private:
  int32_t* sampled_tokens(int turn) const { return reinterpret_cast<int32_t*>(sampled_.data()) + turn * max_samples_; }

  Status enqueue(const Batch& batch, int turn) {
    const int32_t num_samples = batch.num_logits();
    steps_[turn].num_samples = num_samples;
    const int before = turn ^ 1;
    prev_samples_.clear();
    if (!batch.prev_samples.empty()) {
      for (const SampleTask& task : batch.samples) prev_samples_.push_back(task.prev_sample);
    }
    if (num_samples > 0) VAYU_RETURN_IF_ERROR(samples_.upload(batch.samples, prev_samples_, num_samples, stream_));
    VAYU_RETURN_IF_ERROR(model_->launch(batch, stream_, before * max_samples_));
    if (num_samples > 0) {
      ops::DeviceSampleArgs args =
          samples_.args(model_->logits(), limits_.vocab_size, num_samples, sampled_tokens(turn));
      args.prev_tokens = sampled_tokens(before);
      args.draw = samples_.draw_needed();
      ops::device_sample_cuda(stream_, args);
      VAYU_RETURN_IF_ERROR(ops::last_launch("sampling"));
      VAYU_RETURN_IF_ERROR(samples_.download(stream_));
    }
    return to_status(cudaEventRecord(steps_[turn].landed, stream_), "event");
  }

  std::string device_;
  ops::CudaStream stream_ = nullptr;
  ops::DeviceSampleTable samples_;
  ops::DeviceMemory sampled_;  // (2, max_samples_) tokens of the step before and of this one, in turn
  int32_t max_samples_ = 0;
  std::vector<int32_t> prev_samples_;  // of the step being launched
  std::unique_ptr<model::DeviceModel> model_;
  ExecutorLimits limits_;
  bool overlaps_ = false;
  Step steps_[2];
  int64_t launches_ = 0;
  int64_t waits_ = 0;
  Status failure_;  // once set, for good
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
