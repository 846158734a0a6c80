// What the tests of the ops share: fresh inputs from a printed seed, and the list of backends one test body runs on.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ops/context.h"
#include "ops/cpu/thread_pool.h"

namespace vayu::ops {

// Instrumented code is 20 to 50 times slower: the largest tests then run on one KV format.
#ifdef VAYU_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Random source of one test. The seed is in the report of any failure; VAYU_TEST_SEED repeats a run.
class TestRandom {
 public:
  TestRandom() {
    const char* fixed = std::getenv("VAYU_TEST_SEED");
    seed_ = fixed ? std::strtoull(fixed, nullptr, 10) : std::random_device()();
    engine_.seed(seed_);
    std::printf("VAYU_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed_));
  }
  int64_t integer(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  float normal(float sigma = 1) { return std::normal_distribution<float>(0, sigma)(engine_); }
  double uniform() { return std::uniform_real_distribution<double>()(engine_); }
  std::vector<float> normals(int64_t count, float sigma = 1) {
    std::vector<float> values(count);
    for (float& v : values) v = normal(sigma);
    return values;
  }
  std::mt19937_64& engine() { return engine_; }

 private:
  uint64_t seed_;
  std::mt19937_64 engine_;
};

// Calls body(ctx, name) for kCpu on one and several threads, and on every instruction set of this machine.
template <class Body>
void for_each_cpu_variant(Body&& body) {
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    body(OpContext{Backend::kCpu, &pool}, std::to_string(threads) + " threads");
  }
  ThreadPool pool(2);
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    body(OpContext{Backend::kCpu, &pool}, hwy::TargetName(target));
  }
  hwy::SetSupportedTargetsForTest(0);
}

// 64-byte aligned scratch.
class TestScratch {
 public:
  explicit TestScratch(int64_t bytes) : memory_(bytes + 64, 0xFF) {}
  void* get() {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return reinterpret_cast<void*>((address + 63) / 64 * 64);
  }

 private:
  std::vector<uint8_t> memory_;
};

}  // namespace vayu::ops
