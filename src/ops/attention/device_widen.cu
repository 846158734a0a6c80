// A block a page. What bounds it is memory: 3,584 tokens of 4 kv heads of dimension 64 are 1.8 MB to read and 3.7 to
// write, 1.3 us at 4.3 TB/s (the writes stay in the second-level cache, where attention finds them); the rest of 3 us
// is the trip to memory.
#include "ops/attention/device_widen.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/require.h"
#include "ops/cuda/vector.cuh"

namespace vayu::ops {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ uint32_t widen_pair(uint32_t f8x2) {
  const __half2_raw half = __nv_cvt_fp8x2_to_halfraw2(static_cast<uint16_t>(f8x2), __NV_E4M3);
  const float2 v = __half22float2(__half2(half));
  return pack_bf16x2(v.x, v.y);
}

__global__ void __launch_bounds__(kThreads) widen_kernel(const WidenPagesArgs args) {
  const int64_t page = args.sources[blockIdx.x];
  const auto* from = reinterpret_cast<const uint2*>(args.from + page * args.page_elements);
  auto* to = reinterpret_cast<uint4*>(args.to + blockIdx.x * args.page_elements);
  const int vectors = static_cast<int>(args.page_elements / 8);
  wait_for_inputs();
  let_next_start();
#pragma unroll 4
  for (int i = threadIdx.x; i < vectors; i += kThreads) {
    const uint2 v = from[i];
    to[i] = make_uint4(widen_pair(v.x), widen_pair(v.x >> 16), widen_pair(v.y), widen_pair(v.y >> 16));
  }
}

}  // namespace

void widen_pages_cuda(CudaStream stream, const WidenPagesArgs& args) {
  if (args.num_pages == 0) return;
  VAYU_REQUIRE(args.page_elements % 16 == 0, "whole vectors");
  launch_overlapped(widen_kernel, {.grid = dim3(args.num_pages), .block = dim3(kThreads)}, stream, args);
}

}  // namespace vayu::ops
