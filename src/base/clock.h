// Time as the engine sees it: real in production, virtual in the simulator.
#pragma once

#include <chrono>
#include <cstdint>

namespace vayu {

class Clock {
 public:
  virtual ~Clock() = default;
  // Microseconds since an arbitrary start; never goes back.
  virtual int64_t now_us() const = 0;
};

class SteadyClock : public Clock {
 public:
  int64_t now_us() const override {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

class ManualClock : public Clock {
 public:
  int64_t now_us() const override { return now_us_; }
  void advance_us(int64_t us) { now_us_ += us; }

 private:
  int64_t now_us_ = 0;
};

}  // namespace vayu
