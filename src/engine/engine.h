// One rank's loop: take requests, plan a step, run it, commit, tell the fronts. Where the executor overlaps, a step is
// planned and launched before the one ahead of it has landed (docs/decisions/0008-overlapped-steps.md). One thread owns
// the scheduler and the executor; everything else talks to it through the inbox. When the executor fails, every open
// answer ends with that error and new requests are refused with it: the process is of no more use, and whoever owns it
// should end it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "core/engine_client.h"
#include "core/executor.h"
#include "scheduler/scheduler.h"

namespace vayu {

struct EngineConfig {
  std::string model_name;
  SchedulerConfig scheduler;
  int32_t max_open_requests = 4096;  // running and waiting together; one more is refused
};

class Engine final : public EngineClient {
 public:
  // Starts the engine thread. `clock` must outlive the engine.
  Engine(EngineConfig config, std::unique_ptr<Executor> executor, const Clock& clock);
  // Cancels what still runs; every sink has had its last delta when this returns.
  ~Engine() override;

  const EngineInfo& info() const override { return info_; }
  Result<RequestId> submit(Request request, DeltaSink sink) override;
  void cancel(RequestId id, int32_t choice, FinishReason reason) override;
  EngineStats stats() const override;
  void drain(int64_t deadline_us) override;

 private:
  struct Submission {
    Request request;
    DeltaSink sink;
  };
  struct Cancellation {
    RequestId id;
    int32_t choice;
    FinishReason reason;
  };
  struct OpenRequest {
    DeltaSink sink;
    int32_t unfinished;  // answers still to end
  };

  void loop();
  bool wait_for_work(std::chrono::microseconds patience);  // false: stop
  void take_inbox();
  bool start_step();  // false: nothing to compute now
  void end_step();    // the oldest
  void fail(const Error& reason);
  void dispatch();
  void publish_stats();

  const EngineConfig config_;
  const Clock& clock_;
  std::unique_ptr<Executor> executor_;
  EngineInfo info_;

  // Inbox: any thread, under mutex_.
  mutable std::mutex mutex_;
  std::condition_variable inbox_ready_;
  std::vector<Submission> submissions_;
  std::vector<Cancellation> cancellations_;
  bool stopping_ = false;
  bool draining_ = false;
  int64_t drain_deadline_us_ = 0;
  EngineStats stats_;             // snapshot for stats()
  std::optional<Error> failure_;  // set once; the engine thread reads it without the lock

  std::atomic<int32_t> open_requests_{0};
  std::atomic<RequestId> next_id_{1};
  std::atomic<int64_t> busy_since_us_{0};

  // Engine thread only.
  Scheduler scheduler_;
  Batch batches_[2];  // in turn
  int turn_ = 0;
  int steps_under_way_ = 0;
  StepOutput output_;
  std::vector<SequenceDelta> deltas_;
  std::unordered_map<RequestId, OpenRequest> open_;
  std::vector<Submission> taken_submissions_;
  std::vector<Cancellation> taken_cancellations_;
  std::thread thread_;
};

}  // namespace vayu
