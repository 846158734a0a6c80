// Scores, choice and weights of one token from its router logits: scalar, and the same on every backend that runs on
// the host, so that both choose the same experts from the same logits.
#pragma once

#include <cstdint>

#include "ops/moe/route.h"

namespace vayu::ops {

// logits: (num_experts), overwritten by scores; choice: (num_experts) scratch; ids, weights: (top_k).
void select_experts(const RouterShape& shape, const float* bias, float* logits, float* choice, int32_t* ids,
                    float* weights);

}  // namespace vayu::ops
