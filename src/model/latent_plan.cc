#include "model/latent_plan.h"

#include <algorithm>

namespace vayu::model {
namespace {

constexpr int64_t kLeastContext = 8192;
constexpr int64_t kElementBytes = sizeof(ops::Bf16);
constexpr int64_t kItemWords = sizeof(ops::MlaPrefillItem) / sizeof(int32_t);

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

int64_t max_items(const ModelConfig& config, const DeviceModelOptions& options) {
  return ops::max_mla_prefill_tiles(options.max_step_tokens, options.max_rows) * config.num_q_heads;
}

}  // namespace

bool has_expanded_form(const MlaConfig& mla) {
  return mla.nope_dim == ops::kMlaPrefillNope && mla.rope_dim == ops::kMlaPrefillRope &&
         mla.v_dim == ops::kMlaPrefillValue;
}

int64_t expanded_token_bytes(const ModelConfig& config) {
  return (config.head_dim + int64_t{config.num_q_heads} * (config.mla.nope_dim + config.mla.v_dim)) * kElementBytes;
}

int32_t expanded_capacity(const ModelConfig& config, const DeviceModelOptions& options) {
  const int64_t absorbed =
      int64_t{options.max_step_tokens} * config.num_q_heads * (config.head_dim + config.mla.latent_dim) * kElementBytes;
  const int64_t fitting = absorbed / expanded_token_bytes(config) / kDevicePageSize * kDevicePageSize;
  const int64_t least = round_up(std::min<int64_t>(options.max_context, kLeastContext), kDevicePageSize);
  return static_cast<int32_t>(std::min<int64_t>(std::max(fitting, least), 1 << 20));
}

LatentPlanner::LatentPlanner(const ModelConfig& config, const DeviceModelOptions& options)
    : num_heads_(config.num_q_heads),
      capacity_(expanded_capacity(config, options)),
      choice_(config.mla.form == MlaForm::kExpanded ? ops::MlaPrefillChoice::kAlways : ops::MlaPrefillChoice::kCheaper),
      chosen_(options.max_rows),
      rows_(options.max_rows),
      tiles_(ops::max_mla_prefill_tiles(options.max_step_tokens, options.max_rows)),
      passes_(options.max_rows) {}

int64_t LatentPlanner::max_words(const ModelConfig& config, const DeviceModelOptions& options) {
  const int64_t row_pages = (options.max_context + kDevicePageSize - 1) / kDevicePageSize + 1;
  const int64_t items = max_items(config, options) * kItemWords;
  return round_up(options.max_rows * row_pages, 4) + items + 2 * int64_t{options.max_rows} + 1 + 4;
}

int64_t LatentPlanner::plan(const Batch& batch, int32_t num_blocks, int32_t* words, int64_t at, LatentStep& step) {
  const auto max_sources = static_cast<int64_t>(batch.page_table.size());
  step.sources_at = round_up(at, 4);
  step.items_at = step.sources_at + round_up(max_sources, 4);  // 16-byte aligned
  ops::MlaPrefillPlan plan{.num_blocks = num_blocks,
                           .num_heads = num_heads_,
                           .capacity = capacity_,
                           .choice = choice_,
                           .chosen = chosen_.data(),
                           .rows = rows_.data(),
                           .max_rows = static_cast<int32_t>(rows_.size()),
                           .tiles = tiles_.data(),
                           .max_tiles = static_cast<int64_t>(tiles_.size()),
                           .items = reinterpret_cast<ops::MlaPrefillItem*>(words + step.items_at),
                           .max_items = static_cast<int64_t>(tiles_.size()) * num_heads_,
                           .passes = passes_.data(),
                           .sources = words + step.sources_at,
                           .max_sources = max_sources};
  ops::plan_mla_prefill({.qo_indptr = batch.qo_indptr.data(),
                         .kv_indptr = batch.kv_indptr.data(),
                         .page_table = batch.page_table.data(),
                         .kv_lens = batch.kv_lens.data(),
                         .num_rows = batch.num_rows()},
                        plan);
  step.passes = passes_.data();
  step.num_passes = plan.num_passes;
  if (plan.num_passes == 0) return at;
  return list_absorbed(batch, words, step.items_at + plan.num_items * kItemWords, step);
}

int64_t LatentPlanner::list_absorbed(const Batch& batch, int32_t* words, int64_t at, LatentStep& step) const {
  const auto absorbed = [&](int32_t r) { return !chosen_[r] && batch.qo_indptr[r + 1] > batch.qo_indptr[r]; };
  int32_t end = batch.num_rows();
  while (end > 0 && !absorbed(end - 1)) --end;
  int32_t first = 0;
  while (first < end && !absorbed(first)) ++first;
  step.first_row = first;
  step.num_rows = end - first;
  step.first_token = batch.qo_indptr[first];
  step.num_tokens = batch.qo_indptr[end] - step.first_token;
  step.qo_indptr_at = at;
  step.kv_lens_at = at + step.num_rows + 1;
  for (int32_t r = first; r <= end; ++r) words[step.qo_indptr_at + r - first] = batch.qo_indptr[r] - step.first_token;
  for (int32_t r = first; r < end; ++r) {
    const int32_t kv_len = absorbed(r) ? batch.kv_lens[r] : 0;
    words[step.kv_lens_at + r - first] = kv_len;
    step.max_context = std::max(step.max_context, kv_len);
  }
  return step.kv_lens_at + step.num_rows;
}

}  // namespace vayu::model
