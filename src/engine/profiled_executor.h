// An executor whose steps can be recorded while an engine runs it: a window over the next so many steps, opened from
// any thread. Recording starts in front of a launch, and stops in front of one, behind the last wait or, where no step
// is under way, in end(): always with the device idle, so that a window holds whole steps and nothing else; where steps
// overlap, the first and the last of a window therefore do not. With no window open, launch() and wait() cost one look
// at a flag.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "core/executor.h"
#include "core/step_profiler.h"
#include "engine/step_recorder.h"

namespace vayu {

class ProfiledExecutor final : public Executor, public StepProfiler {
 public:
  ProfiledExecutor(std::unique_ptr<Executor> executor, std::unique_ptr<StepRecorder> recorder);

  const ExecutorLimits& limits() const override { return executor_->limits(); }
  bool overlaps() const override { return executor_->overlaps(); }
  void launch(const Batch& batch) override;
  void wait(StepOutput& output) override;

  WindowId open(int32_t steps, Done done) override;
  void end(WindowId window) override;

 private:
  enum class Phase { kNone, kWanted, kOpen };

  // Under mutex_.
  bool complete() const;
  void start_window();
  void close();                             // the device is idle
  void finish(Result<StepProfile> result);  // of a device that has failed without asking more of it

  const std::unique_ptr<Executor> executor_;
  const std::unique_ptr<StepRecorder> recorder_;
  std::atomic<bool> watching_{false};  // phase_ is not kNone

  std::mutex mutex_;
  Phase phase_ = Phase::kNone;
  WindowId window_ = 0;  // the last one
  int32_t wanted_ = 0;   // steps
  bool ending_ = false;
  Done done_;
  StepProfile profile_;
  int64_t begin_ns_ = 0;
  int64_t landed_ns_ = 0;  // when the last result came

  // The engine thread's; read by others under mutex_ while a window is open, when it is also written under it.
  int32_t under_way_ = 0;
};

}  // namespace vayu
