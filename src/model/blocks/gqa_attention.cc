#include "model/blocks/gqa_attention.h"

#include "ops/attention/paged_attention.h"
#include "ops/gemm/linear.h"
#include "ops/norm/rms_norm.h"
#include "ops/rope/rope_kv_write.h"

namespace vayu::model {
namespace {

void rotate_and_write(const Step& step, const LayerWeights& weights, const ops::KvLayer& kv) {
  ops::RopeKvWriteArgs args;
  if (step.config.qk_norm) {
    args.q_norm = weights.q_norm.data();
    args.k_norm = weights.k_norm.data();
    args.norm_eps = step.config.norm_eps;
  }
  args.qkv = step.act.qkv;
  args.positions = step.batch.positions.data();
  args.slot_mapping = step.batch.slot_mapping.data();
  args.inv_freq = step.rope.inv_freq.data();
  args.attention_factor = step.rope.attention_factor;
  args.pairing = step.config.rope.pairing;
  args.rotary_dim = step.config.rope.rotary_dim;
  args.num_q_heads = step.config.num_q_heads;
  args.num_tokens = step.batch.num_tokens();
  args.kv = kv;
  ops::rope_kv_write(step.ops, args);
}

void attend(const Step& step, const ops::KvLayer& kv) {
  ops::PagedAttentionArgs args;
  args.q = step.act.qkv;
  args.q_stride = step.config.qkv_width();
  args.out = step.act.attention;
  args.qo_indptr = step.batch.qo_indptr.data();
  args.kv_indptr = step.batch.kv_indptr.data();
  args.page_table = step.batch.page_table.data();
  args.kv_lens = step.batch.kv_lens.data();
  args.num_rows = step.batch.num_rows();
  args.num_q_heads = step.config.num_q_heads;
  args.scale = step.config.attention_scale;
  args.kv = kv;
  args.scratch = step.act.scratch;
  ops::paged_attention(step.ops, args);
}

}  // namespace

void gqa_attention(const Step& step, const LayerWeights& weights, const ops::KvLayer& kv) {
  const Activations& act = step.act;
  const int64_t num_tokens = step.batch.num_tokens();
  ops::rms_norm(step.ops, {.x = act.residual,
                           .weight = weights.attention_norm.data(),
                           .y = act.normed,
                           .num_tokens = num_tokens,
                           .hidden = step.config.hidden,
                           .eps = step.config.norm_eps});
  ops::linear(
      step.ops,
      {.weight = weights.qkv.get(), .x = act.normed, .y = act.qkv, .num_tokens = num_tokens, .scratch = act.scratch});
  rotate_and_write(step, weights, kv);
  attend(step, kv);
  ops::linear(step.ops, {.weight = weights.attention_output.get(),
                         .x = act.attention,
                         .y = act.residual,
                         .num_tokens = num_tokens,
                         .accumulate = true,
                         .scratch = act.scratch});
}

}  // namespace vayu::model
