#include "engine/profiled_executor.h"

#include <utility>

namespace vayu {

ProfiledExecutor::ProfiledExecutor(std::unique_ptr<Executor> executor, std::unique_ptr<StepRecorder> recorder)
    : executor_(std::move(executor)), recorder_(std::move(recorder)) {}

void ProfiledExecutor::launch(const Batch& batch) {
  if (!watching_.load(std::memory_order_acquire)) {
    ++under_way_;
    return executor_->launch(batch);
  }
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kOpen && complete()) {
    if (const Status idle = recorder_->settle(); idle.ok()) {
      landed_ns_ = recorder_->now_ns();
      close();
    } else {
      finish(idle.error());
    }
  }
  if (phase_ == Phase::kWanted) start_window();
  ++under_way_;
  if (phase_ != Phase::kOpen) return executor_->launch(batch);
  profile_.steps.push_back({batch.num_tokens(), batch.num_rows()});
  const int64_t begin = recorder_->now_ns();
  executor_->launch(batch);
  profile_.spans.push_back({"launch", begin, recorder_->now_ns()});
}

void ProfiledExecutor::wait(StepOutput& output) {
  // A window only opens in launch(), on this thread: one that is open behind the wait was so ahead of it.
  const bool watching = watching_.load(std::memory_order_acquire);
  const int64_t begin = watching ? recorder_->now_ns() : 0;
  executor_->wait(output);
  if (!watching) {
    --under_way_;
    return;
  }
  const std::lock_guard lock(mutex_);
  --under_way_;
  if (phase_ != Phase::kOpen) return;
  landed_ns_ = recorder_->now_ns();
  profile_.spans.push_back({"wait", begin, landed_ns_});
  if (output.failure) return finish(*output.failure);
  if (under_way_ == 0 && complete()) close();
}

StepProfiler::WindowId ProfiledExecutor::open(int32_t steps, Done done) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kNone) return 0;
  phase_ = Phase::kWanted;
  wanted_ = steps;
  ending_ = false;
  done_ = std::move(done);
  profile_ = {.device = recorder_->device()};
  watching_.store(true, std::memory_order_release);
  return ++window_;
}

void ProfiledExecutor::end(WindowId window) {
  const std::lock_guard lock(mutex_);
  if (window != window_ || phase_ == Phase::kNone) return;
  if (phase_ == Phase::kWanted) return finish(std::move(profile_));
  ending_ = true;
  if (under_way_ == 0) close();
}

bool ProfiledExecutor::complete() const { return ending_ || std::cmp_greater_equal(profile_.steps.size(), wanted_); }

// What is under way belongs to no window: its results stay where wait() will find them.
void ProfiledExecutor::start_window() {
  Status ready = recorder_->settle();
  if (ready.ok()) ready = recorder_->start();
  if (!ready.ok()) return finish(ready.error());
  begin_ns_ = landed_ns_ = recorder_->now_ns();
  phase_ = Phase::kOpen;
}

void ProfiledExecutor::close() {
  Result<std::vector<KernelRecord>> records = recorder_->stop();
  if (!records.ok()) return finish(records.error());
  profile_.records = std::move(*records);
  profile_.host_us = static_cast<double>(landed_ns_ - begin_ns_) * 1e-3;
  finish(std::move(profile_));
}

void ProfiledExecutor::finish(Result<StepProfile> result) {
  phase_ = Phase::kNone;
  watching_.store(false, std::memory_order_release);
  std::exchange(done_, nullptr)(std::move(result));
}

}  // namespace vayu
