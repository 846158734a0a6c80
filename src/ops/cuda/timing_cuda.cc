#include "ops/cuda/timing.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "ops/cuda/device.h"
#include "ops/cuda/flush.h"

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
    if (options.cold_l2) read_memory_cuda(stream, flush.data(), flush.bytes());
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

Result<double> chained_us(const std::function<void(CudaStream, int)>& call, int count, int repeats) {
  VAYU_ASSIGN_OR_RETURN(CudaStream stream, create_stream());
  for (int i = 0; i < count; ++i) call(stream, i);
  VAYU_RETURN_IF_ERROR(synchronize(stream));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  for (int i = 0; i < count; ++i) call(stream, i);
  cudaStreamEndCapture(stream, &graph);
  if (cudaGraphInstantiate(&executable, graph, 0) != cudaSuccess) {
    return make_error(ErrorKind::kUnavailable, "CUDA: a chain of {} calls cannot be made a graph", count);
  }
  std::vector<float> times(repeats);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  for (int i = -2; i < repeats; ++i) {
    cudaEventRecord(begin, stream);
    cudaGraphLaunch(executable, stream);
    cudaEventRecord(end, stream);
    VAYU_RETURN_IF_ERROR(synchronize(stream));
    if (i >= 0) cudaEventElapsedTime(&times[i], begin, end);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  destroy_stream(stream);
  VAYU_RETURN_IF_ERROR(last_launch("chained calls"));
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2] * 1e3 / count;
}

StreamTimer::StreamTimer() {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  begin_ = begin;
  end_ = end;
}

StreamTimer::~StreamTimer() {
  if (begin_) cudaEventDestroy(static_cast<cudaEvent_t>(begin_));
  if (end_) cudaEventDestroy(static_cast<cudaEvent_t>(end_));
}

void StreamTimer::begin(CudaStream stream) { cudaEventRecord(static_cast<cudaEvent_t>(begin_), stream); }
void StreamTimer::end(CudaStream stream) { cudaEventRecord(static_cast<cudaEvent_t>(end_), stream); }

double StreamTimer::us() const {
  float ms = 0;
  cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(begin_), static_cast<cudaEvent_t>(end_));
  return ms * 1e3;
}

Result<MemorySpeed> measure_memory_speed() {
  constexpr int64_t kBytes = int64_t{4} << 30;
  VAYU_ASSIGN_OR_RETURN(const DeviceMemory memory, DeviceMemory::create(kBytes));
  const TimingOptions options{.warm_ups = 2, .repeats = 10, .cold_l2 = false};
  VAYU_ASSIGN_OR_RETURN(
      const double read_us,
      median_us([&](CudaStream stream) { read_memory_cuda(stream, memory.data(), kBytes); }, options));
  VAYU_ASSIGN_OR_RETURN(const double copy_us, median_us(
                                                  [&](CudaStream stream) {
                                                    cudaMemcpyAsync(memory.data(), memory.data() + kBytes / 2,
                                                                    kBytes / 2, cudaMemcpyDeviceToDevice, stream);
                                                  },
                                                  options));
  return MemorySpeed{.read_gb_s = kBytes / read_us * 1e-3, .copy_gb_s = kBytes / copy_us * 1e-3};
}

}  // namespace vayu::ops
