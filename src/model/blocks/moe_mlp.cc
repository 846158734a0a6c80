#include "model/blocks/moe_mlp.h"

#include "ops/activation/silu_mul.h"
#include "ops/gemm/linear.h"
#include "ops/moe/combine.h"
#include "ops/moe/grouped_linear.h"
#include "ops/moe/route.h"
#include "ops/norm/rms_norm.h"

namespace vayu::model {
namespace {

void choose_experts(const Step& step, const LayerWeights& weights) {
  const Activations& act = step.act;
  const ops::RouterShape& router = step.config.moe.router;
  const int64_t num_tokens = step.batch.num_tokens();
  ops::route(step.ops, {.shape = router,
                        .x = act.normed,
                        .weight = weights.router.data(),
                        .bias = weights.router_bias.empty() ? nullptr : weights.router_bias.data(),
                        .num_tokens = num_tokens,
                        .expert_ids = act.expert_ids,
                        .expert_weights = act.expert_weights,
                        .scratch = act.scratch});
  if (step.observer) (*step.observer)(step.layer, act.expert_ids, num_tokens);
  ops::group_by_expert(act.expert_ids, num_tokens, router.top_k, router.num_experts, act.expert_indptr,
                       act.expert_rows);
  for (int64_t i = 0; i < num_tokens * router.top_k; ++i) act.expert_tokens[i] = act.expert_rows[i] / router.top_k;
}

void run_experts(const Step& step, const LayerWeights& weights) {
  const Activations& act = step.act;
  const ModelConfig& config = step.config;
  const int32_t num_experts = config.moe.router.num_experts;
  const int32_t top_k = config.moe.router.top_k;
  const int64_t num_tokens = step.batch.num_tokens();
  ops::grouped_linear(step.ops, {.weight = weights.expert_gate_up.get(),
                                 .num_groups = num_experts,
                                 .group_indptr = act.expert_indptr,
                                 .x_rows = act.expert_tokens,
                                 .y_rows = act.expert_rows,
                                 .x = act.normed,
                                 .x_stride = config.hidden,
                                 .y = act.expert_gate_up,
                                 .y_stride = int64_t{2} * config.moe.expert_ffn,
                                 .scratch = act.scratch});
  ops::silu_mul(step.ops, act.expert_gate_up, act.expert_mlp, num_tokens * top_k, config.moe.expert_ffn);
  ops::grouped_linear(step.ops, {.weight = weights.expert_down.get(),
                                 .num_groups = num_experts,
                                 .group_indptr = act.expert_indptr,
                                 .x_rows = act.expert_rows,
                                 .y_rows = act.expert_rows,
                                 .x = act.expert_mlp,
                                 .x_stride = config.moe.expert_ffn,
                                 .y = act.expert_out,
                                 .y_stride = config.hidden,
                                 .scratch = act.scratch});
  ops::combine_experts(step.ops, {.expert_out = act.expert_out,
                                  .weights = act.expert_weights,
                                  .y = act.residual,
                                  .num_tokens = num_tokens,
                                  .top_k = top_k,
                                  .hidden = config.hidden});
}

void run_shared_expert(const Step& step, const LayerWeights& weights) {
  const Activations& act = step.act;
  const int64_t num_tokens = step.batch.num_tokens();
  ops::linear(step.ops, {.weight = weights.gate_up.get(),
                         .x = act.normed,
                         .y = act.gate_up,
                         .num_tokens = num_tokens,
                         .scratch = act.scratch});
  ops::silu_mul(step.ops, act.gate_up, act.mlp, num_tokens, step.config.moe.shared_ffn);
  ops::linear(step.ops, {.weight = weights.down.get(),
                         .x = act.mlp,
                         .y = act.residual,
                         .num_tokens = num_tokens,
                         .accumulate = true,
                         .scratch = act.scratch});
}

}  // namespace

void moe_mlp(const Step& step, const LayerWeights& weights, const ops::KvLayer&) {
  ops::rms_norm(step.ops, {.x = step.act.residual,
                           .weight = weights.mlp_norm.data(),
                           .y = step.act.normed,
                           .num_tokens = step.batch.num_tokens(),
                           .hidden = step.config.hidden,
                           .eps = step.config.norm_eps});
  choose_experts(step, weights);
  run_experts(step, weights);
  if (step.config.moe.shared_ffn > 0) run_shared_expert(step, weights);
}

}  // namespace vayu::model
