#include <algorithm>
#include <vector>

#include "apps/bench_steps.h"
#include "base/clock.h"
#include "engine/cuda_executor.h"
#include "ops/cuda/device.h"
#include "ops/cuda/flush.h"
#include "ops/cuda/timing.h"

namespace vayu::bench {
namespace {

constexpr int kWarmUps = 3;
constexpr int64_t kHeadStartBytes = int64_t{1} << 30;  // 0.25 ms of reading
// A prompt's kernels are launched one by one, some 300 of them.
constexpr int kGraphHeadStarts = 1, kPromptHeadStarts = 12;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

Result<double> read_speed_gb_s() {
  VAYU_ASSIGN_OR_RETURN(const ops::MemorySpeed speed, ops::measure_memory_speed());
  return speed.read_gb_s;
}

Result<DeviceSetup> open_for_steps(const std::string& model, LocalModelOptions options, int32_t rows, int32_t tokens,
                                   int32_t step_tokens) {
  const int64_t page = options.page_size;
  options.max_num_seqs = rows;
  // Decode graphs are captured for the contexts of a server: the shortest kind goes to 8,192 tokens.
  options.max_model_len = std::max<int64_t>(tokens + page, 8192);
  options.max_total_tokens = rows * ((tokens + page - 1) / page) * page;
  options.max_num_batched_tokens = std::max(step_tokens, rows);
  return open_device_model(model, options);
}

Status run_step(CudaExecutor& executor, const StepBatch& batch, ops::StreamTimer* timer) {
  StepOutput output;
  if (timer) timer->begin(executor.stream());
  executor.launch(batch.batch());
  if (timer) timer->end(executor.stream());
  executor.wait(output);
  for (const SampleResult& result : output.results) {
    if (!result.finite) return make_error(ErrorKind::kCorrupt, "a step without finite logits");
  }
  if (static_cast<int32_t>(output.results.size()) != batch.batch().num_logits()) {
    return make_error(ErrorKind::kUnavailable, "a step without results: the device has failed");
  }
  return {};
}

Status fill_contexts(CudaExecutor& executor, int32_t rows, int32_t context, int32_t pages_each) {
  const ExecutorLimits& limits = executor.limits();
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t first = 0; first < context; first += limits.max_step_tokens) {
      StepBatch batch(limits.vocab_size, limits.page_size, pages_each);
      batch.add(row, first, std::min(context - first, limits.max_step_tokens));
      VAYU_RETURN_IF_ERROR(run_step(executor, batch));
    }
  }
  return {};
}

Result<MeasuredStep> measure_step(CudaExecutor& executor, StepBatch& batch, int32_t repeats) {
  const SteadyClock clock;
  std::vector<double> wall, device;
  for (int32_t i = -kWarmUps; i < repeats; ++i) {
    batch.draw_tokens();
    const int64_t start_us = clock.now_us();
    VAYU_RETURN_IF_ERROR(run_step(executor, batch));
    if (i >= 0) wall.push_back(static_cast<double>(clock.now_us() - start_us));
  }
  VAYU_ASSIGN_OR_RETURN(const ops::DeviceMemory head_start, ops::DeviceMemory::create(kHeadStartBytes));
  ops::StreamTimer timer;
  const bool decode = batch.batch().num_rows() == batch.batch().num_tokens();
  for (int32_t i = 0; i < repeats; ++i) {
    batch.draw_tokens();
    for (int n = 0; n < (decode ? kGraphHeadStarts : kPromptHeadStarts); ++n) {
      ops::read_memory_cuda(executor.stream(), head_start.data(), head_start.bytes());
    }
    VAYU_RETURN_IF_ERROR(run_step(executor, batch, &timer));
    device.push_back(timer.us());
  }
  return MeasuredStep{median(std::move(wall)), median(std::move(device))};
}

}  // namespace vayu::bench
