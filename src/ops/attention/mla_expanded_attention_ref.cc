#include <algorithm>
#include <cmath>

#include "ops/attention/mla_expanded_chunk.h"

namespace vayu::ops {

void attend_expanded_ref(const MlaExpandedArgs& args, int32_t row, int32_t first, int32_t count,
                         const MlaExpandedBuffers& b, int64_t begin, int64_t end, int) {
  const MlaExpandedShape& shape = args.shape;
  double scores[kExpandedChunk];
  const int64_t tokens = args.qo_indptr[row + 1] - args.qo_indptr[row];
  for (int64_t i = 0; i < tokens * shape.num_q_heads; ++i) {
    const int64_t token = i / shape.num_q_heads;
    const int64_t head = i % shape.num_q_heads;
    if (head < begin || head >= end) continue;
    const int32_t seen = std::min(count, visible_tokens(args, row, token) - first);
    if (seen <= 0) continue;
    const int64_t row_token = args.qo_indptr[row] + token;
    const float* q = args.q + row_token * args.q_stride + head * (shape.nope_dim + shape.rope_dim);
    float* out = args.out + (row_token * shape.num_q_heads + head) * shape.v_dim;
    double max = b.max[i];
    for (int32_t j = 0; j < seen; ++j) {
      const float* k = b.k + (j * int64_t{shape.num_q_heads} + head) * shape.nope_dim;
      double dot = 0;
      for (int32_t d = 0; d < shape.nope_dim; ++d) dot += double{q[d]} * k[d];
      for (int32_t d = 0; d < shape.rope_dim; ++d) {
        dot += double{q[shape.nope_dim + d]} * b.shared_key[int64_t{j} * shape.rope_dim + d];
      }
      scores[j] = dot * args.scale;
      max = std::max(max, scores[j]);
    }
    const double old_factor = std::exp(b.max[i] - max);
    double weight = b.weight[i] * old_factor;
    for (int32_t j = 0; j < seen; ++j) weight += scores[j] = std::exp(scores[j] - max);
    for (int32_t d = 0; d < shape.v_dim; ++d) {
      double sum = out[d] * old_factor;
      for (int32_t j = 0; j < seen; ++j)
        sum += scores[j] * b.v[(j * int64_t{shape.num_q_heads} + head) * shape.v_dim + d];
      out[d] = static_cast<float>(sum);
    }
    b.max[i] = static_cast<float>(max);
    b.weight[i] = static_cast<float>(weight);
  }
}

}  // namespace vayu::ops
