// One body for both backends, against the formula in double written out again here.
#include "ops/moe/route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "ops/cpu/op_test_util.h"

namespace vayu::ops {
namespace {

constexpr double kOut = -std::numeric_limits<double>::infinity();

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed run(const OpContext& ctx, const RouterShape& shape, const std::vector<float>& x,
           const std::vector<float>& weight, const std::vector<float>& bias) {
  const int64_t num_tokens = static_cast<int64_t>(x.size()) / shape.hidden;
  Routed routed{std::vector<int32_t>(num_tokens * shape.top_k, -1), std::vector<float>(num_tokens * shape.top_k, kNaN)};
  const int64_t scratch_bytes = route_scratch_bytes(ctx, shape, num_tokens);
  TestScratch scratch(scratch_bytes + 64);
  auto* guard = static_cast<uint8_t*>(scratch.get()) + scratch_bytes;
  std::memset(guard, 0xAB, 64);
  route(ctx, {shape, x.data(), weight.data(), bias.empty() ? nullptr : bias.data(), num_tokens, routed.ids.data(),
              routed.weights.data(), scratch.get()});
  for (int i = 0; i < 64; ++i) EXPECT_EQ(guard[i], 0xAB) << "wrote past scratch";
  return routed;
}

// Rows of logits as they stand: the router's weight is the unit matrix.
Routed run_logits(const OpContext& ctx, RouterShape shape, const std::vector<float>& logits,
                  const std::vector<float>& bias) {
  shape.hidden = shape.num_experts;
  std::vector<float> unit(shape.num_experts * shape.num_experts, 0.0f);
  for (int32_t e = 0; e < shape.num_experts; ++e) unit[e * shape.num_experts + e] = 1.0f;
  return run(ctx, shape, logits, unit, bias);
}

template <class Body>
void for_each_backend(Body&& body) {
  body(OpContext{Backend::kReference, nullptr}, std::string("reference"));
  for_each_cpu_variant(body);
}

void expect_routed(const Routed& got, const std::vector<int32_t>& ids, const std::vector<float>& weights,
                   const std::string& name) {
  EXPECT_EQ(got.ids, ids) << name;
  for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(got.weights[i], weights[i], 1e-5) << name << ' ' << i;
}

struct Expected {
  std::vector<int32_t> ids;
  std::vector<double> weights;
  double margin = 0;  // between what was chosen and what was not, experts and groups
};

std::vector<int32_t> sorted_by(const std::vector<double>& values) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return values[a] > values[b]; });
  return order;
}

double margin_after(const std::vector<double>& values, const std::vector<int32_t>& order, int32_t kept) {
  if (kept == static_cast<int32_t>(order.size())) return std::numeric_limits<double>::infinity();
  return values[order[kept - 1]] - values[order[kept]];
}

std::vector<double> scores_of(RouterScore score, const std::vector<double>& logits) {
  std::vector<double> s;
  double sum = 0;
  for (double v : logits) sum += std::exp(v);
  for (double v : logits) s.push_back(score == RouterScore::kSoftmax ? std::exp(v) / sum : 1 / (1 + std::exp(-v)));
  return s;
}

Expected expect_choice(const RouterShape& shape, const float* x, const std::vector<float>& weight,
                       const std::vector<float>& bias) {
  std::vector<double> logits(shape.num_experts, 0.0);
  for (int32_t e = 0; e < shape.num_experts; ++e) {
    for (int64_t i = 0; i < shape.hidden; ++i) logits[e] += double{x[i]} * weight[e * shape.hidden + i];
  }
  const std::vector<double> s = scores_of(shape.score, logits);
  std::vector<double> b = s;
  for (size_t e = 0; e < bias.size(); ++e) b[e] += bias[e];
  const int32_t size = shape.num_experts / shape.num_groups;
  std::vector<double> groups;
  for (int32_t g = 0; g < shape.num_groups; ++g) {
    std::vector<double> members(b.begin() + g * size, b.begin() + (g + 1) * size);
    std::sort(members.rbegin(), members.rend());
    groups.push_back(members[0] + (size > 1 ? members[1] : 0));
  }
  const auto group_order = sorted_by(groups);
  Expected expected;
  expected.margin = margin_after(groups, group_order, shape.groups_kept);
  for (int32_t g = shape.groups_kept; g < shape.num_groups; ++g) {
    std::fill_n(b.begin() + group_order[g] * size, size, kOut);
  }
  const auto order = sorted_by(b);
  expected.margin = std::min(expected.margin, margin_after(b, order, shape.top_k));
  expected.ids.assign(order.begin(), order.begin() + shape.top_k);
  double sum = 0;
  for (int32_t id : expected.ids) sum += s[id];
  for (int32_t id : expected.ids) {
    const double w = shape.normalize && shape.top_k > 1 ? s[id] / (sum + 1e-20) : s[id];
    expected.weights.push_back(w * shape.scale);
  }
  return expected;
}

