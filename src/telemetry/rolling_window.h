// Latency percentiles and rates over the last minute, for the live page. One histogram a second, with eight buckets an
// octave: a percentile is right to about 5 %.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/clock.h"

namespace vayu {

struct LatencySummary {
  uint64_t count = 0;
  double p50_ms = 0;
  double p90_ms = 0;
  double p95_ms = 0;
  double p99_ms = 0;
};

// Thread-safe. The clock must outlive this.
class RollingLatency {
 public:
  static constexpr int kWindowSeconds = 60;

  explicit RollingLatency(const Clock& clock);
  void observe(int64_t value_us);
  LatencySummary summary() const;

 private:
  static constexpr int kBucketsPerOctave = 8;
  static constexpr int kBuckets = 32 * kBucketsPerOctave;  // 1 us to about 70 min
  struct Second {
    int64_t second = -1;  // Clock second the counts belong to
    std::array<uint32_t, kBuckets> counts{};
  };

  const Clock& clock_;
  mutable std::mutex mutex_;
  std::vector<Second> seconds_;  // (kWindowSeconds) ring, indexed by second modulo its size
};

// Events a second over the last few whole seconds. Thread-safe. The clock must outlive this.
class RollingRate {
 public:
  static constexpr int kWindowSeconds = 10;

  explicit RollingRate(const Clock& clock) : clock_(clock), start_us_(clock.now_us()) {}
  void add(uint64_t count);
  double per_second() const;

 private:
  struct Second {
    int64_t second = -1;
    uint64_t count = 0;
  };

  const Clock& clock_;
  const int64_t start_us_;
  mutable std::mutex mutex_;
  std::array<Second, kWindowSeconds + 1> seconds_{};
};

}  // namespace vayu
