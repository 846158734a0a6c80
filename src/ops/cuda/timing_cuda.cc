#include "ops/cuda/timing.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "ops/cuda/device.h"

namespace vayu::ops {

Result<double> median_us(const std::function<void(CudaStream)>& call, const TimingOptions& options) {
  VAYU_ASSIGN_OR_RETURN(CudaStream stream, create_stream());
  DeviceMemory flush;
  if (options.cold_l2) {
    VAYU_ASSIGN_OR_RETURN(flush, DeviceMemory::create(int64_t{256} << 20));
  }
  std::vector<cudaEvent_t> begin(options.repeats), end(options.repeats);
  for (int i = 0; i < options.repeats; ++i) {
    cudaEventCreate(&begin[i]);
    cudaEventCreate(&end[i]);
  }
  for (int i = 0; i < options.warm_ups; ++i) call(stream);
  for (int i = 0; i < options.repeats; ++i) {
    if (options.cold_l2) cudaMemsetAsync(flush.data(), i, static_cast<size_t>(flush.bytes()), stream);
    cudaEventRecord(begin[i], stream);
    call(stream);
    cudaEventRecord(end[i], stream);
  }
  const Status landed = synchronize(stream);
  std::vector<float> times(options.repeats);
  for (int i = 0; i < options.repeats; ++i) {
    cudaEventElapsedTime(&times[i], begin[i], end[i]);
    cudaEventDestroy(begin[i]);
    cudaEventDestroy(end[i]);
  }
  destroy_stream(stream);
  VAYU_RETURN_IF_ERROR(landed);
  VAYU_RETURN_IF_ERROR(last_launch("timed call"));
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2] * 1e3;
}

}  // namespace vayu::ops
