#include "telemetry/rolling_window.h"

#include <algorithm>
#include <cmath>

namespace vayu {
namespace {

constexpr int64_t kUsPerSecond = 1'000'000;

}  // namespace

RollingLatency::RollingLatency(const Clock& clock) : clock_(clock), seconds_(kWindowSeconds) {}

void RollingLatency::observe(int64_t value_us) {
  const double octaves = std::log2(static_cast<double>(std::max<int64_t>(value_us, 1)));
  const int bucket = std::min(static_cast<int>(octaves * kBucketsPerOctave), kBuckets - 1);
  const int64_t second = clock_.now_us() / kUsPerSecond;
  std::lock_guard lock(mutex_);
  Second& slot = seconds_[second % kWindowSeconds];
  if (slot.second != second) {
    slot.second = second;
    slot.counts.fill(0);
  }
  ++slot.counts[bucket];
}

LatencySummary RollingLatency::summary() const {
  std::array<uint64_t, kBuckets> sums{};
  LatencySummary result;
  {
    const int64_t oldest = clock_.now_us() / kUsPerSecond - kWindowSeconds + 1;
    std::lock_guard lock(mutex_);
    for (const Second& slot : seconds_) {
      if (slot.second < oldest) continue;
      for (int i = 0; i < kBuckets; ++i) sums[i] += slot.counts[i];
    }
  }
  for (const uint64_t sum : sums) result.count += sum;
  const auto quantile = [&](double q) {
    const auto rank = static_cast<uint64_t>(std::ceil(q * static_cast<double>(result.count)));
    uint64_t seen = 0;
    for (int i = 0; i < kBuckets; ++i) {
      seen += sums[i];
      if (seen >= rank && seen > 0) return std::exp2((i + 0.5) / kBucketsPerOctave) / 1000.0;  // the bucket's middle
    }
    return 0.0;
  };
  if (result.count == 0) return result;
  result.p50_ms = quantile(0.50);
  result.p90_ms = quantile(0.90);
  result.p95_ms = quantile(0.95);
  result.p99_ms = quantile(0.99);
  return result;
}

void RollingRate::add(uint64_t count) {
  const int64_t second = clock_.now_us() / kUsPerSecond;
  std::lock_guard lock(mutex_);
  Second& slot = seconds_[second % seconds_.size()];
  if (slot.second != second) slot = Second{second, 0};
  slot.count += count;
}

double RollingRate::per_second() const {
  const int64_t now_us = clock_.now_us();
  const int64_t second = now_us / kUsPerSecond;
  uint64_t sum = 0;
  {
    std::lock_guard lock(mutex_);
    for (const Second& slot : seconds_) {
      if (slot.second > second - kWindowSeconds && slot.second <= second) sum += slot.count;
    }
  }
  // The window is the part of the current second that has passed and the whole ones before it.
  const int64_t window_start_us = std::max((second - kWindowSeconds + 1) * kUsPerSecond, start_us_);
  const double window_s = static_cast<double>(std::max<int64_t>(now_us - window_start_us, kUsPerSecond)) / kUsPerSecond;
  return static_cast<double>(sum) / window_s;
}

}  // namespace vayu
