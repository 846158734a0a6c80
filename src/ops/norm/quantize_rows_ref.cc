// The definition of quantize_rows.
#include "ops/cuda/host_rows.h"
#include "ops/norm/quantize_rows.h"

namespace vayu::ops {

void quantize_rows_ref(const QuantizeRowsArgs& args) {
  std::vector<float> values(args.y.cols);
  for (int64_t row = 0; row < args.num_rows; ++row) {
    for (int64_t i = 0; i < args.y.cols; ++i) values[i] = host_float(args.x[row * args.x_stride + i]);
    store_host_row(args.y, row, values);
  }
}

}  // namespace vayu::ops
