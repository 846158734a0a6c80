#include "ops/activation/silu_mul.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/cpu/op_test_util.h"

namespace vayu::ops {
namespace {

std::vector<float> run(const OpContext& ctx, const std::vector<float>& gate_up, int64_t num_tokens, int64_t width) {
  std::vector<float> y(num_tokens * width, kNaN);
  silu_mul(ctx, gate_up.data(), y.data(), num_tokens, width);
  return y;
}

TEST(SiluMul, ReferenceIsTheFormula) {
  const std::vector<float> y = run({Backend::kReference, nullptr}, {0, 1, -2, 5, 6, 7}, 1, 3);
  EXPECT_EQ(y[0], 0);
  EXPECT_NEAR(y[1], 6 / (1 + std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(y[2], -14 / (1 + std::exp(2.0)), 1e-6);
}

TEST(SiluMul, CpuMatchesReference) {
  TestRandom random;
  for (int64_t width : {1, 5, 16, 31, 1536}) {
    for (int64_t num_tokens : {1, 3, 50}) {
      std::vector<float> gate_up = random.normals(num_tokens * 2 * width, 5);
      gate_up[0] = static_cast<float>(random.integer(-300, 300));  // beyond what exp can hold
      const std::vector<float> expected = run({Backend::kReference, nullptr}, gate_up, num_tokens, width);
      for_each_cpu_variant([&](const OpContext& ctx, const std::string& name) {
        const std::vector<float> y = run(ctx, gate_up, num_tokens, width);
        for (size_t i = 0; i < y.size(); ++i) {
          ASSERT_NEAR(y[i], expected[i], 4e-7 * std::abs(expected[i]) + 1e-34) << name << ' ' << width << ' ' << i;
        }
      });
    }
  }
}

TEST(SiluMul, AloneGivesTheSameBits) {
  TestRandom random;
  constexpr int64_t kWidth = 1000;
  const std::vector<float> gate_up = random.normals(40 * 2 * kWidth, 3);
  for_each_cpu_variant([&](const OpContext& ctx, const std::string& name) {
    const std::vector<float> batch = run(ctx, gate_up, 40, kWidth);
    for (int64_t t = 0; t < 40; ++t) {
      const std::vector<float> row(gate_up.begin() + t * 2 * kWidth, gate_up.begin() + (t + 1) * 2 * kWidth);
      const std::vector<float> y = run(ctx, row, 1, kWidth);
      ASSERT_TRUE(std::equal(y.begin(), y.end(), batch.begin() + t * kWidth)) << name << " token " << t;
    }
  });
}

TEST(SiluMul, NaNIsKept) {
  ThreadPool pool(1);
  std::vector<float> gate_up(2 * 20, 1.0f);
  gate_up[3] = kNaN;
  gate_up[20 + 17] = kNaN;
  const std::vector<float> y = run({Backend::kCpu, &pool}, gate_up, 1, 20);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(std::isnan(y[i]), i == 3 || i == 17) << i;
}

}  // namespace
}  // namespace vayu::ops
