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

// Scheduler, executor, clock and the answers so far. Audits after each step.
class SimHarness {
 public:
  SimHarness(SchedulerConfig config, SimModel model, const ExecutorLimits& limits);

  Status add(Request request);
  void cancel(RequestId id, int32_t choice, FinishReason reason) { scheduler.cancel(id, choice, reason); }
  // One plan, launch, wait, commit; `during` runs while the step is in flight. False: nothing to compute.
  template <class During>
  bool step(During during) {
    const bool planned = scheduler.plan(batch);
    if (planned) {
      executor.launch(batch);
      during();
      executor.wait(output);
      scheduler.commit(output);
    }
    collect();
    return planned;
  }
  bool step() {
    return step([] {});
  }
  void run() {
    while (scheduler.has_work()) step();
  }

  const SimAnswer& answer(RequestId id, int32_t choice = 0) const { return answers.at({id, choice}); }
  // Of a request that has ended; see sim_difference.
  std::string difference(const Request& request, int32_t choice = 0) const;

  ManualClock clock;
  const SimModel model;
  SimulatedExecutor executor;
  Scheduler scheduler;
  Batch batch;
  StepOutput output;
  std::map<std::pair<RequestId, int32_t>, SimAnswer> answers;
  std::vector<std::string> faults;  // audit failures, answers that ended twice, news after the end

 private:
  void collect();
  void take(SequenceDelta& delta);

  std::vector<SequenceDelta> deltas_;
};

}  // namespace vayu
