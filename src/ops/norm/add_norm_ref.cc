// The definition of add_norm: one row after the other, the sum of squares in double.
#include "ops/norm/add_norm_ref.h"

#include <cmath>
#include <limits>

#include "ops/cuda/host_rows.h"

namespace vayu::ops {

void norm_row_ref(const AddNormArgs& args, int64_t row, const std::vector<float>& sum) {
  double squares = 0;
  for (float v : sum) squares += double{v} * v;
  float scale = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(args.hidden) + args.eps));
  if (!std::isfinite(static_cast<float>(squares))) scale = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> y(args.hidden);
  for (int64_t i = 0; i < args.hidden; ++i) y[i] = sum[i] * scale * args.weight[i];
  store_host_row(args.y, row, y);
  if (!args.y_bf16) return;
  for (int64_t i = 0; i < args.hidden; ++i) args.y_bf16[row * args.hidden + i] = host_bf16(y[i]);
}

void add_norm_ref(const AddNormArgs& args) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const int64_t source = args.row_ids ? args.row_ids[row] : row;
    std::vector<float> sum(args.hidden, 0.0f);
    for (int64_t i = 0; i < args.hidden && source >= 0; ++i) {
      const int64_t at = source * args.hidden + i;
      sum[i] = host_float(args.residual[at]);
      if (!args.delta) continue;
      const Bf16 rounded = host_bf16(sum[i] + host_float(args.delta[at]));
      if (!args.row_ids) args.residual[at] = rounded;
      sum[i] = host_float(rounded);
    }
    norm_row_ref(args, row, sum);
  }
}

}  // namespace vayu::ops
