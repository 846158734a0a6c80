// What a block sees of one step. Buffers are planned at load; a block allocates nothing.
#pragma once

#include "core/batch.h"
#include "model/config.h"
#include "model/weights.h"
#include "ops/context.h"

namespace vayu::model {

// Rows beyond the batch's tokens are stale. All 64-byte aligned.
struct Activations {
  float* residual = nullptr;    // (max_step_tokens, hidden)
  float* normed = nullptr;      // (max_step_tokens, hidden) input of the next linear
  float* qkv = nullptr;         // (max_step_tokens, qkv_width)
  float* attention = nullptr;   // (max_step_tokens, q_width)
  float* gate_up = nullptr;     // (max_step_tokens, 2 * ffn)
  float* mlp = nullptr;         // (max_step_tokens, ffn)
  float* logit_rows = nullptr;  // (max_logits, hidden) rows that go through the head
  void* scratch = nullptr;      // of whichever op runs
};

struct Step {
  const ops::OpContext& ops;
  const ModelConfig& config;
  const Batch& batch;
  const Activations& act;
  const RopeFrequencies& rope;
};

}  // namespace vayu::model
