#include "model/device_buffers.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "ops/attention/device_decode.h"
#include "ops/attention/device_mla.h"
#include "ops/cuda/num_sms.h"
#include "ops/gemm/cuda_matrix.h"
#include "ops/gemm/stream_linear.h"
#include "ops/moe/device_route.h"
#include "ops/moe/stream_experts.h"

namespace vayu::model {
namespace {

// Hands out 1024-byte aligned pieces: with a null base it only adds up.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  void* take(int64_t bytes) {
    void* p = base_ ? base_ + used_ : nullptr;
    used_ += (bytes + 1023) / 1024 * 1024;
    return p;
  }
  template <class T>
  T* array(int64_t rows, int64_t cols) {
    return static_cast<T*>(take(rows * cols * static_cast<int64_t>(sizeof(T))));
  }
  FormRows rows(int64_t rows, int64_t cols, const RowForms& forms, int32_t scale_group) {
    FormRows out;
    if (forms.f8) {
      out.f8.data = take(rows * cols);
      out.f8.scales = array<float>(rows, scale_group ? cols / scale_group : 1);
      out.f8.cols = cols;
      out.f8.scale_group = scale_group;
    }
    if (forms.bf16) {
      out.bf16.data = take(rows * cols * int64_t{sizeof(ops::Bf16)});
      out.bf16.cols = cols;
    }
    return out;
  }
  int64_t used() const { return used_; }
  // What is taken from here on lies where something else does that is in use at other times.
  void back_to(int64_t used) { used_ = used; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

void carve_moe(Carver& carver, const ModelConfig& config, const DeviceModelOptions& options, const InputForms& forms,
               DeviceActivations& act) {
  const int64_t tokens = options.max_step_tokens;
  const ops::RouterShape& router = config.moe.router;
  act.expert_ids = carver.array<int32_t>(tokens, router.top_k);
  act.expert_weights = carver.array<float>(tokens, router.top_k);
  act.expert_indptr = carver.array<int32_t>(1, router.num_experts + 1);
  act.sorted_tokens = carver.array<int32_t>(tokens, router.top_k);
  act.pair_position = carver.array<int32_t>(tokens, router.top_k);
  const int64_t rows = tokens * (router.top_k + 1);
  // Half tiles have twice the scales a row.
  const int64_t mlp_rows = std::max<int64_t>(tokens, 2 * ops::kStreamExpertsHalvesTokens) * (router.top_k + 1);
  act.expert_mlp = carver.rows(mlp_rows, ops::padded_ffn(config.moe.expert_ffn), forms.expert_mlp, ops::kScaleGroup);
  act.expert_out = carver.array<ops::Bf16>(rows, config.hidden);
  act.route_scratch = carver.take(ops::device_route_scratch_bytes(router, tokens));
  act.experts_workspace = carver.take(ops::stream_experts_workspace_bytes());
}

// Pages of the scratch for prompts over FP8 pages.
int32_t wide_capacity(const ModelConfig& config, const DeviceModelOptions& options) {
  const bool has_use = has_prefill_kernel(config) || config.has_mla();
  if (options.kv_format == ops::DeviceKvFormat::kBF16 || !has_use) return 0;
  return ops::device_prefill_wide_pages(options.max_rows, options.max_context);
}

// Where there is no kernel for prompts, every token of one is a row of the decode kernel: slow, and for tiny models
// alone. Latent attention takes rows as they are.
bool expands_prompts(const ModelConfig& config) { return !config.has_mla() && !has_prefill_kernel(config); }

int64_t max_batch_rows(const ModelConfig& config, const DeviceModelOptions& options) {
  return expands_prompts(config) ? options.max_step_tokens : options.max_rows;
}

ops::PrefillHeads prefill_heads(const ModelConfig& config) {
  return {.group = config.num_q_heads / config.num_kv_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim};
}

int64_t max_tiles(const ModelConfig& config, const DeviceModelOptions& options) {
  if (!has_prefill_kernel(config)) return 0;
  return ops::max_device_prefill_tiles(options.max_step_tokens, options.max_rows, prefill_heads(config));
}

int64_t max_items(const ModelConfig& config, const DeviceModelOptions& options) {
  if (!has_prefill_kernel(config)) return 0;
  return ops::max_device_prefill_items(options.max_step_tokens, options.max_rows, prefill_heads(config));
}

constexpr int64_t kItemWords = sizeof(ops::PrefillItem) / sizeof(int32_t);
constexpr int64_t kMergeWords = sizeof(ops::PrefillMerge) / sizeof(int32_t);

int64_t round_up(int64_t words) { return (words + 31) / 32 * 32; }

void carve_attention(Carver& carver, const ModelConfig& config, const DeviceModelOptions& options,
                     DeviceActivations& act) {
  const ops::DeviceKvLayer kv = device_kv_shape(config, options.kv_format);
  act.wide_capacity = wide_capacity(config, options);
  act.wide_pages = carver.array<ops::Bf16>(act.wide_capacity, kv.page_elements());
  if (config.has_mla()) {
    const int64_t heads = int64_t{options.max_step_tokens} * config.num_q_heads;
    const int64_t begin = carver.used();
    act.q_latent = carver.array<ops::Bf16>(heads, config.head_dim);
    act.latent_out = carver.array<ops::Bf16>(heads, config.mla.latent_dim);
    if (config.mla.expands_prompts) {
      const int64_t absorbed_end = carver.used(), capacity = expanded_capacity(config, options);
      carver.back_to(begin);
      act.context_latents = carver.array<ops::Bf16>(capacity, config.mla.latent_dim);
      act.context_rope = carver.array<ops::Bf16>(capacity, config.mla.rope_dim);
      act.expanded_kv =
          carver.array<ops::Bf16>(capacity, int64_t{config.num_q_heads} * (config.mla.nope_dim + config.mla.v_dim));
      carver.back_to(std::max(carver.used(), absorbed_end));
    }
    act.attention_scratch = carver.take(ops::mla_attention_scratch_bytes(config.num_q_heads, kv));
    return;
  }
  const auto rows = static_cast<int32_t>(std::min<int64_t>(max_batch_rows(config, options), ops::kDecodeMaxRows));
  act.attention_scratch = carver.take(ops::decode_attention_scratch_bytes(kv, rows));
  if (has_prefill_kernel(config)) {
    act.prefill_parts = static_cast<float*>(carver.take(ops::device_prefill_scratch_bytes(config.head_dim)));
  }
}

DeviceActivations carve(Carver& carver, const ModelConfig& config, const DeviceModelOptions& options,
                        const InputForms& forms) {
  const int64_t tokens = options.max_step_tokens;
  const int64_t ffn = ops::padded_ffn(std::max(config.ffn, config.moe.shared_ffn));
  DeviceActivations act;
  act.residual = carver.array<ops::Bf16>(tokens, config.hidden);
  act.delta = carver.array<ops::Bf16>(tokens, config.hidden);
  act.x = carver.rows(tokens, config.hidden, forms.x, 0);
  act.linear_workspace = carver.take(ops::stream_linear_workspace_bytes());
  act.qkv = carver.array<ops::Bf16>(tokens, config.qkv_width());
  // Prompts and latent attention write BF16, which is quantised where FP8 is wanted.
  act.attention = carver.rows(tokens, config.attention_width(), {.f8 = forms.attention.f8, .bf16 = true}, 0);
  if (ffn > 0) {
    act.gate_up = carver.array<ops::Bf16>(kStreamRows, 2 * ffn);
    act.mlp = carver.rows(tokens, ffn, forms.mlp, ops::kScaleGroup);
  }
  if (config.has_moe()) carve_moe(carver, config, options, forms, act);
  carve_attention(carver, config, options, act);
  act.head_input = carver.rows(options.max_logits, config.hidden, forms.head, 0);
  act.logits = carver.array<float>(options.max_logits, config.vocab_size);
  return act;
}

}  // namespace

ops::DeviceKvLayer device_kv_shape(const ModelConfig& config, ops::DeviceKvFormat format) {
  return {.format = format,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .page_size = kDevicePageSize,
          .latent_dim = config.mla.latent_dim};
}

int64_t device_kv_bytes_per_page(const ModelConfig& config, ops::DeviceKvFormat format) {
  return config.num_layers * device_kv_shape(config, format).page_bytes();
}

bool has_prefill_kernel(const ModelConfig& config) {
  return !config.has_mla() && (config.head_dim == 64 || config.head_dim == 128);
}

DeviceBuffers::Places DeviceBuffers::places(const ModelConfig& config, const DeviceModelOptions& options) {
  const int64_t tokens = options.max_step_tokens;
  const int64_t rows = max_batch_rows(config, options);
  const int64_t row_pages = (options.max_context + kDevicePageSize - 1) / kDevicePageSize + 1;
  int64_t at = 0;
  const auto take = [&](int64_t words) {
    const int64_t place = at;
    at += round_up(words);
    return place;
  };
  Places p;
  p.token_ids = take(tokens);
  p.prev_index = take(tokens);
  p.positions = take(tokens);
  p.slots = take(tokens);
  p.logit_rows = take(options.max_logits);
  p.qo_indptr = take(rows + 1);
  p.kv_indptr = take(rows + 1);
  p.kv_lens = take(rows);
  p.decode_rows = take(rows);
  p.num_valid = take(1);
  p.page_table = take(options.max_rows * row_pages * (wide_capacity(config, options) > 0 ? 2 : 1));  // + wide_sources
  // At the latest: items and merges follow the pages of the batch. All is rounded up, the last too: the second batch
  // begins at the end of the first, and its items are written 16 bytes at a time.
  p.lists = at;
  if (has_prefill_kernel(config)) {
    take(max_items(config, options) * kItemWords + ops::kPrefillMaxBlocks * kMergeWords);
  } else if (config.mla.expands_prompts) {
    take(LatentPlanner::max_words(config, options));
  }
  p.end = at;
  return p;
}

DeviceBufferPlan plan_device_buffers(const ModelConfig& config, const DeviceModelOptions& options,
                                     const InputForms& forms) {
  Carver carver(nullptr);
  carve(carver, config, options, forms);
  const int64_t words = DeviceBuffers::places(config, options).end;
  return {carver.used() + words * int64_t{sizeof(int32_t)}, words};
}

Result<DeviceBuffers> DeviceBuffers::create(const DeviceBufferPlan& plan, const ModelConfig& config,
                                            const DeviceModelOptions& options, const InputForms& forms) {
  DeviceBuffers buffers;
  const int64_t input_bytes = plan.input_words * int64_t{sizeof(int32_t)};
  VAYU_ASSIGN_OR_RETURN(buffers.memory_, ops::DeviceMemory::create(plan.bytes - input_bytes));
  VAYU_ASSIGN_OR_RETURN(buffers.device_inputs_, ops::DeviceMemory::create(input_bytes));
  VAYU_ASSIGN_OR_RETURN(buffers.pinned_, ops::DeviceMemory::create_pinned(2 * input_bytes));
  Carver carver(buffers.memory_.data());
  buffers.act = carve(carver, config, options, forms);
  buffers.places_ = places(config, options);
  buffers.input_words_ = plan.input_words;
  buffers.tiles_.resize(max_tiles(config, options));
  buffers.max_items_ = max_items(config, options);
  buffers.wide_capacity_ = wide_capacity(config, options);
  buffers.passes_.resize(options.max_rows);
  if (config.mla.expands_prompts) buffers.latent_ = LatentPlanner(config, options);
  buffers.row_capacity_ = max_batch_rows(config, options);
  return buffers;
}

void DeviceBuffers::clear_inputs() {
  StepShape shape;
  turn_ ^= 1;
  pad(static_cast<int32_t>(row_capacity_), Batch{}, shape);
}

// Rows [of the batch, rows) become padding.
void DeviceBuffers::pad(int32_t rows, const Batch& batch, StepShape& shape) {
  int32_t* words = host();
  const Places& p = places_;
  const int32_t have = batch.num_rows();
  const auto pages = static_cast<int32_t>(batch.page_table.size());
  for (int32_t r = have; r < rows; ++r) {
    words[p.token_ids + r] = words[p.prev_index + r] = -1;
    words[p.positions + r] = 0;
    words[p.slots + r] = -1;
    words[p.kv_lens + r] = 0;
  }
  words[p.qo_indptr] = words[p.kv_indptr] = 0;
  for (int32_t r = have; r < rows; ++r) {
    words[p.qo_indptr + r + 1] = r + 1;
    words[p.kv_indptr + r + 1] = pages;
  }
  for (int32_t r = 0; r < rows; ++r) words[p.decode_rows + r] = r;
  const auto logits = static_cast<int32_t>(p.qo_indptr - p.logit_rows);
  for (int32_t i = batch.num_logits(); i < std::min(rows, logits); ++i) words[p.logit_rows + i] = -1;
  words[p.num_valid] = batch.num_tokens();
  used_words_ = std::max(used_words_, p.page_table + pages);
  shape.num_tokens = shape.num_rows = shape.num_logits = shape.num_decode_rows = rows;
}

void DeviceBuffers::fill_rows(const Batch& batch, bool expand, StepShape& shape) {
  int32_t* words = host();
  const Places& p = places_;
  if (!expand) {
    std::copy(batch.qo_indptr.begin(), batch.qo_indptr.end(), words + p.qo_indptr);
    std::copy(batch.kv_indptr.begin(), batch.kv_indptr.end(), words + p.kv_indptr);
    std::copy(batch.kv_lens.begin(), batch.kv_lens.end(), words + p.kv_lens);
    for (int32_t r = 0; r < batch.num_rows(); ++r) {
      if (batch.qo_indptr[r + 1] - batch.qo_indptr[r] == 1) words[p.decode_rows + shape.num_decode_rows++] = r;
    }
    shape.num_rows = batch.num_rows();
    return;
  }
  // Each token a row of its own over the pages of its sequence.
  int32_t t = 0;
  for (int32_t r = 0; r < batch.num_rows(); ++r) {
    const int32_t tokens = batch.qo_indptr[r + 1] - batch.qo_indptr[r];
    for (int32_t i = 0; i < tokens; ++i, ++t) {
      words[p.qo_indptr + t] = t;
      words[p.kv_indptr + t] = batch.kv_indptr[r];
      words[p.kv_lens + t] = batch.kv_lens[r] - (tokens - 1 - i);
      words[p.decode_rows + t] = t;
    }
  }
  words[p.qo_indptr + t] = t;
  words[p.kv_indptr + t] = static_cast<int32_t>(batch.page_table.size());
  shape.num_rows = shape.num_decode_rows = t;
}

void DeviceBuffers::fill_tiles(const Batch& batch, const ModelConfig& config, StepShape& shape) {
  int32_t* words = host();
  const auto pages = static_cast<int64_t>(batch.page_table.size());
  const int64_t max_sources = wide_capacity_ > 0 ? pages : 0;
  wide_sources_at_ = places_.page_table + pages;
  items_at_ = round_up(wide_sources_at_ + max_sources);
  std::array<ops::PrefillMerge, ops::kPrefillMaxBlocks> merges;
  ops::PrefillPlan plan{.num_blocks = std::min(ops::num_sms(), ops::kPrefillMaxBlocks),
                        .tiles = tiles_.data(),
                        .max_tiles = static_cast<int64_t>(tiles_.size()),
                        .items = reinterpret_cast<ops::PrefillItem*>(words + items_at_),
                        .max_items = max_items_,
                        .merges = merges.data(),
                        .max_merges = static_cast<int32_t>(merges.size()),
                        .passes = passes_.data(),
                        .max_passes = static_cast<int32_t>(passes_.size()),
                        .wide_capacity = wide_capacity_,
                        .wide_sources = words + wide_sources_at_,
                        .max_sources = max_sources};
  ops::plan_device_prefill({.qo_indptr = batch.qo_indptr.data(),
                            .kv_indptr = batch.kv_indptr.data(),
                            .page_table = batch.page_table.data(),
                            .kv_lens = batch.kv_lens.data(),
                            .num_rows = batch.num_rows()},
                           ops::PrefillRows::kMultiToken, prefill_heads(config), plan);
  merges_at_ = items_at_ + plan.num_items * kItemWords;
  std::memcpy(words + merges_at_, merges.data(), plan.num_merges * sizeof(ops::PrefillMerge));
  shape.num_tiles = plan.num_tiles;
  shape.passes = plan.passes;
  shape.num_passes = plan.num_passes;
  used_words_ = merges_at_ + plan.num_merges * kMergeWords;
}

StepShape DeviceBuffers::fill(const Batch& batch, const ModelConfig& config, const DeviceModelOptions& options,
                              int32_t graph_rows, int32_t first_prev) {
  VAYU_CHECK(batch.num_tokens() <= options.max_step_tokens && batch.num_rows() <= options.max_rows &&
                 batch.num_logits() <= options.max_logits,
             "a batch of {} tokens, {} rows, {} logits", batch.num_tokens(), batch.num_rows(), batch.num_logits());
  turn_ ^= 1;
  int32_t* words = host();
  const Places& p = places_;
  StepShape shape{.num_tokens = batch.num_tokens(), .num_logits = batch.num_logits()};
  shape.num_table_pages = static_cast<int32_t>(batch.page_table.size());
  shape.decode_only = batch.num_rows() == batch.num_tokens();
  for (const int32_t length : batch.kv_lens) shape.max_context = std::max(shape.max_context, length);
  std::copy(batch.token_ids.begin(), batch.token_ids.end(), words + p.token_ids);
  std::fill_n(words + p.prev_index, batch.num_tokens(), -1);
  for (size_t t = 0; t < batch.prev_samples.size(); ++t) {
    if (batch.prev_samples[t] >= 0) words[p.prev_index + t] = first_prev + batch.prev_samples[t];
  }
  std::copy(batch.positions.begin(), batch.positions.end(), words + p.positions);
  std::copy(batch.slot_mapping.begin(), batch.slot_mapping.end(), words + p.slots);
  std::copy(batch.logit_rows.begin(), batch.logit_rows.end(), words + p.logit_rows);
  const int64_t page_words = static_cast<int64_t>(batch.page_table.size()) * (wide_capacity_ > 0 ? 2 : 1);
  VAYU_CHECK(p.page_table + page_words <= p.lists, "{} pages in one batch", batch.page_table.size());
  std::copy(batch.page_table.begin(), batch.page_table.end(), words + p.page_table);
  words[p.num_valid] = batch.num_tokens();
  fill_rows(batch, !shape.decode_only && expands_prompts(config), shape);
  used_words_ = p.page_table + static_cast<int64_t>(batch.page_table.size());
  if (!shape.decode_only && has_prefill_kernel(config)) fill_tiles(batch, config, shape);
  if (!shape.decode_only && config.mla.expands_prompts) {
    const int32_t blocks = std::min(ops::num_sms(), ops::kPrefillMaxBlocks);
    used_words_ = latent_.plan(batch, blocks, words, used_words_, shape.latent);
  }
  if (graph_rows > 0) pad(graph_rows, batch, shape);
  return shape;
}

Status DeviceBuffers::upload(ops::CudaStream stream) {
  return ops::copy_to_device(device_inputs_.data(), host(), used_words_ * int64_t{sizeof(int32_t)}, stream);
}

DeviceInputs DeviceBuffers::inputs() const {
  const auto* words = reinterpret_cast<const int32_t*>(device_inputs_.data());
  DeviceInputs in;
  in.words = words;
  in.batch.positions = words + places_.positions;
  in.batch.slot_mapping = words + places_.slots;
  in.batch.qo_indptr = words + places_.qo_indptr;
  in.batch.kv_indptr = words + places_.kv_indptr;
  in.batch.page_table = words + places_.page_table;
  in.batch.kv_lens = words + places_.kv_lens;
  in.token_ids = words + places_.token_ids;
  in.prev_index = words + places_.prev_index;
  in.logit_rows = words + places_.logit_rows;
  in.decode_rows = words + places_.decode_rows;
  in.num_valid = words + places_.num_valid;
  in.wide_sources = words + wide_sources_at_;
  in.prefill_items = reinterpret_cast<const ops::PrefillItem*>(words + items_at_);
  in.prefill_merges = reinterpret_cast<const ops::PrefillMerge*>(words + merges_at_);
  return in;
}

}  // namespace vayu::model
