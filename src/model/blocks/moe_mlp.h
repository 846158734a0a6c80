// Pre-norm Mixture-of-Experts (Shazeer et al., 2017; DeepSeek-V3, 2024): residual += sum of the chosen experts,
// weighted by the router, + shared expert, each a SwiGLU of norm(residual).
#pragma once

#include "model/blocks/step.h"
#include "ops/attention/kv_cache.h"

namespace vayu::model {

void moe_mlp(const Step& step, const LayerWeights& weights, const ops::KvLayer& kv);

}  // namespace vayu::model
