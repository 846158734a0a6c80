// Experts' outputs back to their tokens, onto the residual, and the norm of the next layer, one pass over device rows:
//   d[t] = sum over j of weights[t, j] * expert_out[pair_position[t, j]]   (float, fused multiply-adds, j ascending)
//   s = bf16(residual + (d + delta)), then as add_norm.
#pragma once

#include "ops/norm/add_norm.h"

namespace vayu::ops {

constexpr int32_t kCombineMaxTopK = 32;  // a lane of a warp each

struct CombineAddNormArgs {
  const Bf16* expert_out = nullptr;        // (num_tokens * top_k, hidden), sorted by expert
  const int32_t* pair_position = nullptr;  // (num_tokens, top_k) row of expert_out; negative: the pair adds nothing
  const float* weights = nullptr;          // (num_tokens, top_k)
  int32_t top_k = 0;                       // at most kCombineMaxTopK
  AddNormArgs norm;  // delta: output of the shared expert, or null. weight null: no norm, y and y_bf16 not written
};

void combine_add_norm_ref(const CombineAddNormArgs& args);  // host pointers
void combine_add_norm_cuda(CudaStream stream, const CombineAddNormArgs& args);

}  // namespace vayu::ops
