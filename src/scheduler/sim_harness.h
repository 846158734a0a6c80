// Test support: requests through scheduler and simulated executor, answers compared with a run without either.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"
#include "scheduler/sim_executor.h"

namespace vayu {

struct SimAnswer {
  std::vector<OutputToken> tokens;
  std::vector<OutputToken> prompt;
  std::optional<FinishReason> finish;
  TokenId stop_token = kNoToken;
  std::optional<Error> error;
  int32_t cached_tokens = 0;
};

// The answer computed alone, by the plain recurrence: no pages, no batch, no scheduler.
SimAnswer sim_reference(const SimModel& model, const ExecutorLimits& limits, int32_t max_tokens,
                        const std::vector<TokenId>& end_ids, const Request& request, int32_t choice);

// Empty: `got` is what the reference says, or, when it was cancelled, a prefix of it. Otherwise the difference.
std::string sim_difference(const SimAnswer& got, const SimAnswer& reference);

// Scheduler, executor, clock and the answers so far. Audits after each step. Steps overlap where the configuration says
// so.
class SimHarness {
 public:
  SimHarness(SchedulerConfig config, SimModel model, const ExecutorLimits& limits);

  Status add(Request request);
  void cancel(RequestId id, int32_t choice, FinishReason reason) { scheduler.cancel(id, choice, reason); }
  // One turn as the engine takes it: plan and launch; then wait and commit, unless steps overlap and one more may be
  // planned. `during` runs while steps are under way. False: nothing to compute.
  template <class During>
  bool step(During during) {
    const bool planned = scheduler.plan(*batches_[turn_]);
    if (planned) {
      executor.launch(*batches_[turn_]);
      if (executor.overlaps()) turn_ ^= 1;
      ++under_way_;
    }
    if (under_way_ > 0) during();
    committed = under_way_ == (executor.overlaps() ? 2 : 1) || (!planned && under_way_ > 0);
    if (committed) land();
    collect();
    return planned || committed;
  }
  bool step() {
    return step([] {});
  }
  void run() {
    while (scheduler.has_work()) step();
    drain();
  }
  void drain() {  // until no step is under way
    while (under_way_ > 0) {
      land();
      collect();
    }
  }

  const SimAnswer& answer(RequestId id, int32_t choice = 0) const { return answers.at({id, choice}); }
  // Of a request that has ended; see sim_difference.
  std::string difference(const Request& request, int32_t choice = 0) const;

  ManualClock clock;
  const SimModel model;
  SimulatedExecutor executor;
  Scheduler scheduler;
  Batch batch;  // of the step last planned, where steps do not overlap
  StepOutput output;
  bool committed = false;  // by the last step()
  std::map<std::pair<RequestId, int32_t>, SimAnswer> answers;
  std::vector<std::string> faults;  // audit failures, answers that ended twice, news after the end

 private:
  void land() {
    executor.wait(output);
    scheduler.commit(output);
    --under_way_;
  }
  void collect();
  void take(SequenceDelta& delta);

  Batch second_batch_;
  Batch* const batches_[2] = {&batch, &second_batch_};
  int turn_ = 0;
  int under_way_ = 0;
  std::vector<SequenceDelta> deltas_;
};

}  // namespace vayu
