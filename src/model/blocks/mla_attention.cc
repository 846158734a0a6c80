#include "model/blocks/mla_attention.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "ops/attention/mla_expanded_attention.h"
#include "ops/attention/paged_attention.h"
#include "ops/gemm/linear.h"
#include "ops/moe/grouped_linear.h"
#include "ops/norm/rms_norm.h"
#include "ops/rope/mla_rope_kv_write.h"

namespace vayu::model {
namespace {

constexpr float kLatentNormEps = 1e-6f;  // fixed in the model's own code, whatever the configuration says

ops::MlaExpandedShape expanded_shape(const ModelConfig& config) {
  return {config.num_q_heads, config.mla.nope_dim, config.mla.rope_dim, config.mla.v_dim, config.mla.latent_dim};
}

void rotate_and_write(const Step& step, const LayerWeights& weights, const ops::KvLayer& kv) {
  ops::MlaRopeKvWriteArgs args;
  args.q_kv = step.act.qkv;
  args.positions = step.batch.positions.data();
  args.slot_mapping = step.batch.slot_mapping.data();
  args.inv_freq = step.rope.inv_freq.data();
  args.attention_factor = step.rope.attention_factor;
  args.latent_norm = weights.latent_norm.data();
  args.norm_eps = kLatentNormEps;
  args.pairing = step.config.rope.pairing;
  args.nope_dim = step.config.mla.nope_dim;
  args.rope_dim = step.config.mla.rope_dim;
  args.num_q_heads = step.config.num_q_heads;
  args.num_tokens = step.batch.num_tokens();
  args.kv = kv;
  ops::mla_rope_kv_write(step.ops, args);
}

// Floats that the place of every head of every token in a row of qkv is a multiple of.
int64_t head_unit(const ModelConfig& config) {
  return std::gcd(int64_t{config.mla.nope_dim + config.mla.rope_dim}, int64_t{config.head_dim});
}

// Rows (head, token) of the per-head linears: row i of head h is token i. Queries lie in qkv, counted in head_unit;
// everywhere else token t's head h is row t * num_q_heads + h.
void list_heads(const Step& step) {
  const ModelConfig& config = step.config;
  const int32_t num_tokens = step.batch.num_tokens();
  const int32_t heads = config.num_q_heads;
  const int64_t unit = head_unit(config);
  const int64_t q_dim = config.mla.nope_dim + config.mla.rope_dim;
  for (int32_t h = 0; h <= heads; ++h) step.act.head_indptr[h] = h * num_tokens;
  for (int32_t h = 0; h < heads; ++h) {
    for (int32_t t = 0; t < num_tokens; ++t) {
      step.act.head_rows[h * num_tokens + t] = t * heads + h;
      step.act.head_queries[h * num_tokens + t] = static_cast<int32_t>((t * config.qkv_width() + h * q_dim) / unit);
    }
  }
}

ops::GroupedLinearArgs per_head(const Step& step, const ops::Matrix* weight) {
  ops::GroupedLinearArgs args;
  args.weight = weight;
  args.num_groups = step.config.num_q_heads;
  args.group_indptr = step.act.head_indptr;
  args.x_rows = step.act.head_rows;
  args.y_rows = step.act.head_rows;
  args.scratch = step.act.scratch;
  return args;
}

// Queries into the space of the cache: q_nope U_K, then q_pe as it is.
void absorb_queries(const Step& step, const LayerWeights& weights) {
  const ModelConfig& config = step.config;
  const int64_t q_dim = config.mla.nope_dim + config.mla.rope_dim;
  const int64_t heads = config.num_q_heads;
  for (int64_t t = 0; t < step.batch.num_tokens(); ++t) {
    const float* q = step.act.qkv + t * config.qkv_width();
    for (int64_t h = 0; h < heads; ++h) {
      float* rotary = step.act.latent_q + (t * heads + h) * config.head_dim + config.mla.latent_dim;
      std::memcpy(rotary, q + h * q_dim + config.mla.nope_dim, config.mla.rope_dim * sizeof(float));
    }
  }
  ops::GroupedLinearArgs args = per_head(step, weights.latent_to_k.get());
  args.x_rows = step.act.head_queries;
  args.x = step.act.qkv;
  args.x_stride = head_unit(config);
  args.y = step.act.latent_q;
  args.y_stride = config.head_dim;
  ops::grouped_linear(step.ops, args);
}

void attend_absorbed(const Step& step, const LayerWeights& weights, const ops::KvLayer& kv) {
  list_heads(step);
  absorb_queries(step, weights);
  ops::PagedAttentionArgs args;
  args.q = step.act.latent_q;
  args.q_stride = int64_t{step.config.num_q_heads} * step.config.head_dim;
  args.out = step.act.latent_out;
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

  ops::GroupedLinearArgs values = per_head(step, weights.latent_to_v.get());
  values.x = step.act.latent_out;
  values.x_stride = step.config.mla.latent_dim;
  values.y = step.act.attention;
  values.y_stride = step.config.mla.v_dim;
  ops::grouped_linear(step.ops, values);
}

void attend_expanded(const Step& step, const LayerWeights& weights, const ops::KvLayer& kv) {
  ops::MlaExpandedArgs args;
  args.shape = expanded_shape(step.config);
  args.q = step.act.qkv;
  args.q_stride = step.config.qkv_width();
  args.latent_to_k = weights.latent_to_k.get();
  args.latent_to_v = weights.latent_to_v.get();
  args.out = step.act.attention;
  args.qo_indptr = step.batch.qo_indptr.data();
  args.kv_indptr = step.batch.kv_indptr.data();
  args.page_table = step.batch.page_table.data();
  args.kv_lens = step.batch.kv_lens.data();
  args.num_rows = step.batch.num_rows();
  args.scale = step.config.attention_scale;
  args.kv = kv;
  args.scratch = step.act.scratch;
  ops::mla_expanded_attention(step.ops, args);
}

}  // namespace

void mla_attention(const Step& step, const LayerWeights& weights, const ops::KvLayer& kv) {
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
  const bool absorbed = step.config.mla.form != MlaForm::kExpanded;
  (absorbed ? attend_absorbed : attend_expanded)(step, weights, kv);
  ops::linear(step.ops, {.weight = weights.attention_output.get(),
                         .x = act.attention,
                         .y = act.residual,
                         .num_tokens = num_tokens,
                         .accumulate = true,
                         .scratch = act.scratch});
}

int64_t mla_scratch_bytes(const ops::OpContext& ops, const ModelConfig& config, const ops::KvLayer& kv,
                          int64_t max_tokens, int64_t max_context) {
  if (config.mla.form == MlaForm::kExpanded) {
    return ops::mla_expanded_scratch_bytes(ops, expanded_shape(config), max_tokens);
  }
  const int64_t cols = std::max(config.mla.latent_dim, config.mla.nope_dim);
  return std::max(ops::paged_attention_scratch_bytes(ops, config.num_q_heads, kv, max_tokens, max_context),
                  ops::grouped_linear_scratch_bytes(ops, max_tokens * config.num_q_heads, cols, config.num_q_heads));
}

}  // namespace vayu::model
