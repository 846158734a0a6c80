// The block against its definition in double, written out again: norm, router, experts, shared expert, residual.
#include "model/blocks/moe_mlp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "ops/cpu/op_test_util.h"
#include "ops/gemm/linear.h"
#include "ops/moe/grouped_linear.h"

namespace vayu::model {
namespace {

using ops::TestRandom;
using Doubles = std::vector<double>;

constexpr int32_t kHidden = 48;
constexpr int32_t kExpertFfn = 24;
constexpr int32_t kExperts = 8;
constexpr int32_t kTopK = 3;
constexpr int64_t kTokens = 9;

ModelConfig test_config(int32_t shared_ffn) {
  ModelConfig config;
  config.hidden = kHidden;
  config.moe.router = {.hidden = kHidden, .num_experts = kExperts, .top_k = kTopK, .scale = 2.5f};
  config.moe.expert_ffn = kExpertFfn;
  config.moe.shared_ffn = shared_ffn;
  return config;
}

struct TestWeights {
  std::vector<float> norm, router, bias, gate_up, down, shared_gate_up, shared_down;
};

TestWeights random_weights(TestRandom& random, int64_t shared_ffn) {
  const auto linear = [&](int64_t rows, int64_t cols) {
    return random.normals(rows * cols, 1 / std::sqrt(static_cast<float>(cols)));
  };
  TestWeights w{random.normals(kHidden, 0.3f), random.normals(kExperts * kHidden, 0.2f), random.normals(kExperts, 0.3f),
                linear(kExperts * 2 * kExpertFfn, kHidden), linear(kExperts * kHidden, kExpertFfn)};
  for (float& v : w.norm) v += 1;
  if (shared_ffn > 0) {
    w.shared_gate_up = linear(2 * shared_ffn, kHidden);
    w.shared_down = linear(kHidden, shared_ffn);
  }
  return w;
}

std::unique_ptr<ops::Matrix> pack(const ops::OpContext& ctx, const std::vector<float>& data, int64_t parts,
                                  int64_t cols) {
  const int64_t rows = static_cast<int64_t>(data.size()) / cols / parts;
  std::vector<ops::MatrixView> views;
  for (int64_t p = 0; p < parts; ++p) views.push_back({&data[p * rows * cols], DataFormat::kF32, rows, cols, "w"});
  return std::move(ops::pack_matrix(ctx, views)).value();
}

LayerWeights pack_layer(const ops::OpContext& ctx, const TestWeights& w, int64_t shared_ffn) {
  LayerWeights layer;
  layer.mlp_norm = w.norm;
  layer.router = w.router;
  layer.router_bias = w.bias;
  layer.expert_gate_up = pack(ctx, w.gate_up, kExperts * 2, kHidden);
  layer.expert_down = pack(ctx, w.down, kExperts, kExpertFfn);
  if (shared_ffn > 0) {
    layer.gate_up = pack(ctx, w.shared_gate_up, 2, kHidden);
    layer.down = pack(ctx, w.shared_down, 1, shared_ffn);
  }
  return layer;
}

double dot(const float* w, const Doubles& x) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += w[i] * x[i];
  return sum;
}

Doubles swiglu(const Doubles& x, const float* gate_up, const float* down, int64_t ffn) {
  Doubles inner(ffn);
  for (int64_t i = 0; i < ffn; ++i) {
    const double gate = dot(gate_up + i * kHidden, x);
    inner[i] = gate / (1 + std::exp(-gate)) * dot(gate_up + (ffn + i) * kHidden, x);
  }
  Doubles out(kHidden);
  for (int64_t i = 0; i < kHidden; ++i) out[i] = dot(down + i * ffn, inner);
  return out;
}

struct Expected {
  Doubles residual;
  std::set<int32_t> experts;
  double margin = 0;  // between the last expert chosen and the first that is not
};

Expected expect_token(const TestWeights& w, const float* residual, int64_t shared_ffn) {
  double squares = 0;
  for (int64_t i = 0; i < kHidden; ++i) squares += double{residual[i]} * residual[i];
  Doubles x(kHidden);
  for (int64_t i = 0; i < kHidden; ++i) x[i] = residual[i] * w.norm[i] / std::sqrt(squares / kHidden + 1e-6);
  Doubles score(kExperts);
  std::vector<std::pair<double, int32_t>> order;
  for (int32_t e = 0; e < kExperts; ++e) {
    score[e] = 1 / (1 + std::exp(-dot(&w.router[e * kHidden], x)));
    order.emplace_back(-(score[e] + w.bias[e]), e);
  }
  std::sort(order.begin(), order.end());
  Expected expected{Doubles(residual, residual + kHidden), {}, order[kTopK].first - order[kTopK - 1].first};
  double sum = 0;
  for (int32_t j = 0; j < kTopK; ++j) sum += score[order[j].second];
  const auto add = [&](double weight, const Doubles& out) {
    for (int64_t i = 0; i < kHidden; ++i) expected.residual[i] += weight * out[i];
  };
  for (int32_t j = 0; j < kTopK; ++j) {
    const int64_t e = order[j].second;
    expected.experts.insert(order[j].second);
    add(2.5 * score[e] / sum,
        swiglu(x, &w.gate_up[e * 2 * kExpertFfn * kHidden], &w.down[e * kHidden * kExpertFfn], kExpertFfn));
  }
  if (shared_ffn > 0) add(1, swiglu(x, w.shared_gate_up.data(), w.shared_down.data(), shared_ffn));
  return expected;
}

struct Seen {
  int32_t layer = -1;
  std::vector<int32_t> ids;
};

std::vector<float> run_block(const ops::OpContext& ctx, const TestWeights& w, const std::vector<float>& residual,
                             int32_t shared_ffn, Seen& seen) {
  const ModelConfig config = test_config(shared_ffn);
  const LayerWeights layer = pack_layer(ctx, w, shared_ffn);
  const int64_t pairs = kTokens * kTopK;
  std::vector<float> y = residual;
  std::vector<float> normed(kTokens * kHidden), gate_up(kTokens * 2 * shared_ffn), mlp(kTokens * shared_ffn);
  std::vector<float> weights(pairs), expert_gate_up(pairs * 2 * kExpertFfn), expert_mlp(pairs * kExpertFfn);
  std::vector<float> expert_out(pairs * kHidden);
  std::vector<int32_t> ids(pairs), indptr(kExperts + 1), rows(pairs), tokens(pairs);
  ops::TestScratch scratch(std::max({ops::route_scratch_bytes(ctx, config.moe.router, kTokens),
                                     ops::grouped_linear_scratch_bytes(ctx, pairs, kHidden, kExperts),
                                     ops::linear_scratch_bytes(ctx, kTokens, std::max(kHidden, shared_ffn))}));
  Activations act;
  act.residual = y.data();
  act.normed = normed.data();
  act.gate_up = gate_up.data();
  act.mlp = mlp.data();
  act.scratch = scratch.get();
  act.expert_ids = ids.data();
  act.expert_weights = weights.data();
  act.expert_indptr = indptr.data();
  act.expert_rows = rows.data();
  act.expert_tokens = tokens.data();
  act.expert_gate_up = expert_gate_up.data();
  act.expert_mlp = expert_mlp.data();
  act.expert_out = expert_out.data();
  Batch batch;
  batch.token_ids.assign(kTokens, 0);
  const RopeFrequencies rope;
  const RouterObserver observer = [&](int32_t at, const int32_t* chosen, int64_t num_tokens) {
    seen = {at, {chosen, chosen + num_tokens * kTopK}};
  };
  moe_mlp({ctx, config, batch, act, rope, 5, &observer}, layer, {});
  return y;
}

TEST(MoeMlp, IsTheDefinitionWithAndWithoutASharedExpert) {
  TestRandom random;
  for (int32_t shared_ffn : {0, 40}) {
    const TestWeights w = random_weights(random, shared_ffn);
    const auto residual = random.normals(kTokens * kHidden);
    const auto check = [&](const ops::OpContext& ctx, const std::string& name) {
      Seen seen;
      const auto y = run_block(ctx, w, residual, shared_ffn, seen);
      EXPECT_EQ(seen.layer, 5);
      ASSERT_EQ(seen.ids.size(), kTokens * kTopK);
      for (int64_t t = 0; t < kTokens; ++t) {
        const Expected want = expect_token(w, &residual[t * kHidden], shared_ffn);
        if (want.margin < 1e-5) continue;  // rounding decides
        EXPECT_EQ(std::set<int32_t>(&seen.ids[t * kTopK], &seen.ids[t * kTopK] + kTopK), want.experts) << name;
        for (int64_t i = 0; i < kHidden; ++i) {
          ASSERT_NEAR(y[t * kHidden + i], want.residual[i], 2e-5) << name << " shared " << shared_ffn << " token " << t;
        }
      }
    };
    check({ops::Backend::kReference, nullptr}, "reference");
    ops::for_each_cpu_variant(check);
  }
}

}  // namespace
}  // namespace vayu::model
