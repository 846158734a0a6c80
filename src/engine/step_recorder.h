// What the steps of a window are recorded with. The device's is CUPTI (telemetry/kernel_trace.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "ops/cuda/types.h"
#include "telemetry/kernel_trace.h"

namespace vayu {

class StepRecorder {
 public:
  virtual ~StepRecorder() = default;
  virtual const std::string& device() const = 0;
  virtual Status settle() = 0;  // waits until the device has done all that it was given
  virtual Status start() = 0;
  // Everything since start(), by start. The device must be idle.
  virtual Result<std::vector<KernelRecord>> stop() = 0;
  virtual int64_t now_ns() const = 0;  // on the clock of the records
};

// Ahead of loading a model: the kernels of a graph are seen one by one where records were on when it was captured.
// Errors: kUnsupported without CUPTI or without CUDA, kUnavailable with CUPTI's reason.
Status prepare_device_recorder();
// Behind it: nothing is recorded from here on, but between start() and stop(). `stream`: where all steps go.
Result<std::unique_ptr<StepRecorder>> open_device_recorder(ops::CudaStream stream);

}  // namespace vayu
