// Numbers by the rule of seeded random weights (model/dummy_checkpoint.h): element i alone decides its value, so host
// and device make the same rows, in any order.
#pragma once

#include <cstdint>

#include "ops/cuda/types.h"

#ifdef __CUDACC__
#define VAYU_HOST_DEVICE __host__ __device__
#else
#define VAYU_HOST_DEVICE
#endif

namespace vayu::ops {

struct SeededRows {
  uint64_t key = 0;
  double mean = 0;
  double scale = 0;  // of the sum of fields below
};

constexpr uint64_t kSeedStep = 0x9E3779B97F4A7C15;
constexpr double kSeedMeanSum = 131070;  // of four 16-bit fields

// The finaliser of SplitMix64 (Steele, Lea, Flood, 2014).
VAYU_HOST_DEVICE inline uint64_t seed_mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// The sum of the four 16-bit fields of element i's random bits.
VAYU_HOST_DEVICE inline uint32_t seeded_sum(uint64_t key, uint64_t i) {
  const uint64_t z = seed_mix(key + (i + 1) * kSeedStep);
  return static_cast<uint32_t>((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48));
}

inline float seeded_value(const SeededRows& rows, uint64_t i) {
  return static_cast<float>(rows.mean + (static_cast<double>(seeded_sum(rows.key, i)) - kSeedMeanSum) * rows.scale);
}

// y[r, c] = bf16(seeded_value(source, first + r * cols + c)), rounded to float first; columns from cols on are 0.
struct SeededFillArgs {
  SeededRows source;
  uint64_t first = 0;
  int64_t num_rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements between rows of y, a multiple of 8
  Bf16* y = nullptr;   // 16-byte aligned
};

void seeded_fill_cuda(CudaStream stream, const SeededFillArgs& args);

}  // namespace vayu::ops
