// The border between a front that wants to know what the device does in the steps of a running engine, and whatever
// records it (engine/profiled_executor.h).
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "telemetry/step_profile.h"

namespace vayu {

class StepProfiler {
 public:
  using WindowId = uint64_t;
  // Called once a window, from any thread and under the profiler's lock: must not block nor call back.
  using Done = std::function<void(Result<StepProfile>)>;

  virtual ~StepProfiler() = default;
  // Records the next `steps` whole steps, then calls `done`. 0: another window is open, and `done` is never called.
  // Thread-safe.
  virtual WindowId open(int32_t steps, Done done) = 0;
  // Ends a window early: `done` gets the steps that were launched so far, at once when nothing runs, else when they
  // have landed. Windows that have ended are ignored. Thread-safe; takes milliseconds.
  virtual void end(WindowId window) = 0;
};

}  // namespace vayu
