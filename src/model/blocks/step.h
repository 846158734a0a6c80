// What a block sees of one step. Buffers are planned at load; a block allocates nothing.
#pragma once

#include <functional>

#include "core/batch.h"
#include "model/config.h"
#include "model/weights.h"
#include "ops/context.h"

namespace vayu::model {

// Rows beyond the batch's tokens are stale. All 64-byte aligned; null where the model has no use for one.
struct Activations {
  float* residual = nullptr;    // (max_step_tokens, hidden)
  float* normed = nullptr;      // (max_step_tokens, hidden) input of the next linear
  float* qkv = nullptr;         // (max_step_tokens, qkv_width)
  float* attention = nullptr;   // (max_step_tokens, attention_width)
  float* gate_up = nullptr;     // (max_step_tokens, 2 * max(ffn, shared_ffn))
  float* mlp = nullptr;         // (max_step_tokens, max(ffn, shared_ffn))
  float* logit_rows = nullptr;  // (max_logits, hidden) rows that go through the head
  void* scratch = nullptr;      // of whichever op runs

  // MLA, absorbed form: queries in the space of the cache, and where each head's rows lie (mla_attention.cc)
  float* latent_q = nullptr;        // (max_step_tokens, num_q_heads, head_dim)
  float* latent_out = nullptr;      // (max_step_tokens, num_q_heads, latent_dim)
  int32_t* head_indptr = nullptr;   // (num_q_heads + 1)
  int32_t* head_rows = nullptr;     // (num_q_heads * max_step_tokens)
  int32_t* head_queries = nullptr;  // (num_q_heads * max_step_tokens)

  // MoE
  int32_t* expert_ids = nullptr;     // (max_step_tokens, top_k)
  float* expert_weights = nullptr;   // (max_step_tokens, top_k)
  int32_t* expert_indptr = nullptr;  // (num_experts + 1)
  int32_t* expert_rows = nullptr;    // (max_step_tokens * top_k) pairs: token * top_k + j
  int32_t* expert_tokens = nullptr;  // (max_step_tokens * top_k) their tokens
  float* expert_gate_up = nullptr;   // (max_step_tokens * top_k, 2 * expert_ffn)
  float* expert_mlp = nullptr;       // (max_step_tokens * top_k, expert_ffn)
  float* expert_out = nullptr;       // (max_step_tokens * top_k, hidden)
};

// Sees the router's choices of each MoE layer of a step: ids (num_tokens, top_k). Called on the engine thread inside
// the step; must not block.
using RouterObserver = std::function<void(int32_t layer, const int32_t* expert_ids, int64_t num_tokens)>;

struct Step {
  const ops::OpContext& ops;
  const ModelConfig& config;
  const Batch& batch;
  const Activations& act;
  const RopeFrequencies& rope;
  int32_t layer = 0;
  const RouterObserver* observer = nullptr;  // null: nobody looks
};

}  // namespace vayu::model
