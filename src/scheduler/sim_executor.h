// An executor without a model: virtual time from a cost model, and "logits" that are a hash of the whole context.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "core/executor.h"

namespace vayu {

// Virtual time of one step, linear in what the step computes.
struct SimCost {
  double step_us = 1000;
  double token_us = 20;
  double kv_token_us = 0.05;  // each token of context read by a row
  double logit_us = 5;
};

struct SimModel {
  uint64_t seed = 1;
  std::vector<TokenId> end_ids;
  uint32_t end_one_in = 0;         // how often an end id comes; 0: never
  uint32_t non_finite_one_in = 0;  // how often a context gives a NaN row; 0: never
  SimCost cost;
};

// Hash of a context; start with model.seed and extend token by token.
uint64_t sim_extend(uint64_t context, TokenId token, int32_t position);
// What the model says after `context`: depends on nothing but the arguments, as real logits would. prev_token: the
// token that task.prev_sample stands for.
SampleResult sim_sample(const SimModel& model, int32_t vocab_size, uint64_t context, const SampleTask& task,
                        TokenId prev_token = kNoToken);

// Holds (token, position) in each KV slot and reads contexts back through page_table and kv_lens, so a page that is
// shared, freed or written wrongly changes the output. A batch against the contract ends the process. Overlapping, it
// runs a step as late as it may, in wait().
class SimulatedExecutor : public Executor {
 public:
  SimulatedExecutor(SimModel model, const ExecutorLimits& limits, ManualClock& clock, bool overlaps = false);

  const ExecutorLimits& limits() const override { return limits_; }
  bool overlaps() const override { return overlaps_; }
  void launch(const Batch& batch) override;
  void wait(StepOutput& output) override;

  uint64_t tokens_computed() const { return tokens_computed_; }
  double step_cost_us(const Batch& batch) const;

 private:
  struct Slot {
    TokenId token = kNoToken;
    int32_t position = -1;
  };

  TokenId token_id(const Batch& batch, int32_t t) const;
  void check_shape(const Batch& batch) const;
  void check_row(const Batch& batch, int32_t row) const;
  void check_writers(const Batch& batch);
  void check_unknown(const Batch& batch) const;
  void check_against(const Batch& older, const Batch& batch);
  void run_row(const Batch& batch, int32_t row, size_t& next_sample, StepOutput& output) const;

  const SimModel model_;
  const ExecutorLimits limits_;
  ManualClock& clock_;
  const bool overlaps_;
  std::vector<Slot> kv_;               // (num_pages * page_size)
  std::vector<int32_t> page_writer_;   // (num_pages) row that writes the page in this step, or -1
  std::vector<const Batch*> running_;  // oldest first
  std::vector<TokenId> last_tokens_;   // samples of the step that landed last
  uint64_t tokens_computed_ = 0;
};

}  // namespace vayu
