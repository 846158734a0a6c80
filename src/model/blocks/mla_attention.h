// Pre-norm multi-head latent attention (DeepSeek-V2, 2024): keys and values of a token are one cached latent and one
// rotary key for all heads. Absorbed: queries are carried into the space of the latents, q_lat = q_nope U_K, attend to
// the cache as it lies, and U_V is applied to the result. Expanded: the latents are multiplied out first.
#pragma once

#include "model/blocks/step.h"
#include "ops/attention/kv_cache.h"

namespace vayu::model {

void mla_attention(const Step& step, const LayerWeights& weights, const ops::KvLayer& kv);

// Scratch of the op behind the form that config.mla chooses, beside that of linear().
int64_t mla_scratch_bytes(const ops::OpContext& ops, const ModelConfig& config, const ops::KvLayer& kv,
                          int64_t max_tokens, int64_t max_context);

}  // namespace vayu::model
