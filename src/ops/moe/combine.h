// y += sum over j of weight[t, j] * expert_out[t, j], in float, j ascending.
#pragma once

#include <cstdint>

#include "ops/context.h"

namespace vayu::ops {

struct CombineArgs {
  const float* expert_out = nullptr;  // (num_tokens, top_k, hidden)
  const float* weights = nullptr;     // (num_tokens, top_k)
  float* y = nullptr;                 // (num_tokens, hidden)
  int64_t num_tokens = 0;
  int32_t top_k = 0;
  int64_t hidden = 0;
};

void combine_experts(const OpContext& ctx, const CombineArgs& args);

}  // namespace vayu::ops
