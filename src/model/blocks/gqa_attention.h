// Pre-norm grouped-query attention: residual += W_o attention(rope(W_qkv norm(residual))); with QK-norm each head of Q
// and K is normed before it is rotated.
#pragma once

#include "model/blocks/step.h"
#include "ops/attention/kv_cache.h"

namespace vayu::model {

void gqa_attention(const Step& step, const LayerWeights& weights, const ops::KvLayer& kv);

}  // namespace vayu::model
