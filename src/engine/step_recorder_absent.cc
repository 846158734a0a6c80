// In place of step_recorder_cuda.cc where the binary is built without CUDA.
#include "engine/cuda_executor.h"
#include "engine/step_recorder.h"

namespace vayu {

Status prepare_device_recorder() { return CudaExecutor::device_name().error(); }

Result<std::unique_ptr<StepRecorder>> open_device_recorder(ops::CudaStream) {
  return CudaExecutor::device_name().error();
}

}  // namespace vayu
