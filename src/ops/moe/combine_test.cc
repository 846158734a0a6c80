#include "ops/moe/combine.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/cpu/op_test_util.h"

namespace vayu::ops {
namespace {

template <class Body>
void for_each_backend(Body&& body) {
  body(OpContext{Backend::kReference, nullptr}, std::string("reference"));
  for_each_cpu_variant(body);
}

TEST(Combine, AddsTheWeightedExperts) {
  TestRandom random;
  for (int64_t hidden : {1, 17, 64, 515}) {
    for (int32_t top_k : {1, 2, 6}) {
      for (int64_t num_tokens : {0, 1, 11}) {
        const auto out = random.normals(num_tokens * top_k * hidden);
        const auto weights = random.normals(num_tokens * top_k);
        const auto before = random.normals(num_tokens * hidden);
        for_each_backend([&](const OpContext& ctx, const std::string& name) {
          std::vector<float> y = before;
          y.push_back(7);
          combine_experts(ctx, {out.data(), weights.data(), y.data(), num_tokens, top_k, hidden});
          EXPECT_EQ(y.back(), 7) << "wrote past y";
          for (int64_t i = 0; i < num_tokens * hidden; ++i) {
            double want = before[i];
            double size = std::abs(before[i]);
            for (int32_t j = 0; j < top_k; ++j) {
              const int64_t pair = i / hidden * top_k + j;
              const double term = double{weights[pair]} * out[pair * hidden + i % hidden];
              want += term;
              size += std::abs(term);
            }
            ASSERT_NEAR(y[i], want, 1e-6 * size) << name << " hidden " << hidden << " top_k " << top_k << " at " << i;
          }
        });
      }
    }
  }
}

TEST(Combine, NanWeightsSpoilTheirTokenOnly) {
  const int64_t hidden = 20;
  const std::vector<float> out(3 * 2 * hidden, 1.0f);
  const std::vector<float> weights = {1, 2, kNaN, kNaN, 3, 4};
  for_each_backend([&](const OpContext& ctx, const std::string& name) {
    std::vector<float> y(3 * hidden, 0.5f);
    combine_experts(ctx, {out.data(), weights.data(), y.data(), 3, 2, hidden});
    for (int64_t i = 0; i < hidden; ++i) {
      EXPECT_EQ(y[i], 3.5f) << name;
      EXPECT_TRUE(std::isnan(y[hidden + i])) << name;
      EXPECT_EQ(y[2 * hidden + i], 7.5f) << name;
    }
  });
}

}  // namespace
}  // namespace vayu::ops
