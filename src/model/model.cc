#include "model/model.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "model/blocks/mla_attention.h"
#include "ops/attention/paged_attention.h"
#include "ops/gemm/linear.h"
#include "ops/moe/grouped_linear.h"
#include "ops/norm/rms_norm.h"

namespace vayu::model {
namespace {

Status check_option(std::string_view name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return field_error(std::string(name), "{} is {}, expected {} to {}", name, value, low, high);
}

Status check_options(const ModelLoadOptions& options, const ModelConfig& config) {
  VAYU_RETURN_IF_ERROR(check_option("page_size", options.page_size, 1, 1 << 16));
  // Slots (page * page_size + offset) are 32-bit.
  VAYU_RETURN_IF_ERROR(check_option("num_pages", options.num_pages, 1, INT32_MAX / options.page_size));
  VAYU_RETURN_IF_ERROR(check_option("max_step_tokens", options.max_step_tokens, 1, 1 << 20));
  if (config.has_mla() && int64_t{options.max_step_tokens} * config.qkv_width() > INT32_MAX) {
    return field_error("max_step_tokens", "max_step_tokens is {}: rows of {} floats cannot be numbered in 32 bits",
                       options.max_step_tokens, config.qkv_width());
  }
  VAYU_RETURN_IF_ERROR(check_option("max_rows", options.max_rows, 1, options.max_step_tokens));
  VAYU_RETURN_IF_ERROR(check_option("max_logits", options.max_logits, 1, options.max_step_tokens));
  return check_option("max_context", options.max_context, 1, config.max_context);
}

ops::KvLayer kv_shape(const ModelConfig& config, ops::KvFormat format, int32_t page_size) {
  ops::KvLayer kv;
  kv.format = format;
  kv.num_kv_heads = config.num_kv_heads;
  kv.head_dim = config.head_dim;
  kv.latent_dim = config.mla.latent_dim;
  kv.page_size = page_size;
  return kv;
}

// Hands out 64-byte aligned pieces: with a null base it only adds up.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  void* take(int64_t bytes) {
    void* p = base_ ? base_ + used_ : nullptr;
    used_ += (bytes + 63) / 64 * 64;
    return p;
  }
  float* floats(int64_t rows, int64_t cols) { return static_cast<float*>(take(rows * cols * sizeof(float))); }
  int32_t* integers(int64_t n) { return static_cast<int32_t*>(take(n * sizeof(int32_t))); }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

int64_t scratch_bytes(const ModelConfig& config, const ModelLoadOptions& options) {
  const int64_t tokens = options.max_step_tokens;
  const ops::KvLayer kv = kv_shape(config, options.kv_format, options.page_size);
  const int64_t max_cols =
      std::max<int64_t>({config.hidden, config.attention_width(), config.ffn, config.moe.shared_ffn});
  const int64_t attention = config.has_mla() ? mla_scratch_bytes(options.ops, config, kv, tokens, options.max_context)
                                             : ops::paged_attention_scratch_bytes(options.ops, config.num_q_heads, kv,
                                                                                  tokens, options.max_context);
  int64_t bytes = std::max(ops::linear_scratch_bytes(options.ops, tokens, max_cols), attention);
  if (config.has_moe()) {
    const ops::RouterShape& router = config.moe.router;
    const int64_t cols = std::max(config.hidden, config.moe.expert_ffn);
    bytes = std::max({bytes, ops::route_scratch_bytes(options.ops, router, tokens),
                      ops::grouped_linear_scratch_bytes(options.ops, tokens * router.top_k, cols, router.num_experts)});
  }
  return bytes;
}

void carve_absorbed(Carver& carver, const ModelConfig& config, int64_t tokens, Activations& act) {
  act.latent_q = carver.floats(tokens, int64_t{config.num_q_heads} * config.head_dim);
  act.latent_out = carver.floats(tokens, int64_t{config.num_q_heads} * config.mla.latent_dim);
  act.head_indptr = carver.integers(config.num_q_heads + 1);
  act.head_rows = carver.integers(config.num_q_heads * tokens);
  act.head_queries = carver.integers(config.num_q_heads * tokens);
}

void carve_moe(Carver& carver, const ModelConfig& config, int64_t tokens, Activations& act) {
  const int64_t pairs = tokens * config.moe.router.top_k;
  act.expert_ids = carver.integers(pairs);
  act.expert_weights = carver.floats(pairs, 1);
  act.expert_indptr = carver.integers(config.moe.router.num_experts + 1);
  act.expert_rows = carver.integers(pairs);
  act.expert_tokens = carver.integers(pairs);
  act.expert_gate_up = carver.floats(pairs, int64_t{2} * config.moe.expert_ffn);
  act.expert_mlp = carver.floats(pairs, config.moe.expert_ffn);
  act.expert_out = carver.floats(pairs, config.hidden);
}

Activations carve(Carver& carver, const ModelConfig& config, const ModelLoadOptions& options) {
  const int64_t tokens = options.max_step_tokens;
  const int64_t mlp_width = std::max(config.ffn, config.moe.shared_ffn);
  Activations act;
  act.residual = carver.floats(tokens, config.hidden);
  act.normed = carver.floats(tokens, config.hidden);
  act.qkv = carver.floats(tokens, config.qkv_width());
  act.attention = carver.floats(tokens, config.attention_width());
  act.gate_up = carver.floats(tokens, 2 * mlp_width);
  act.mlp = carver.floats(tokens, mlp_width);
  act.logit_rows = carver.floats(options.max_logits, config.hidden);
  act.scratch = carver.take(scratch_bytes(config, options));
  if (config.has_mla() && config.mla.form != MlaForm::kExpanded) carve_absorbed(carver, config, tokens, act);
  if (config.has_moe()) carve_moe(carver, config, tokens, act);
  return act;
}

}  // namespace

