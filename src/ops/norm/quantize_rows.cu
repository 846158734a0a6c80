// quantize_rows on the device: a block takes a row, holds it in registers as it was read (four registers a vector of
// eight), takes the peak with one barrier, and writes. Bytes a row: two read and one written a column.
#include "ops/norm/quantize_rows.h"

#include "ops/cuda/launch.cuh"
#include "ops/cuda/require.h"
#include "ops/norm/quantize_rows_math.cuh"

namespace vayu::ops {
namespace {

template <int kVectors>
__global__ void __launch_bounds__(512, kVectors > 1 ? 2 : 4) quantize_rows_kernel(QuantizeRowsArgs args) {
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

}  // namespace

void quantize_rows_cuda(CudaStream stream, const QuantizeRowsArgs& args) {
  if (args.num_rows == 0) return;
  VAYU_REQUIRE(args.x && args.y.data && args.y.is_f8() && args.y.scale_group == 0, "FP8 rows with one scale each");
  VAYU_REQUIRE(args.y.cols > 0 && args.y.cols % 16 == 0 && args.y.cols <= 16384, "columns");
  VAYU_REQUIRE(args.x_stride % 8 == 0 && (args.x_stride >= args.y.cols || args.num_rows == 1), "stride");
  const RowThreads shape = row_threads(args.y.cols);
  const LaunchShape launch{.grid = dim3(static_cast<unsigned>(args.num_rows)), .block = dim3(shape.threads)};
  if (shape.per_thread == 1) {
    launch_overlapped(quantize_rows_kernel<1>, launch, stream, args);
  } else if (shape.per_thread == 2) {
    launch_overlapped(quantize_rows_kernel<2>, launch, stream, args);
  } else {
    launch_overlapped(quantize_rows_kernel<4>, launch, stream, args);
  }
}

}  // namespace vayu::ops
