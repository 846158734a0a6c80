// From logits to tokens: penalties, bias, bans, temperature, top-k, top-p, min-p, then one draw; and log-probabilities.
// Order and definitions, for one row of logits l:
//   1. log-probabilities reported are log_softmax(l) of the unmodified logits
//   2. repetition penalty r over tokens seen in prompt or output: l > 0 ? l / r : l * r   (Keskar et al., 2019)
//   3. frequency and presence penalty over output tokens: l -= count * frequency + (count > 0) * presence
//   4. logit_bias is added (-100 or less: -inf; +100 or more: wins outright); banned ids become -inf
//   5. temperature 0, top_k 1 or top_p 0: argmax, lowest id on a tie
//   6. l /= temperature; top_k keeps the k largest; softmax; min_p drops p < min_p * max p;
//      top_p keeps the smallest set of most likely tokens whose sum reaches top_p
//   7. u = uniform(seed, output_index) from a counter-based generator picks by the cumulative sum, most likely first
// A row with NaN, +inf or without a finite value is reported as not finite, and nothing is drawn from it.
#pragma once

#include <cstdint>

#include "core/batch.h"
#include "ops/context.h"

namespace vayu::ops {

struct SampleArgs {
  const float* logits = nullptr;  // (num_samples, vocab_size), row i belongs to tasks[i]; not modified
  int64_t vocab_size = 0;
  const SampleTask* tasks = nullptr;  // (num_samples)
  SampleResult* results = nullptr;    // (num_samples)
  int64_t num_samples = 0;
  void* scratch = nullptr;  // sample_scratch_bytes, 64-byte aligned
};

int64_t sample_scratch_bytes(const OpContext& ctx, int64_t vocab_size);
void sample(const OpContext& ctx, const SampleArgs& args);

// Uniform in [0, 1) from a seed and a counter alone (Philox or SplitMix style); part of the contract so that every
// backend draws the same.
double counter_uniform(uint64_t seed, uint64_t counter);

}  // namespace vayu::ops
