// Pre-norm SwiGLU (Shazeer, 2020): residual += W_down (silu(W_gate x) * (W_up x)), x = norm(residual).
#pragma once

#include "model/blocks/step.h"
#include "ops/attention/kv_cache.h"

namespace vayu::model {

void dense_mlp(const Step& step, const LayerWeights& weights, const ops::KvLayer& kv);

}  // namespace vayu::model
