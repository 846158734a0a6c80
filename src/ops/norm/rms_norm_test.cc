#include "ops/norm/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/cpu/op_test_util.h"

namespace vayu::ops {
namespace {

struct Output {
  std::vector<float> y;
  std::vector<float> residual;
};

Output run(const OpContext& ctx, const std::vector<float>& x, std::vector<float> residual,
           const std::vector<float>& weight, int64_t num_tokens) {
  Output out{std::vector<float>(x.size(), kNaN), std::move(residual)};
  RmsNormArgs args;
  args.x = x.data();
  args.residual = out.residual.empty() ? nullptr : out.residual.data();
  args.weight = weight.data();
  args.y = out.y.data();
  args.num_tokens = num_tokens;
  args.hidden = static_cast<int64_t>(weight.size());
  args.eps = 1e-5f;
  rms_norm(ctx, args);
  return out;
}

TEST(RmsNorm, ReferenceIsTheFormula) {
  const std::vector<float> x = {3, 4, 0, -5};
  const Output out = run({Backend::kReference, nullptr}, x, {1, 0, 2, 1}, {1, 2, 0.5f, -1}, 1);
  EXPECT_EQ(out.residual, (std::vector<float>{4, 4, 2, -4}));
  const double scale = 1 / std::sqrt((16 + 16 + 4 + 16) / 4.0 + 1e-5);
  const double expected[] = {4 * scale, 8 * scale, scale, 4 * scale};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(out.y[i], expected[i], 1e-6);
}

TEST(RmsNorm, CpuMatchesReference) {
  TestRandom random;
  for (int64_t hidden : {1, 3, 16, 33, 576, 2048, 1000}) {
    for (int64_t num_tokens : {1, 7, 70}) {
      const std::vector<float> x = random.normals(num_tokens * hidden, 3);
      const std::vector<float> weight = random.normals(hidden);
      for (bool with_residual : {false, true}) {
        const std::vector<float> residual = with_residual ? random.normals(num_tokens * hidden) : std::vector<float>();
        const Output expected = run({Backend::kReference, nullptr}, x, residual, weight, num_tokens);
        for_each_cpu_variant([&](const OpContext& ctx, const std::string& name) {
          const Output out = run(ctx, x, residual, weight, num_tokens);
          ASSERT_EQ(out.residual, expected.residual) << name << ' ' << hidden;
          for (size_t i = 0; i < x.size(); ++i) {
            ASSERT_NEAR(out.y[i], expected.y[i], 5e-6 * std::abs(expected.y[i]) + 1e-30) << name << ' ' << hidden;
          }
        });
      }
    }
  }
}

TEST(RmsNorm, InPlaceAndAloneGiveTheSameBits) {
  TestRandom random;
  constexpr int64_t kHidden = 577;
  constexpr int64_t kTokens = 60;
  const std::vector<float> x = random.normals(kTokens * kHidden);
  const std::vector<float> weight = random.normals(kHidden);
  for_each_cpu_variant([&](const OpContext& ctx, const std::string& name) {
    const Output batch = run(ctx, x, {}, weight, kTokens);
    for (int64_t t = 0; t < kTokens; ++t) {
      std::vector<float> row(x.begin() + t * kHidden, x.begin() + (t + 1) * kHidden);
      RmsNormArgs args{row.data(), nullptr, weight.data(), row.data(), 1, kHidden, 1e-5f};
      rms_norm(ctx, args);
      ASSERT_TRUE(std::equal(row.begin(), row.end(), batch.y.begin() + t * kHidden)) << name << " token " << t;
    }
  });
}

TEST(RmsNorm, NaNStaysInItsRow) {
  ThreadPool pool(2);
  std::vector<float> x(64 * 300, 1.0f);
  x[300 * 5 + 7] = kNaN;
  const Output out = run({Backend::kCpu, &pool}, x, {}, std::vector<float>(300, 1.0f), 64);
  for (int64_t i = 0; i < 64 * 300; ++i) ASSERT_EQ(std::isnan(out.y[i]), i / 300 == 5) << i;
}

}  // namespace
}  // namespace vayu::ops
