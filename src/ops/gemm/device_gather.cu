// gather_rows on the device: a block copies a row, 16 bytes a thread and step. Rows are read once, so memory is the
// only limit: two bytes read and two written an element.
#include "ops/gemm/device_gather.h"

#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/require.h"
#include "ops/cuda/vector.cuh"

namespace vayu::ops {
namespace {

__global__ void __launch_bounds__(512) gather_rows_kernel(GatherRowsArgs args) {
  const int64_t row = blockIdx.x;
  const auto vectors = static_cast<int>(args.cols / 8);
  wait_for_inputs();
  int64_t id = args.ids[row];
  if (args.prev_index && args.prev_index[row] >= 0) id = args.prev_tokens[args.prev_index[row]];
  const bool inside = id >= 0 && id < args.table_rows;
  const auto* from = reinterpret_cast<const Bytes16*>(args.table + (inside ? id : 0) * args.cols);
  auto* to = reinterpret_cast<Bytes16*>(args.y + row * args.cols);
  let_next_start();
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += static_cast<int>(blockDim.x)) {
    to[i] = inside ? from[i] : Bytes16{};
  }
}

}  // namespace

void gather_rows_cuda(CudaStream stream, const GatherRowsArgs& args) {
  if (args.num_rows == 0) return;
  VAYU_REQUIRE(args.table && args.ids && args.y, "null pointer");
  VAYU_REQUIRE(!args.prev_index || args.prev_tokens, "tokens that prev_index counts into");
  VAYU_REQUIRE(args.cols > 0 && args.cols % 8 == 0 && args.table_rows > 0, "shape");
  const auto threads = static_cast<unsigned>(std::min<int64_t>(512, (args.cols / 8 + 31) / 32 * 32));
  launch_overlapped(gather_rows_kernel, {.grid = dim3(static_cast<unsigned>(args.num_rows)), .block = dim3(threads)},
                    stream, args);
}

}  // namespace vayu::ops