// Made by hand from the formula: 8 experts in 4 groups, a bias that changes the choice.
const std::vector<float> kLogits = {2, -3, 1, 0.9f, -0.2f, -0.3f, 1.5f, -2.5f};
const std::vector<float> kBias = {0, -0.6f, 0, 0, 0.1f, 0.1f, -0.05f, -0.4f};

TEST(Route, WorkedExampleFlat) {
  const RouterShape shape{.num_experts = 8, .top_k = 3, .scale = 2.5f};
  for_each_backend([&](const OpContext& ctx, const std::string& name) {
    expect_routed(run_logits(ctx, shape, kLogits, kBias), {0, 6, 2}, {0.906382f, 0.841323f, 0.752294f}, name);
  });
}

TEST(Route, WorkedExampleWithGroups) {
  const RouterShape shape{.num_experts = 8, .top_k = 3, .num_groups = 4, .groups_kept = 2, .scale = 2.5f};
  for_each_backend([&](const OpContext& ctx, const std::string& name) {
    expect_routed(run_logits(ctx, shape, kLogits, kBias), {2, 3, 4}, {0.965898f, 0.939329f, 0.594774f}, name);
  });
}

// Experts of a group left out never win, not even against a kept one below zero.
TEST(Route, GroupsLeftOutAreOutHoweverLowTheOthers) {
  const std::vector<float> b = {0.95f, -0.55f, 0.30f, 0.02f, 0.05f, 0.04f, 0.20f, -0.40f};
  std::vector<float> bias;
  for (float v : b) bias.push_back(v - 0.5f);
  const std::vector<float> logits(8, 0.0f);  // scores of 0.5
  const RouterShape flat{.num_experts = 8, .top_k = 4};
  RouterShape grouped = flat;
  grouped.num_groups = 4;
  grouped.groups_kept = 2;
  for_each_backend([&](const OpContext& ctx, const std::string& name) {
    expect_routed(run_logits(ctx, grouped, logits, bias), {0, 2, 3, 1}, {0.25f, 0.25f, 0.25f, 0.25f}, name);
    expect_routed(run_logits(ctx, flat, logits, bias), {0, 2, 6, 4}, {}, name);
  });
}

TEST(Route, EqualScoresTakeTheLowestIndex) {
  const std::vector<float> equal(12, 0.25f);
  const std::vector<float> two_levels = {0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1};
  const RouterShape flat{.num_experts = 12, .top_k = 5};
  const RouterShape grouped{.num_experts = 12, .top_k = 4, .num_groups = 6, .groups_kept = 2};
  for_each_backend([&](const OpContext& ctx, const std::string& name) {
    EXPECT_EQ(run_logits(ctx, flat, equal, {}).ids, (std::vector<int32_t>{0, 1, 2, 3, 4})) << name;
    EXPECT_EQ(run_logits(ctx, flat, two_levels, {}).ids, (std::vector<int32_t>{1, 3, 4, 11, 0})) << name;
    EXPECT_EQ(run_logits(ctx, grouped, equal, {}).ids, (std::vector<int32_t>{0, 1, 2, 3})) << name;
    EXPECT_EQ(run_logits(ctx, grouped, two_levels, {}).ids, (std::vector<int32_t>{1, 3, 0, 2})) << name;
  });
}

TEST(Route, OneExpertKeepsItsScore) {
  for_each_backend([&](const OpContext& ctx, const std::string& name) {
    expect_routed(run_logits(ctx, {.num_experts = 4, .top_k = 1, .scale = 2.5f}, {0, 1, -1, 0.5f}, {}), {1},
                  {2.5f * 0.731059f}, name);
  });
}

TEST(Route, AllExperts) {
  const RouterShape shape{.num_experts = 8, .top_k = 8, .scale = 2.5f};
  for_each_backend([&](const OpContext& ctx, const std::string& name) {
    const Routed got = run_logits(ctx, shape, kLogits, kBias);
    EXPECT_EQ(got.ids, (std::vector<int32_t>{0, 6, 2, 3, 4, 5, 7, 1})) << name;
    EXPECT_NEAR(std::accumulate(got.weights.begin(), got.weights.end(), 0.0), 2.5, 1e-5) << name;
  });
}

