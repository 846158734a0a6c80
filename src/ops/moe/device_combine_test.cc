#include "ops/moe/device_combine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/cpu/op_test_util.h"
#include "ops/cuda/host_rows.h"
#include "ops/moe/combine.h"

namespace vayu::ops {
namespace {

// Against combine_experts on the pairs in token order, and add_norm_ref behind it.
TEST(CombineAddNormReference, IsCombineThenAddThenNorm) {
  TestRandom random;
  const int64_t tokens = 7, hidden = 48;
  const int32_t top_k = 3;
  const auto rows = [&](int64_t count) {
    std::vector<Bf16> out(count * hidden);
    for (Bf16& v : out) v = host_bf16(random.normal());
    return out;
  };
  const std::vector<Bf16> expert_out = rows(tokens * top_k), shared = rows(tokens), before = rows(tokens);
  const std::vector<float> weights = random.normals(tokens * top_k), norm_weight = random.normals(hidden);
  std::vector<int32_t> position(tokens * top_k);
  std::iota(position.begin(), position.end(), 0);
  std::shuffle(position.begin(), position.end(), random.engine());

  std::vector<float> ordered(tokens * top_k * hidden), sum(tokens * hidden);
  for (int64_t i = 0; i < tokens * top_k * hidden; ++i) {
    ordered[i] = host_float(expert_out[position[i / hidden] * hidden + i % hidden]);
  }
  for (int64_t i = 0; i < tokens * hidden; ++i) sum[i] = host_float(before[i]) + host_float(shared[i]);
  combine_experts({Backend::kReference, nullptr}, {ordered.data(), weights.data(), sum.data(), tokens, top_k, hidden});

  std::vector<Bf16> residual = before, y(tokens * hidden), want_y(tokens * hidden);
  CombineAddNormArgs args;
  args.expert_out = expert_out.data();
  args.pair_position = position.data();
  args.weights = weights.data();
  args.top_k = top_k;
  args.norm.residual = residual.data();
  args.norm.delta = shared.data();
  args.norm.weight = norm_weight.data();
  args.norm.num_rows = tokens;
  args.norm.hidden = hidden;
  args.norm.y = {y.data(), nullptr, hidden};
  combine_add_norm_ref(args);
  for (int64_t i = 0; i < tokens * hidden; ++i) {
    ASSERT_NEAR(host_float(residual[i]), sum[i], std::abs(sum[i]) / 256 + 1e-5) << i;
  }
  AddNormArgs norm = args.norm;
  norm.delta = nullptr;
  norm.y.data = want_y.data();
  add_norm_ref(norm);
  for (int64_t i = 0; i < tokens * hidden; ++i) ASSERT_EQ(y[i].bits, want_y[i].bits) << i;
}

TEST(CombineAddNormReference, AbsentPairsAddNothing) {
  const std::vector<Bf16> expert_out(16, Bf16{0x7fc0});  // NaN: must not be read
  const std::vector<int32_t> position = {-1, -1};
  const std::vector<float> weights = {kNaN, 1};
  std::vector<Bf16> residual(16, Bf16{0x3f80});
  CombineAddNormArgs args;
  args.expert_out = expert_out.data();
  args.pair_position = position.data();
  args.weights = weights.data();
  args.top_k = 2;
  args.norm.residual = residual.data();
  args.norm.num_rows = 1;
  args.norm.hidden = 16;
  combine_add_norm_ref(args);
  for (Bf16 v : residual) EXPECT_EQ(v.bits, 0x3f80);
}

}  // namespace
}  // namespace vayu::ops
