#include "apps/profile.h"

#include <algorithm>

#include "apps/bench_steps.h"
#include "engine/cuda_executor.h"

namespace vayu::bench {
namespace {

constexpr int kWarmUps = 3;

int32_t longest_row(const ProfileOptions& o) {
  int32_t longest = o.decode_rows > 0 ? o.context : 1;
  for (const int32_t prompt : o.prompts) longest = std::max(longest, prompt);
  return longest;
}

StepBatch mixed_batch(const ProfileOptions& o, const ExecutorLimits& limits, int32_t pages_each) {
  StepBatch batch(limits.vocab_size, limits.page_size, pages_each);
  for (int32_t row = 0; row < o.decode_rows; ++row) batch.add(row, o.context - 1, 1);
  for (size_t i = 0; i < o.prompts.size(); ++i) batch.add(o.decode_rows + static_cast<int32_t>(i), 0, o.prompts[i]);
  return batch;
}

}  // namespace

Result<StepProfile> profile_steps(const ProfileOptions& o) {
  StepProfile profile;
  VAYU_ASSIGN_OR_RETURN(profile.device, CudaExecutor::device_name());
  VAYU_RETURN_IF_ERROR(KernelTrace::start());  // ahead of the graphs
  int32_t step_tokens = o.decode_rows;
  for (const int32_t prompt : o.prompts) step_tokens += prompt;
  const int32_t rows = o.decode_rows + static_cast<int32_t>(o.prompts.size()), longest = longest_row(o);
  VAYU_ASSIGN_OR_RETURN(DeviceSetup setup,
                        open_for_steps(o.model, o.options, rows, longest, std::max(step_tokens, longest)));
  CudaExecutor& executor = *setup.executor;
  const ExecutorLimits& limits = executor.limits();
  const int32_t pages_each = (longest + limits.page_size - 1) / limits.page_size;
  VAYU_RETURN_IF_ERROR(fill_contexts(executor, o.decode_rows, o.context, pages_each));
  StepBatch batch = mixed_batch(o, limits, pages_each);
  profile.steps.assign(o.steps, {batch.batch().num_tokens(), batch.batch().num_rows()});
  for (int i = 0; i < kWarmUps; ++i) VAYU_RETURN_IF_ERROR(run_step(executor, batch));
  VAYU_RETURN_IF_ERROR(KernelTrace::discard());
  StepOutput output;
  for (int32_t step = 0; step < o.steps; ++step) {
    batch.draw_tokens();
    const int64_t begin = KernelTrace::now_ns();
    executor.launch(batch.batch());
    const int64_t launched = KernelTrace::now_ns();
    executor.wait(output);
    const int64_t end = KernelTrace::now_ns();
    if (output.failure) return *output.failure;
    profile.spans.push_back({"launch", begin, launched});
    profile.spans.push_back({"wait", launched, end});
    profile.host_us += static_cast<double>(end - begin) * 1e-3;
  }
  VAYU_ASSIGN_OR_RETURN(profile.records, KernelTrace::stop());
  return profile;
}

}  // namespace vayu::bench