TEST(Route, ExtremeLogitsStayFinite) {
  for (RouterScore score : {RouterScore::kSigmoid, RouterScore::kSoftmax}) {
    for_each_backend([&](const OpContext& ctx, const std::string& name) {
      const RouterShape shape{.num_experts = 4, .top_k = 2, .score = score};
      for (float size : {90.0f, 200.0f, 1e30f}) {
        const Routed got = run_logits(ctx, shape, {-size, size, -size, -size, -size, -size, -size, -size}, {});
        EXPECT_EQ(got.ids, (std::vector<int32_t>{1, 0, 0, 1})) << name;
        EXPECT_NEAR(got.weights[0], 1, 1e-6) << name;
        EXPECT_NEAR(got.weights[1], 0, 1e-6) << name;
        for (float w : got.weights) EXPECT_TRUE(std::isfinite(w)) << name << ' ' << size;
      }
    });
  }
}

TEST(Route, ARowWithANanIsMarkedAndSpoilsNoOther) {
  TestRandom random;
  const RouterShape shape{.hidden = 70, .num_experts = 10, .top_k = 3};
  const auto weight = random.normals(shape.num_experts * shape.hidden, 0.2f);
  const auto clean = random.normals(6 * shape.hidden);
  for_each_backend([&](const OpContext& ctx, const std::string& name) {
    const Routed want = run(ctx, shape, clean, weight, {});
    auto x = clean;
    x[2 * shape.hidden + 69] = kNaN;
    const Routed got = run(ctx, shape, x, weight, {});
    for (int64_t i = 0; i < 6 * 3; ++i) {
      if (i / 3 == 2) {
        EXPECT_EQ(got.ids[i], i % 3) << name;
        EXPECT_TRUE(std::isnan(got.weights[i])) << name;
      } else {
        EXPECT_EQ(got.ids[i], want.ids[i]) << name;
        EXPECT_EQ(got.weights[i], want.weights[i]) << name;
      }
    }
  });
}

struct RandomRouter {
  RouterShape shape;
  std::vector<float> x, weight, bias;
  int64_t num_tokens;
};

// Weights N(0, 2.25 / hidden) spread the scores over 0.1 to 0.9; the bias has a mean, as a model's before centring.
RandomRouter random_router(TestRandom& random, RouterShape shape, int64_t num_tokens) {
  RandomRouter r{
      .shape = shape,
      .x = random.normals(num_tokens * shape.hidden),
      .weight = random.normals(shape.num_experts * shape.hidden, 1.5f / std::sqrt(static_cast<float>(shape.hidden))),
      .bias = {},
      .num_tokens = num_tokens};
  if (shape.score == RouterScore::kSigmoid) {
    r.bias = random.normals(shape.num_experts, 0.3f);
    for (float& b : r.bias) b += 0.2f;
  }
  return r;
}

const RouterShape kShapes[] = {
    {.hidden = 200, .num_experts = 128, .top_k = 6, .scale = 2.5f},
    {.hidden = 512, .num_experts = 32, .top_k = 6, .num_groups = 4, .groups_kept = 2, .scale = 2.5f},
    {.hidden = 33, .num_experts = 128, .top_k = 8, .num_groups = 16, .groups_kept = 2, .scale = 2.5f},
    {.hidden = 7, .num_experts = 5, .top_k = 2},
    {.hidden = 100, .num_experts = 128, .top_k = 8, .score = RouterScore::kSoftmax},
    {.hidden = 100, .num_experts = 60, .top_k = 4, .score = RouterScore::kSoftmax, .normalize = false},
    {.hidden = 64, .num_experts = 8, .top_k = 2, .num_groups = 8, .groups_kept = 3},
};

TEST(Route, IsTheFormula) {
  TestRandom random;
  for (const RouterShape& shape : kShapes) {
    const RandomRouter r = random_router(random, shape, 37);
    std::vector<Expected> expected;
    for (int64_t t = 0; t < r.num_tokens; ++t) {
      expected.push_back(expect_choice(shape, &r.x[t * shape.hidden], r.weight, r.bias));
    }
    for_each_backend([&](const OpContext& ctx, const std::string& name) {
      const Routed got = run(ctx, shape, r.x, r.weight, r.bias);
      for (int64_t t = 0; t < r.num_tokens; ++t) {
        if (expected[t].margin < 1e-5) continue;  // rounding decides
        const Expected& want = expected[t];
        std::vector<int32_t> ids(got.ids.begin() + t * shape.top_k, got.ids.begin() + (t + 1) * shape.top_k);
        for (int32_t j = 0; j < shape.top_k; ++j) {
          // by rank, since equal within rounding may come in either order
          const auto at = std::find(ids.begin(), ids.end(), want.ids[j]);
          ASSERT_NE(at, ids.end()) << name << " token " << t << " misses expert " << want.ids[j];
          ASSERT_NEAR(got.weights[t * shape.top_k + (at - ids.begin())], want.weights[j], 1e-5) << name;
        }
      }
    });
  }
}