int64_t kv_bytes_per_page(const ModelConfig& config, ops::KvFormat format, int32_t page_size) {
  return config.num_layers * kv_shape(config, format, page_size).page_bytes();
}

int64_t Model::kv_bytes_per_page() const {
  return model::kv_bytes_per_page(recipe_.config, options_.kv_format, options_.page_size);
}

Result<std::unique_ptr<Model>> Model::load(Recipe recipe, const loader::Checkpoint& checkpoint,
                                           const ModelLoadOptions& options) {
  std::unique_ptr<Model> model(new Model(std::move(recipe), options));
  const ModelConfig& config = model->config();
  if (model->options_.max_context == 0) model->options_.max_context = config.max_context;
  VAYU_RETURN_IF_ERROR(check_options(model->options_, config));
  VAYU_RETURN_IF_ERROR(model->plan_workspace());
  VAYU_RETURN_IF_ERROR(model->reserve_kv());
  const WeightOptions weights{.ops = options.ops,
                              .format = options.weight_format,
                              .ignore = options.quantization_ignore,
                              .progress = options.progress};
  VAYU_ASSIGN_OR_RETURN(model->weights_, load_weights(checkpoint, model->recipe_, weights));
  auto rope = rope_frequencies(config.rope, model->weights_.rope_factors);
  if (!rope.ok()) return make_error(rope.error().kind, "{}: {}", checkpoint.path(), rope.error().message);
  model->rope_ = std::move(*rope);
  model->memory_ = {model->weights_.bytes(), model->kv_.bytes(), model->workspace_.bytes()};
  return model;
}

Status Model::plan_workspace() {
  Carver measure(nullptr);
  carve(measure, config(), options_);
  VAYU_ASSIGN_OR_RETURN(workspace_, AnonymousMemory::create(measure.used()));
  Carver carver(workspace_.data());
  act_ = carve(carver, config(), options_);
  return {};
}

Status Model::reserve_kv() {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(kv_bytes_per_page(), int64_t{options_.num_pages}, &bytes)) {
    return field_error("num_pages", "{} KV pages of {} bytes are more than can be addressed", options_.num_pages,
                       kv_bytes_per_page());
  }
  VAYU_ASSIGN_OR_RETURN(kv_, AnonymousMemory::create(bytes));
  return {};
}

ops::KvLayer Model::kv_layer(int32_t layer) const {
  ops::KvLayer kv = kv_shape(config(), options_.kv_format, options_.page_size);
  kv.pages = kv_.data() + layer * options_.num_pages * kv.page_bytes();
  return kv;
}

void Model::check_batch(const Batch& batch) const {
  const int32_t num_tokens = batch.num_tokens();
  VAYU_CHECK(num_tokens <= options_.max_step_tokens, "{} tokens, planned for {}", num_tokens, options_.max_step_tokens);
  VAYU_CHECK(batch.num_rows() <= options_.max_rows, "{} rows, planned for {}", batch.num_rows(), options_.max_rows);
  VAYU_CHECK(batch.num_logits() <= options_.max_logits, "{} logit rows, planned for {}", batch.num_logits(),
             options_.max_logits);
  VAYU_CHECK(batch.positions.size() == batch.token_ids.size() && batch.slot_mapping.size() == batch.token_ids.size(),
             "a batch of unequal parts");
  const int64_t num_slots = int64_t{options_.num_pages} * options_.page_size;
  for (int32_t t = 0; t < num_tokens; ++t) {
    VAYU_CHECK(batch.token_ids[t] >= 0 && batch.token_ids[t] < config().vocab_size, "token id {}", batch.token_ids[t]);
    VAYU_CHECK(batch.positions[t] >= 0 && batch.positions[t] < options_.max_context, "position {}", batch.positions[t]);
    VAYU_CHECK(batch.slot_mapping[t] >= 0 && batch.slot_mapping[t] < num_slots, "slot {}", batch.slot_mapping[t]);
  }
  for (const PageId page : batch.page_table) VAYU_CHECK(page >= 0 && page < options_.num_pages, "page {}", page);
  for (const int32_t row : batch.logit_rows) VAYU_CHECK(row >= 0 && row < num_tokens, "logit row {}", row);
}

void Model::forward(const Batch& batch, float* logits, const RouterObserver* observer) {
  check_batch(batch);
  if (batch.num_tokens() == 0) return;
  const ModelConfig& config = recipe_.config;
  Step step{options_.ops, config, batch, act_, rope_, 0, observer};
  ops::gather_rows(step.ops, *weights_.embedding, batch.token_ids.data(), act_.residual, batch.num_tokens());
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const ops::KvLayer kv = kv_layer(layer);
    step.layer = layer;
    recipe_.layers[layer].attention(step, weights_.layers[layer], kv);
    recipe_.layers[layer].mlp(step, weights_.layers[layer], kv);
  }

  const int64_t num_logits = batch.num_logits();
  if (num_logits == 0) return;
  for (int64_t i = 0; i < num_logits; ++i) {
    const float* row = act_.residual + int64_t{batch.logit_rows[i]} * config.hidden;
    std::memcpy(act_.logit_rows + i * config.hidden, row, config.hidden * sizeof(float));
  }
  ops::rms_norm(step.ops, {.x = act_.logit_rows,
                           .weight = weights_.output_norm.data(),
                           .y = act_.logit_rows,
                           .num_tokens = num_logits,
                           .hidden = config.hidden,
                           .eps = config.norm_eps});
  ops::linear(step.ops, {.weight = &weights_.head_matrix(),
                         .x = act_.logit_rows,
                         .y = logits,
                         .num_tokens = num_logits,
                         .scratch = act_.scratch});
}

}  // namespace vayu::model
