// Running steps on a model in device memory, for `vayu bench steps` and `vayu profile` (bench_steps_cuda.cc).
#pragma once

#include <string>

#include "apps/bench/step_batches.h"
#include "apps/local_model.h"
#include "base/result.h"

namespace vayu::ops {
class StreamTimer;
}

namespace vayu::bench {

struct MeasuredStep {  // medians
  double wall_us = 0;
  double device_us = 0;
};

Result<double> read_speed_gb_s();
// Loads MODEL with room for `rows` sequences of `tokens` and steps of `step_tokens`.
Result<DeviceSetup> open_for_steps(const std::string& model, LocalModelOptions options, int32_t rows, int32_t tokens,
                                   int32_t step_tokens);
// K and V of sequences [0, rows), made by the model from random prompts of `context` tokens.
Status fill_contexts(CudaExecutor& executor, int32_t rows, int32_t context, int32_t pages_each);
// `timer`, if any, gets the device's time.
Status run_step(CudaExecutor& executor, const StepBatch& batch, ops::StreamTimer* timer = nullptr);
Result<MeasuredStep> measure_step(CudaExecutor& executor, StepBatch& batch, int32_t repeats);

}  // namespace vayu::bench
