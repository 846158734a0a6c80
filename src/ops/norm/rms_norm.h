// y = x * rsqrt(mean(x^2) + eps) * weight over each row, in float (Zhang and Sennrich, 2019). With a residual:
// residual += x first, and the norm is of the sum.
#pragma once

#include <cstdint>

#include "ops/context.h"

namespace vayu::ops {

struct RmsNormArgs {
  const float* x = nullptr;       // (num_tokens, hidden)
  float* residual = nullptr;      // (num_tokens, hidden) or null; updated in place
  const float* weight = nullptr;  // (hidden)
  float* y = nullptr;             // (num_tokens, hidden); may alias x
  int64_t num_tokens = 0;
  int64_t hidden = 0;
  float eps = 1e-6f;
};

void rms_norm(const OpContext& ctx, const RmsNormArgs& args);

}  // namespace vayu::ops
