// device_silu_mul: a thread makes eight outputs from a vector of gates and one of ups 64 columns on; the 16 threads of
// a group of 128 outputs are half a warp, so a scale costs four shuffles and no barrier. Bytes an output: four read and
// one (FP8) or two (BF16) written.
#include "ops/activation/device_silu_mul.h"

#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/require.h"
#include "ops/norm/quantize_rows_math.cuh"

namespace vayu::ops {
namespace {

// exp(-g) overflows to infinity for g < -88, where the quotient is zero, as it should be.
__device__ __forceinline__ float silu(float g) { return __fdividef(g, 1.0f + __expf(-g)); }

__global__ void __launch_bounds__(256) silu_mul_kernel(DeviceSiluMulArgs args) {
  const int64_t row = blockIdx.x;
  const int64_t column = int64_t{blockIdx.y * blockDim.x + threadIdx.x} * 8;
  const bool inside = column < args.y.cols;
  wait_for_inputs();
  float y[8] = {};
  if (inside) {
    const int64_t at = column / kGateUpInterleave * (2 * kGateUpInterleave) + column % kGateUpInterleave;
    const Bf16* gate = args.gate_up + row * 2 * args.y.cols + at;
    float up[8];
    load_bf16x8(gate, y);
    load_bf16x8(gate + kGateUpInterleave, up);
#pragma unroll
    for (int e = 0; e < 8; ++e) y[e] = silu(y[e]) * up[e];
  }
  let_next_start();
  if (!args.y.scales) {
    if (inside) store_bf16x8(static_cast<Bf16*>(args.y.data) + row * args.y.cols + column, y);
    return;
  }
  uint32_t peak = peak_bits(y, 0);
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) peak = max(peak, __shfl_xor_sync(0xffffffffu, peak, offset));
  if (!inside) return;
  const float scale = f8_scale(__uint_as_float(peak));
  if (column % kScaleGroup == 0) args.y.scales[row * (args.y.cols / kScaleGroup) + column / kScaleGroup] = scale;
  store_f8x8(static_cast<F8E4M3*>(args.y.data) + row * args.y.cols + column, y, 1.0f / scale);
}

}  // namespace

void device_silu_mul_cuda(CudaStream stream, const DeviceSiluMulArgs& args) {
  if (args.num_rows == 0) return;
  VAYU_REQUIRE(args.gate_up && args.y.data, "null pointer");
  VAYU_REQUIRE(args.y.cols > 0 && args.y.cols % (args.y.is_f8() ? kScaleGroup : kGateUpInterleave) == 0, "ffn");
  VAYU_REQUIRE(!args.y.is_f8() || args.y.scale_group == kScaleGroup, "one scale a row and 128 columns");
  const auto vectors = static_cast<unsigned>(args.y.cols / 8);
  const unsigned threads = std::min(256u, (vectors + 31) / 32 * 32);
  const dim3 grid(static_cast<unsigned>(args.num_rows), (vectors + threads - 1) / threads);
  launch_overlapped(silu_mul_kernel, {.grid = grid, .block = dim3(threads)}, stream, args);
}

}  // namespace vayu::ops
