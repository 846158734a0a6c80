// Everything a step of DeviceModel writes but KV pages: activations, and the batch on its way to the device.
#pragma once

#include <cstdint>
#include <vector>

#include "core/batch.h"
#include "model/device_formats.h"
#include "model/device_model.h"
#include "model/latent_plan.h"
#include "ops/attention/device_prefill.h"
#include "ops/cuda/device.h"

namespace vayu::model {

// The input of linears: a linear reads it in the format of its weight.
struct FormRows {
  ops::ActRows f8, bf16;  // no data: no linear reads that
  const ops::ActRows& of(const ops::DeviceMatrix& weight) const { return weight.is_f8() ? f8 : bf16; }
};

// All in device memory; null where the model has no use for one. T = max_step_tokens, k = top_k.
struct DeviceActivations {
  ops::Bf16* residual = nullptr;    // (T, hidden)
  ops::Bf16* delta = nullptr;       // (T, hidden) what the last half of a layer adds to the residual
  FormRows x;                       // (T, hidden) normed: input of the next linear
  ops::Bf16* qkv = nullptr;         // (T, qkv_width)
  ops::Bf16* q_latent = nullptr;    // MLA: (T, heads, latent_dim + rope_dim) queries in the space of the cache
  ops::Bf16* latent_out = nullptr;  // MLA: (T, heads, latent_dim)
  // MLA that expands prompts, C = expanded_capacity(): in the memory of the two above, which are in use before.
  ops::Bf16* context_latents = nullptr;  // (C, latent_dim)
  ops::Bf16* context_rope = nullptr;     // (C, rope_dim)
  ops::Bf16* expanded_kv = nullptr;      // (C, heads * (nope_dim + v_dim)): all keys, then all values
  FormRows attention;                    // (T, attention_width)
  ops::Bf16* gate_up = nullptr;          // (kStreamRows, 2 * dense or shared ffn)
  FormRows mlp;                          // (T, dense or shared ffn), scales by group
  int32_t* expert_ids = nullptr;         // (T, k)
  float* expert_weights = nullptr;       // (T, k)
  int32_t* expert_indptr = nullptr;      // (num_experts + 1)
  int32_t* sorted_tokens = nullptr;      // (T * k)
  int32_t* pair_position = nullptr;      // (T, k)
  FormRows expert_mlp;                   // (T * (k + 1), expert ffn), scales by group
  ops::Bf16* expert_out = nullptr;       // (T * (k + 1), hidden)
  void* linear_workspace = nullptr;
  void* route_scratch = nullptr;
  void* experts_workspace = nullptr;
  void* attention_scratch = nullptr;
  float* prefill_parts = nullptr;   // device_prefill_scratch_bytes()
  ops::Bf16* wide_pages = nullptr;  // FP8 pages of prompts as BF16: device_prefill_wide_pages()
  int32_t wide_capacity = 0;        // of them
  FormRows head_input;              // (max_logits, hidden)
  float* logits = nullptr;          // (max_logits, vocab_size)
};

constexpr int32_t kStreamRows = 64;  // rows up to which a linear is streamed rather than multiplied by tiles

// The batch in device memory; see DeviceBatch for the padding.
struct DeviceInputs {
  ops::DeviceBatch batch;
  const int32_t* words = nullptr;         // everything below and above: LatentStep names places in it
  const int32_t* token_ids = nullptr;     // (num_tokens)
  const int32_t* prev_index = nullptr;    // (num_tokens) as of GatherRowsArgs
  const int32_t* logit_rows = nullptr;    // (num_logits)
  const int32_t* decode_rows = nullptr;   // rows of one token
  const int32_t* num_valid = nullptr;     // tokens that are no padding
  const int32_t* wide_sources = nullptr;  // these three of batches with prompts alone
  const ops::PrefillItem* prefill_items = nullptr;
  const ops::PrefillMerge* prefill_merges = nullptr;
};

struct StepShape {
  int32_t num_tokens = 0;  // padded
  int32_t num_rows = 0;
  int32_t num_logits = 0;
  int32_t num_decode_rows = 0;
  int32_t num_tiles = 0;
  const ops::PrefillPass* passes = nullptr;  // in DeviceBuffers, until the next batch
  int32_t num_passes = 0;
  LatentStep latent;
  int32_t num_table_pages = 0;  // entries of the page table
  int32_t max_context = 0;      // bound of the rows' lengths
  bool decode_only = false;     // nothing but rows of one token
};

struct DeviceBufferPlan {
  int64_t bytes = 0;
  int64_t input_words = 0;
};

int64_t device_kv_bytes_per_page(const ModelConfig& config, ops::DeviceKvFormat format);
ops::DeviceKvLayer device_kv_shape(const ModelConfig& config, ops::DeviceKvFormat format);
bool has_prefill_kernel(const ModelConfig& config);
DeviceBufferPlan plan_device_buffers(const ModelConfig& config, const DeviceModelOptions& options,
                                     const InputForms& forms);

class DeviceBuffers {
 public:
  DeviceBuffers() = default;
  static Result<DeviceBuffers> create(const DeviceBufferPlan& plan, const ModelConfig& config,
                                      const DeviceModelOptions& options, const InputForms& forms);

  // Lays the batch out in pinned memory. graph_rows > 0: padded to that many rows of one token. first_prev is added to
  // Batch::prev_samples.
  StepShape fill(const Batch& batch, const ModelConfig& config, const DeviceModelOptions& options, int32_t graph_rows,
                 int32_t first_prev);
  void clear_inputs();  // a batch of padding alone
  Status upload(ops::CudaStream stream);
  DeviceInputs inputs() const;

  DeviceActivations act;

 private:
  // Places in the inputs, in words.
  struct Places {
    int64_t token_ids, prev_index, positions, slots, logit_rows, qo_indptr, kv_indptr, kv_lens, decode_rows, num_valid,
        page_table, lists, end;
  };
  static Places places(const ModelConfig& config, const DeviceModelOptions& options);
  friend DeviceBufferPlan plan_device_buffers(const ModelConfig& config, const DeviceModelOptions& options,
                                              const InputForms& forms);
  int32_t* host() const { return reinterpret_cast<int32_t*>(pinned_.data()) + turn_ * input_words_; }
  void fill_rows(const Batch& batch, bool expand, StepShape& shape);
  void fill_tiles(const Batch& batch, const ModelConfig& config, StepShape& shape);
  void pad(int32_t rows, const Batch& batch, StepShape& shape);

  ops::DeviceMemory memory_;
  ops::DeviceMemory device_inputs_;
  ops::DeviceMemory pinned_;  // two batches: the older may still be on its way
  Places places_ = {};
  int64_t input_words_ = 0;
  int64_t used_words_ = 0;
  int32_t turn_ = 0;
  int32_t wide_capacity_ = 0;  // pages; 0: the pages are BF16 already
  // In words, one behind the other behind the page table, so that batches without prompts are short.
  int64_t wide_sources_at_ = 0, items_at_ = 0, merges_at_ = 0;
  int64_t max_items_ = 0;
  std::vector<ops::PrefillTile> tiles_;
  std::vector<ops::PrefillPass> passes_;
  LatentPlanner latent_;
  int64_t row_capacity_ = 0;
};

}  // namespace vayu::model
