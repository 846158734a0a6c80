// The definition of rms_norm: one row after the other, sums in double.
#include <cmath>

#include "ops/norm/rms_norm.h"

namespace vayu::ops {

void rms_norm_ref(const RmsNormArgs& args) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    const float* x = args.x + t * args.hidden;
    float* y = args.y + t * args.hidden;
    if (args.residual) {
      float* residual = args.residual + t * args.hidden;
      for (int64_t i = 0; i < args.hidden; ++i) residual[i] += x[i];
      x = residual;
    }
    double sum = 0;
    for (int64_t i = 0; i < args.hidden; ++i) sum += double{x[i]} * x[i];
    const float scale = static_cast<float>(1.0 / std::sqrt(sum / args.hidden + args.eps));
    for (int64_t i = 0; i < args.hidden; ++i) y[i] = x[i] * scale * args.weight[i];
  }
}

}  // namespace vayu::ops
