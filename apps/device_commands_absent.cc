// In place of what measures on the device, where the binary is built without CUDA.
#include "apps/bench_kernels.h"
#include "apps/bench_steps.h"
#include "apps/profile.h"
#include "engine/cuda_executor.h"

namespace vayu::bench {
namespace {

Error absent() { return CudaExecutor::device_name().error(); }

}  // namespace

Result<KernelBenchResult> measure_kernels(const KernelBenchOptions&) { return absent(); }
Result<double> read_speed_gb_s() { return absent(); }
Result<DeviceSetup> open_for_steps(const std::string&, LocalModelOptions, int32_t, int32_t, int32_t) {
  return absent();
}
Status fill_contexts(CudaExecutor&, int32_t, int32_t, int32_t) { return absent(); }
Status run_step(CudaExecutor&, const StepBatch&, ops::StreamTimer*) { return absent(); }
Result<MeasuredStep> measure_step(CudaExecutor&, StepBatch&, int32_t) { return absent(); }
Result<StepProfile> profile_steps(const ProfileOptions&) { return absent(); }

}  // namespace vayu::bench
