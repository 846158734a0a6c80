#include "engine/cuda_executor.h"
#include "engine/step_recorder.h"
#include "ops/cuda/device.h"

namespace vayu {
namespace {

class DeviceRecorder final : public StepRecorder {
 public:
  DeviceRecorder(std::string device, ops::CudaStream stream) : device_(std::move(device)), stream_(stream) {}

  const std::string& device() const override { return device_; }
  Status settle() override { return ops::synchronize(stream_); }
  Status start() override { return KernelTrace::start(); }
  Result<std::vector<KernelRecord>> stop() override { return KernelTrace::stop(); }
  int64_t now_ns() const override { return KernelTrace::now_ns(); }

 private:
  const std::string device_;
  const ops::CudaStream stream_;
};

}  // namespace

Status prepare_device_recorder() {
  const Status started = KernelTrace::start();
  if (started.ok()) return {};
  return make_error(started.error().kind, "--enable-profiling: {}", started.error().message);
}

Result<std::unique_ptr<StepRecorder>> open_device_recorder(ops::CudaStream stream) {
  VAYU_ASSIGN_OR_RETURN(std::string device, CudaExecutor::device_name());
  auto recorder = std::make_unique<DeviceRecorder>(std::move(device), stream);
  VAYU_RETURN_IF_ERROR(recorder->settle());
  VAYU_ASSIGN_OR_RETURN([[maybe_unused]] const auto loading, recorder->stop());
  return std::unique_ptr<StepRecorder>(std::move(recorder));
}

}  // namespace vayu
