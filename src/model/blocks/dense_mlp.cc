#include "model/blocks/dense_mlp.h"

#include "ops/activation/silu_mul.h"
#include "ops/gemm/linear.h"
#include "ops/norm/rms_norm.h"

namespace vayu::model {

void dense_mlp(const Step& step, const LayerWeights& weights, const ops::KvLayer&) {
  const Activations& act = step.act;
  const int64_t num_tokens = step.batch.num_tokens();
  ops::rms_norm(step.ops, {.x = act.residual,
                           .weight = weights.mlp_norm.data(),
                           .y = act.normed,
                           .num_tokens = num_tokens,
                           .hidden = step.config.hidden,
                           .eps = step.config.norm_eps});
  ops::linear(step.ops, {.weight = weights.gate_up.get(),
                         .x = act.normed,
                         .y = act.gate_up,
                         .num_tokens = num_tokens,
                         .scratch = act.scratch});
  ops::silu_mul(step.ops, act.gate_up, act.mlp, num_tokens, step.config.ffn);
  ops::linear(step.ops, {.weight = weights.down.get(),
                         .x = act.mlp,
                         .y = act.residual,
                         .num_tokens = num_tokens,
                         .accumulate = true,
                         .scratch = act.scratch});
}

}  // namespace vayu::model