TEST(Route, AConstantOnTheBiasChangesNothingAndTheBiasIsNotInTheWeights) {
  TestRandom random;
  for (const RouterShape& shape : {kShapes[0], kShapes[1], kShapes[2]}) {
    const RandomRouter r = random_router(random, shape, 20);
    auto shifted = r.bias;
    for (float& b : shifted) b -= 0.75f;
    for_each_backend([&](const OpContext& ctx, const std::string& name) {
      const Routed got = run(ctx, shape, r.x, r.weight, r.bias);
      const Routed other = run(ctx, shape, r.x, r.weight, shifted);
      const Routed none = run(ctx, shape, r.x, r.weight, {});
      int64_t changed = 0;
      for (int64_t t = 0; t < r.num_tokens; ++t) {
        const Expected want = expect_choice(shape, &r.x[t * shape.hidden], r.weight, r.bias);
        if (want.margin < 1e-5) continue;
        for (int64_t i = t * shape.top_k; i < (t + 1) * shape.top_k; ++i) changed += none.ids[i] != got.ids[i];
        const auto sorted = [&](const Routed& routed) {
          std::vector<std::pair<int32_t, float>> pairs;
          for (int64_t i = t * shape.top_k; i < (t + 1) * shape.top_k; ++i) {
            pairs.emplace_back(routed.ids[i], routed.weights[i]);
          }
          std::sort(pairs.begin(), pairs.end());
          return pairs;
        };
        const auto a = sorted(got);
        const auto b = sorted(other);
        for (int32_t j = 0; j < shape.top_k; ++j) {
          ASSERT_EQ(a[j].first, b[j].first) << name;
          ASSERT_NEAR(a[j].second, b[j].second, 1e-6) << name;
        }
      }
      EXPECT_GT(changed, 0) << "this bias chooses nothing";
    });
  }
}

TEST(Route, ATokenIsTheSameAloneInAnyBatchAndOnAnyThreads) {
  TestRandom random;
  for (const RouterShape& shape : kShapes) {
    const RandomRouter r = random_router(random, shape, 39);
    ThreadPool one(1);
    ThreadPool three(3);
    Routed alone;
    for (int64_t t = 0; t < r.num_tokens; ++t) {
      const std::vector<float> row(r.x.begin() + t * shape.hidden, r.x.begin() + (t + 1) * shape.hidden);
      const Routed got = run({Backend::kCpu, &one}, shape, row, r.weight, r.bias);
      alone.ids.insert(alone.ids.end(), got.ids.begin(), got.ids.end());
      alone.weights.insert(alone.weights.end(), got.weights.begin(), got.weights.end());
    }
    for (ThreadPool* pool : {&one, &three}) {
      const Routed got = run({Backend::kCpu, pool}, shape, r.x, r.weight, r.bias);
      EXPECT_EQ(got.ids, alone.ids);
      EXPECT_EQ(std::memcmp(got.weights.data(), alone.weights.data(), alone.weights.size() * sizeof(float)), 0);
    }
  }
}

TEST(GroupByExpert, ListsEveryPairOnceByExpertThenAscending) {
  TestRandom random;
  for (int64_t num_tokens : {0, 1, 50}) {
    const int32_t num_experts = 9;
    const int32_t top_k = 3;
    std::vector<int32_t> ids(num_tokens * top_k);
    for (int32_t& id : ids) id = static_cast<int32_t>(random.integer(0, num_experts - 2));  // the last gets nothing
    std::vector<int32_t> indptr(num_experts + 1, -1);
    std::vector<int32_t> rows(ids.size() + 1, -1);
    group_by_expert(ids.data(), num_tokens, top_k, num_experts, indptr.data(), rows.data());
    std::vector<int32_t> want;
    for (int32_t e = 0; e < num_experts; ++e) {
      EXPECT_EQ(indptr[e], static_cast<int32_t>(want.size()));
      for (size_t p = 0; p < ids.size(); ++p) {
        if (ids[p] == e) want.push_back(static_cast<int32_t>(p));
      }
    }
    EXPECT_EQ(indptr[num_experts], static_cast<int32_t>(ids.size()));
    want.push_back(-1);
    EXPECT_EQ(rows, want);
  }
}

}  // namespace
}  // namespace vayu::ops
