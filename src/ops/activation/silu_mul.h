// y = silu(gate) * up for SwiGLU, gate and up being the two halves of each input row: silu(v) = v / (1 + exp(-v)).
#pragma once

#include <cstdint>

#include "ops/context.h"

namespace vayu::ops {

// gate_up: (num_tokens, 2 * width), gate first; y: (num_tokens, width).
void silu_mul(const OpContext& ctx, const float* gate_up, float* y, int64_t num_tokens, int64_t width);

}  // namespace vayu::ops
