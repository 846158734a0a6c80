// Random numbers that are the same on every platform: the standard's distributions are not.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

namespace vayu::bench {

class Random {
 public:
  explicit Random(uint64_t seed, uint64_t stream = 0) {
    std::seed_seq sequence{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                           static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
    engine_.seed(sequence);
  }
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }  // [0, 1)
  // [low, high)
  int32_t between(int32_t low, int32_t high) { return low + static_cast<int32_t>(uniform() * (high - low)); }

 private:
  std::mt19937_64 engine_;
};

// Arrival times of a Poisson process in seconds from its start, ascending.
class PoissonArrivals {
 public:
  PoissonArrivals(double rate_per_s, uint64_t seed) : rate_per_s_(rate_per_s), random_(seed, /*stream=*/1) {}
  double next_s() { return now_s_ += -std::log1p(-random_.uniform()) / rate_per_s_; }

 private:
  const double rate_per_s_;
  Random random_;
  double now_s_ = 0;
};

}  // namespace vayu::bench
