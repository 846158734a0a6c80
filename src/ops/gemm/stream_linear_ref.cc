#include "ops/cuda/host_rows.h"
#include "ops/gemm/stream_linear.h"

namespace vayu::ops {

bool stream_linear_fits(const StreamLinearArgs& a) {
  const int64_t bytes = a.weight.row_bytes();
  // What a block's shared memory holds of the depth; see stream_linear.cu.
  const int64_t blocks_a_rank = a.num_rows <= 16 ? 16 : a.num_rows <= 64 ? 8 : 6;
  const bool whole_groups = a.weight.scale != WeightScale::kBlock && a.x.scale_group == 0;
  return a.num_rows <= kStreamLinearMaxRows && a.weight.cols == a.x.cols && a.weight.is_f8() == a.x.is_f8() &&
         bytes % 16 == 0 && bytes <= 8 * blocks_a_rank * 128 && (whole_groups || a.weight.cols % kScaleGroup == 0) &&
         a.weight.rows < (int64_t{1} << 31) && (a.y != nullptr) != (a.y_float != nullptr);
}

void stream_linear_ref(const StreamLinearArgs& a) {
  const int64_t stride = a.y_stride ? a.y_stride : a.weight.rows;
  for (int32_t r = 0; r < a.num_rows; ++r) {
    const std::vector<float> x = host_row(a.x, r);
    for (int64_t i = 0; i < a.weight.rows; ++i) {
      const auto value = static_cast<float>(host_dot(a.weight, i, x));
      if (a.y) {
        a.y[r * stride + i] = host_bf16(value);
      } else {
        a.y_float[r * stride + i] = value;
      }
    }
  }
}

}  // namespace vayu::ops
