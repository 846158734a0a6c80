#include "ops/cuda/host_rows.h"
#include "ops/gemm/stream_linear.h"

namespace vayu::ops {

bool stream_linear_fits(const StreamLinearArgs& a) {
  const bool whole_rows = a.weight.scale != WeightScale::kBlock && a.x.scale_group == 0;
  return a.num_rows <= kStreamLinearMaxRows && a.weight.cols == a.x.cols && a.weight.is_f8() == a.x.is_f8() &&
         a.weight.row_bytes() % 16 == 0 && (whole_rows || a.weight.cols % kScaleGroup == 0) &&
         a.weight.rows <= int64_t{kStreamLinearMaxTiles} * 128 && (a.y != nullptr) != (a.y_float != nullptr);
}

void stream_linear_ref(const StreamLinearArgs& a) {
  std::vector<std::vector<float>> x;
  for (int32_t r = 0; r < a.num_rows; ++r) x.push_back(host_row(a.x, r));
  for (int64_t i = 0; i < a.weight.rows; ++i) {
    const std::vector<float> weight = host_weight_row(a.weight, i);
    for (int32_t r = 0; r < a.num_rows; ++r) {
      const auto value = static_cast<float>(host_dot(weight, x[r]));
      if (a.y) {
        a.y[r * a.weight.rows + i] = host_bf16(value);
      } else {
        a.y_float[r * a.weight.rows + i] = value;
      }
    }
  }
}

}  // namespace vayu::ops
