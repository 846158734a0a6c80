// The definition of combine_add_norm.
#include <cmath>

#include "ops/cuda/host_rows.h"
#include "ops/moe/device_combine.h"
#include "ops/norm/add_norm_ref.h"

namespace vayu::ops {

void combine_add_norm_ref(const CombineAddNormArgs& args) {
  const AddNormArgs& norm = args.norm;
  for (int64_t row = 0; row < norm.num_rows; ++row) {
    const int64_t token = norm.row_ids ? norm.row_ids[row] : row;
    std::vector<float> sum(norm.hidden, 0.0f);
    for (int64_t i = 0; i < norm.hidden && token >= 0; ++i) {
      float added = 0;
      for (int32_t j = 0; j < args.top_k; ++j) {
        const int64_t position = args.pair_position[token * args.top_k + j];
        if (position < 0) continue;
        const float value = host_float(args.expert_out[position * norm.hidden + i]);
        added = std::fma(args.weights[token * args.top_k + j], value, added);
      }
      const int64_t at = token * norm.hidden + i;
      if (norm.delta) added += host_float(norm.delta[at]);
      const Bf16 rounded = host_bf16(host_float(norm.residual[at]) + added);
      if (!norm.row_ids) norm.residual[at] = rounded;
      sum[i] = host_float(rounded);
    }
    if (norm.weight) norm_row_ref(norm, row, sum);
  }
}

}  // namespace vayu::ops
