// Seeded random weights made where they are needed: 32 G elements take about 0.3 s (some 40 integer and 3 double
// operations each) where 16 cores would take half a minute. A thread makes eight neighbours and stores them at once.
// Multiplication and addition are rounded one by one, as on the host: contracted they would differ in the last bit.
#include <cuda_bf16.h>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/require.h"
#include "ops/gemm/seeded_rows.h"

namespace vayu::ops {
namespace {

constexpr int kPerThread = 8;

__device__ __forceinline__ uint32_t seeded_bf16_bits(const SeededRows& rows, uint64_t i) {
  const double centred = static_cast<double>(seeded_sum(rows.key, i)) - kSeedMeanSum;
  const float value = __double2float_rn(__dadd_rn(rows.mean, __dmul_rn(centred, rows.scale)));
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

__global__ void __launch_bounds__(256) seeded_fill_kernel(SeededFillArgs args) {
  const int64_t vectors = args.stride / kPerThread;
  const int64_t total = args.num_rows * vectors;
  for (int64_t v = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; v < total; v += int64_t{gridDim.x} * blockDim.x) {
    const int64_t row = v / vectors, column = v % vectors * kPerThread;
    uint32_t words[kPerThread / 2];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int64_t c = column + i;
      const uint32_t bits = c < args.cols ? seeded_bf16_bits(args.source, args.first + row * args.cols + c) : 0;
      words[i / 2] = i % 2 == 0 ? bits : words[i / 2] | bits << 16;
    }
    *reinterpret_cast<uint4*>(args.y + row * args.stride + column) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

}  // namespace

void seeded_fill_cuda(CudaStream stream, const SeededFillArgs& args) {
  if (args.num_rows == 0) return;
  VAYU_REQUIRE(args.y && args.cols > 0 && args.stride >= args.cols && args.stride % kPerThread == 0, "rows");
  const int64_t threads = args.num_rows * args.stride / kPerThread;
  const auto blocks = static_cast<unsigned>(threads < 132 * 8 * 256 ? (threads + 255) / 256 : 132 * 8);
  seeded_fill_kernel<<<blocks, 256, 0, stream>>>(args);
}

}  // namespace vayu::ops
