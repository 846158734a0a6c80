// The definition of gather_rows.
#include "ops/gemm/device_gather.h"

namespace vayu::ops {

void gather_rows_ref(const GatherRowsArgs& args) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const int32_t prev = args.prev_index ? args.prev_index[row] : -1;
    const int64_t id = prev >= 0 ? args.prev_tokens[prev] : args.ids[row];
    const bool inside = id >= 0 && id < args.table_rows;
    for (int64_t i = 0; i < args.cols; ++i) {
      args.y[row * args.cols + i] = inside ? args.table[id * args.cols + i] : Bf16{0};
    }
  }
}

}  // namespace vayu::ops
