#include "ops/cuda/flush.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace vayu::ops {
namespace {

__global__ void read_all(const uint4* data, int64_t count, uint32_t* sink) {
  uint32_t sum = 0;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const uint4 v = data[i];
    sum ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x12345678) *sink = sum;
}

}  // namespace

void read_memory_cuda(CudaStream stream, const void* data, int64_t bytes) {
  auto* sink = static_cast<uint32_t*>(const_cast<void*>(data));
  read_all<<<1056, 256, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16, sink);
}

}  // namespace vayu::ops
