// One step runs one ragged batch: the new tokens of all rows back to back. A row with one new token decodes, a row with
// more is a prefill chunk; there is no prefill or decode flag on a batch.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "core/request.h"
#include "core/types.h"

namespace vayu {

// What to do with one row of logits.
struct SampleTask {
  int32_t logit_row = 0;  // index into Batch::logit_rows
  SeqId seq = 0;
  const SamplingParams* params = nullptr;  // lives until the step has landed
  std::span<const TokenId> tokens;         // prompt, then output so far (for penalties)
  int32_t prev_sample = -1;  // >= 0: one more output token follows, that of this sample of the step before
  int32_t prompt_len = 0;
  uint64_t seed = 0;                // the answer's own seed
  int32_t output_index = 0;         // how many tokens are out; seed and index alone fix the random number
  TokenId target = kNoToken;        // >= 0: do not sample, score this token (prompt log-probabilities)
  TokenId forced = kNoToken;        // >= 0: debug hook, take this token (log-probabilities stay real)
  bool poison = false;              // debug hook: NaN logits
  std::span<const TokenId> banned;  // ids that must not be sampled now (min_tokens)
};

// Engine thread only. Vectors are reserved at start-up for the largest step and never grow past that.
struct Batch {
  std::vector<TokenId> token_ids;  // (num_tokens)
  // (num_tokens), or empty. Where not -1, the id is not known yet (token_ids says kNoToken): the one that this sample
  // of the step launched before gives, which is still under way. Only for executors that overlap.
  std::vector<int32_t> prev_samples;
  std::vector<int32_t> positions;     // (num_tokens)
  std::vector<int32_t> slot_mapping;  // (num_tokens) where K and V of the token go: page * page_size + offset
  std::vector<int32_t> qo_indptr;     // (num_rows + 1) token range of each row
  std::vector<int32_t> kv_indptr;     // (num_rows + 1) range of each row in page_table
  std::vector<PageId> page_table;     // pages of each row in order
  std::vector<int32_t> kv_lens;       // (num_rows) tokens in the KV cache once this step's are written
  std::vector<int32_t> logit_rows;    // (num_logits) token indices whose logits are wanted, ascending
  std::vector<SampleTask> samples;    // one for each logit row, same order

  int32_t num_tokens() const { return static_cast<int32_t>(token_ids.size()); }
  int32_t num_rows() const { return static_cast<int32_t>(kv_lens.size()); }
  int32_t num_logits() const { return static_cast<int32_t>(logit_rows.size()); }
  void clear();  // empties, keeps capacity; qo_indptr and kv_indptr hold their leading 0
};

struct SampleResult {
  TokenId token = kNoToken;  // the sampled, forced or scored token
  float logprob = 0;         // of `token`, from the unmodified logits (before temperature, penalties and bias)
  int32_t num_top = 0;
  std::array<TokenLogprob, kMaxTopLogprobs> top;  // most likely first
  bool finite = true;                             // false: the row held NaN or no finite logit; the request must fail
};

struct StepOutput {
  std::vector<SampleResult> results;  // one for each Batch::samples, same order
  std::optional<Error> failure;       // the step came to nothing and no later one will run: a lost device, above all
};

}  // namespace vayu
