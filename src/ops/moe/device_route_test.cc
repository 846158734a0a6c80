// The split of the weights against the weights, and the reference against the router of the host.
#include <algorithm>
#include <cmath>

#include "base/data_format.h"
#include "ops/cpu/op_test_util.h"
#include "ops/moe/device_route.h"

namespace vayu::ops {
namespace {

TEST(DeviceRoute, SplitKeepsTheFloat) {
  TestRandom random;
  for (const int32_t experts : {3, 128, 200}) {
    const int64_t hidden = 192;
    std::vector<float> weight = random.normals(experts * hidden, 0.02f);
    for (int64_t i = 0; i < experts * hidden; i += 5) weight[i] *= std::ldexp(1.0f, -static_cast<int>(i % 13));
    for (int64_t k = 0; k < hidden; ++k) weight[hidden + k] *= 1e20f;
    std::fill_n(weight.begin() + 2 * hidden, hidden, 0.0f);
    std::vector<uint8_t> split(router_weight_bytes(hidden, experts));
    split_router_weight(weight.data(), hidden, experts, split.data());
    for (int32_t e = 0; e < experts; ++e) {
      const float* row = weight.data() + e * hidden;
      double peak = 0;
      for (int64_t k = 0; k < hidden; ++k) peak = std::max(peak, std::fabs(double{row[k]}));
      for (int64_t k = 0; k < hidden; ++k) {
        const double bound = std::max(std::ldexp(std::fabs(double{row[k]}), -23), std::ldexp(peak, -39));
        ASSERT_LE(std::fabs(joined_router_weight(split.data(), hidden, experts, e, k) - row[k]), bound)
            << e << ' ' << k;
      }
    }
  }
}

TEST(DeviceRoute, SplitIsRowsOfSwizzledTiles) {
  TestRandom random;
  const int64_t hidden = 128;
  const int32_t experts = 130;  // padded to 256
  const std::vector<float> weight = random.normals(experts * hidden);
  std::vector<uint8_t> split(router_weight_bytes(hidden, experts));
  ASSERT_EQ(split.size(), 2u * 2 * 256 * 128 + 256 * 4);
  split_router_weight(weight.data(), hidden, experts, split.data());
  const auto* halves = reinterpret_cast<const uint16_t*>(split.data());
  const auto* scales = reinterpret_cast<const float*>(split.data() + 2 * 2 * 256 * 128);
  for (int i = 0; i < 1000; ++i) {
    const int64_t k = random.integer(0, hidden - 1), e = random.integer(0, experts - 1);
    const int64_t tile = k / 64 * 2 * 256 * 64, in_row = ((k % 64 / 8) ^ (e % 8)) * 8 + k % 8;
    float upper;
    dequantize_row(DataFormat::kF16, halves + tile + e * 64 + in_row, &upper, 1);
    ASSERT_NEAR(upper * scales[e], weight[e * hidden + k], std::fabs(weight[e * hidden + k]) * 0x1p-11);
  }
}

struct Outputs {
  std::vector<int32_t> ids, indptr, sorted, position;
  std::vector<float> weights;
};

Outputs run_reference(const RouterShape& shape, const std::vector<Bf16>& x, const std::vector<float>& weight,
                      const float* bias, const int32_t* valid) {
  const auto tokens = static_cast<int32_t>(x.size() / shape.hidden);
  std::vector<uint8_t> split(router_weight_bytes(shape.hidden, shape.num_experts));
  split_router_weight(weight.data(), shape.hidden, shape.num_experts, split.data());
  Outputs out;
  const size_t pairs = size_t{static_cast<uint32_t>(tokens)} * shape.top_k;
  out.ids.assign(pairs, -7);
  out.sorted.assign(pairs, -7);
  out.position.assign(pairs, -7);
  out.weights.assign(pairs, 7.0f);
  out.indptr.assign(shape.num_experts + 1, -7);
  DeviceRouteArgs args;
  args.shape = shape;
  args.x = x.data();
  args.weight = split.data();
  args.bias = bias;
  args.num_tokens = tokens;
  args.num_valid_tokens = valid;
  args.expert_ids = out.ids.data();
  args.expert_weights = out.weights.data();
  args.expert_indptr = out.indptr.data();
  args.sorted_tokens = out.sorted.data();
  args.pair_position = out.position.data();
  device_route_ref(args);
  return out;
}

TEST(DeviceRoute, ReferenceIsTheHostsRouter) {
  TestRandom random;
  RouterShape shape{.hidden = 256, .num_experts = 24, .top_k = 5, .num_groups = 4, .groups_kept = 2, .scale = 2.5f};
  const int32_t tokens = 40, valid = 33;
  const std::vector<float> weight = random.normals(shape.num_experts * shape.hidden, 0.1f);
  const std::vector<float> bias = random.normals(shape.num_experts, 0.1f);
  std::vector<float> rows = random.normals(tokens * shape.hidden);
  std::vector<Bf16> x(rows.size());
  quantize_row(DataFormat::kBF16, rows.data(), x.data(), static_cast<int64_t>(rows.size()));
  dequantize_row(DataFormat::kBF16, x.data(), rows.data(), static_cast<int64_t>(rows.size()));
  const Outputs got = run_reference(shape, x, weight, bias.data(), &valid);

  const OpContext ctx{Backend::kReference, nullptr};
  const int32_t top_k = shape.top_k, pairs = valid * top_k;
  std::vector<int32_t> ids(pairs), indptr(shape.num_experts + 1), expert_rows(pairs);
  std::vector<float> weights(pairs);
  TestScratch scratch(route_scratch_bytes(ctx, shape, valid));
  route(ctx, {shape, rows.data(), weight.data(), bias.data(), valid, ids.data(), weights.data(), scratch.get()});
  int different = 0;
  for (int32_t p = 0; p < pairs; ++p) {
    different += got.ids[p] != ids[p];  // a tie within rounding is possible, one token in thousands
    if (got.ids[p] == ids[p]) {
      EXPECT_NEAR(got.weights[p], weights[p], 1e-5f) << p;
    }
  }
  EXPECT_LE(different, top_k);
  group_by_expert(got.ids.data(), valid, top_k, shape.num_experts, indptr.data(), expert_rows.data());
  EXPECT_EQ(got.indptr, indptr);
  for (int32_t r = 0; r < pairs; ++r) {
    EXPECT_EQ(got.sorted[r], expert_rows[r] / top_k);
    EXPECT_EQ(got.position[expert_rows[r]], r);
  }
  for (int32_t p = pairs; p < tokens * top_k; ++p) {
    EXPECT_EQ(got.ids[p], -1);
    EXPECT_EQ(got.weights[p], 0.0f);
    EXPECT_EQ(got.position[p], 0);
    EXPECT_EQ(got.sorted[p], 0);
  }
}

}  // namespace
}  // namespace vayu::ops
