// quantize_rows on the device: a block takes a row, holds it in registers as it was read (four registers a vector of
// eight), takes the peak with one barrier, and writes. Bytes a row: two read and one written a column.
#include "ops/norm/quantize_rows.h"

#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/require.h"
#include "ops/norm/quantize_rows_math.cuh"

namespace vayu::ops {
namespace {

constexpr unsigned kMaxThreads = 512;  // the search takes longer rows in several steps

template <int kVectors>
__global__ void __launch_bounds__(kMaxThreads, kVectors > 1 ? 2 : 4) quantize_rows_kernel(QuantizeRowsArgs args) {
  __shared__ uint32_t partial[32];
  const int64_t row = blockIdx.x;
  const auto column = [&](int i) { return static_cast<int>(threadIdx.x + i * blockDim.x) * 8; };
  let_next_start();  // a linear fetches its weights meanwhile
  wait_for_inputs();
  Bytes16 packed[kVectors] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (column(i) < args.y.cols) {
      packed[i] = *reinterpret_cast<const Bytes16*>(args.x + row * args.x_stride + column(i));
    }
  }
  uint32_t peak = 0;
  float v[8];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    unpack_bf16x8(packed[i], v);
    peak = peak_bits(v, peak);
  }
  const float scale = f8_scale(__uint_as_float(block_peak_bits(peak, partial)));
  const float factor = 1.0f / scale;
  if (threadIdx.x == 0) args.y.scales[row] = scale;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (column(i) >= args.y.cols) continue;
    unpack_bf16x8(packed[i], v);
    store_f8x8(static_cast<F8E4M3*>(args.y.data) + row * args.y.cols + column(i), v, factor);
  }
}

// Adds the squared errors of eight elements, in units of the rule's scale, under `factor` times that.
__device__ __forceinline__ void add_error(const float (&u)[8], float factor, float& error) {
  const float inverse = 1.0f / factor;
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const __nv_fp8x2_storage_t codes =
        __nv_cvt_float2_to_fp8x2(make_float2(u[i] * inverse, u[i + 1] * inverse), __NV_SATFINITE, __NV_E4M3);
    const float2 got = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3)));
    const float low = fmaf(got.x, factor, -u[i]), high = fmaf(got.y, factor, -u[i + 1]);
    error = fmaf(low, low, error);
    error = fmaf(high, high, error);
  }
}

// Adds the squared errors of a row under half of the factors, from factor kFirst on. Half: with all of them at once
// the scheduler runs out of registers.
template <int kFirst>
__device__ __forceinline__ void add_errors(const Bf16* x, int cols, float to_units, float (&error)[kScaleSteps]) {
#pragma unroll 1
  for (int column = threadIdx.x * 8; column < cols; column += blockDim.x * 8) {
    float u[8];
    load_bf16x8(x + column, u);
#pragma unroll
    for (float& value : u) value *= to_units;
    float factor = 1;
#pragma unroll
    for (int step = 0; step < kFirst; ++step) factor *= kScaleStep;
#pragma unroll
    for (int step = kFirst; step < kFirst + kScaleSteps / 2; ++step) {
      add_error(u, factor, error[step]);
      factor *= kScaleStep;
    }
  }
}

// The step with the least sum over the block, the first of equals; the same in every thread.
__device__ __forceinline__ int least_step(float (&error)[kScaleSteps], float (*shared)[kScaleSteps]) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < kScaleSteps; ++step) {
    const float sum = warp_sum(error[step]);
    if (lane == 0) shared[threadIdx.x / 32][step] = sum;
  }
  __syncthreads();
  int step = static_cast<int>(lane % kScaleSteps);
  float least = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) least += shared[warp][step];
#pragma unroll
  for (int offset = kScaleSteps / 2; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, least, offset);
    const int other_step = __shfl_xor_sync(0xffffffffu, step, offset);
    if (other < least || (other == least && other_step < step)) {
      least = other;
      step = other_step;
    }
  }
  return step;
}

// With a search of the scale: for weights while they load. Reads its row four times, three of them from the
// first-level cache. Conversions bound it: 16 each way an element.
__global__ void __launch_bounds__(kMaxThreads, 1) search_rows_kernel(QuantizeRowsArgs args) {
  __shared__ uint32_t partial[32];
  __shared__ float errors[16][kScaleSteps];
  let_next_start();
  wait_for_inputs();
  const Bf16* x = args.x + blockIdx.x * args.x_stride;
  const auto cols = static_cast<int>(args.y.cols), first = static_cast<int>(threadIdx.x) * 8;
  const auto stride = static_cast<int>(blockDim.x) * 8;
  float v[8];
  uint32_t peak = 0;
  for (int column = first; column < cols; column += stride) {
    load_bf16x8(x + column, v);
    peak = peak_bits(v, peak);
  }
  float scale = f8_scale(__uint_as_float(block_peak_bits(peak, partial)));
  const float to_units = 1.0f / scale;
  float error[kScaleSteps] = {};
  add_errors<0>(x, cols, to_units, error);
  add_errors<kScaleSteps / 2>(x, cols, to_units, error);
  const int steps = least_step(error, errors);
  float chosen = 1;
  for (int i = 0; i < steps; ++i) chosen *= kScaleStep;
  scale *= chosen;
  const float factor = 1.0f / scale;
  if (threadIdx.x == 0) args.y.scales[blockIdx.x] = scale;
  for (int column = first; column < cols; column += stride) {
    load_bf16x8(x + column, v);
    store_f8x8(static_cast<F8E4M3*>(args.y.data) + blockIdx.x * args.y.cols + column, v, factor);
  }
}

}  // namespace

void quantize_rows_cuda(CudaStream stream, const QuantizeRowsArgs& args) {
  if (args.num_rows == 0) return;
  VAYU_REQUIRE(args.x && args.y.data && args.y.is_f8() && args.y.scale_group == 0, "FP8 rows with one scale each");
  VAYU_REQUIRE(args.y.cols > 0 && args.y.cols % 16 == 0, "columns");
  VAYU_REQUIRE(args.y.cols <= kMaxQuantizedCols || args.scale_steps > 1, "a row held in registers");
  VAYU_REQUIRE(args.x_stride % 8 == 0 && (args.x_stride >= args.y.cols || args.num_rows == 1), "stride");
  VAYU_REQUIRE(args.scale_steps == 1 || args.scale_steps == kScaleSteps, "scales tried");
  const RowThreads shape = row_threads(args.y.cols);
  const LaunchShape launch{.grid = dim3(static_cast<unsigned>(args.num_rows)),
                           .block = dim3(std::min(shape.threads, kMaxThreads))};
  if (args.scale_steps > 1) {
    launch_overlapped(search_rows_kernel, launch, stream, args);
  } else if (shape.per_thread == 1) {
    launch_overlapped(quantize_rows_kernel<1>, launch, stream, args);
  } else if (shape.per_thread == 2) {
    launch_overlapped(quantize_rows_kernel<2>, launch, stream, args);
  } else {
    launch_overlapped(quantize_rows_kernel<4>, launch, stream, args);
  }
}

}  // namespace vayu::ops
