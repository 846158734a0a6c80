// The definition of silu_mul, in double.
#include <cmath>

#include "ops/activation/silu_mul.h"

namespace vayu::ops {

void silu_mul_ref(const float* gate_up, float* y, int64_t num_tokens, int64_t width) {
  for (int64_t t = 0; t < num_tokens; ++t) {
    const float* gate = gate_up + t * 2 * width;
    const float* up = gate + width;
    for (int64_t i = 0; i < width; ++i) {
      y[t * width + i] = static_cast<float>(gate[i] / (1.0 + std::exp(-double{gate[i]})) * up[i]);
    }
  }
}

}  // namespace vayu::ops
