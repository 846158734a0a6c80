#include "apps/eval/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "apps/eval/evaluator.h"
#include "apps/eval/expert_load.h"

namespace vayu::eval {
namespace {

std::vector<float> logs(std::vector<double> p, double shift) {
  std::vector<float> out;
  for (const double x : p) out.push_back(static_cast<float>(std::log(x) + shift));
  return out;
}

double kl(const std::vector<float>& p, const std::vector<float>& q) {
  const auto n = static_cast<int64_t>(p.size());
  return kl_divergence(p.data(), score_row(p.data(), n, 0).log_z, q.data(), score_row(q.data(), n, 0).log_z, n);
}

TEST(ScoreRow, IsLogSoftmaxWhateverTheShift) {
  for (const double shift : {0.0, 90.0, -300.0}) {
    const auto row = logs({0.125, 0.5, 0.25, 0.125}, shift);
    const RowScore score = score_row(row.data(), 4, 2);
    EXPECT_TRUE(score.finite);
    EXPECT_NEAR(score.nll, std::log(4.0), 1e-5);
    EXPECT_NEAR(score.log_z, shift, 1e-4);
    EXPECT_EQ(score.top, 1);
  }
  const float tie[] = {1, 3, 3};
  EXPECT_EQ(score_row(tie, 3, 0).top, 1);
}

TEST(ScoreRow, SeesWhatIsNotFinite) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float bad : {NAN, kInf, -kInf}) {
    for (int at = 0; at < 3; ++at) {
      float row[] = {1, 2, 3};
      row[at] = bad;
      EXPECT_FALSE(score_row(row, 3, 0).finite);
    }
  }
}

TEST(KlDivergence, KnownValuesAndZeroForEqualRows) {
  const auto half = logs({0.5, 0.5}, 0), quarter = logs({0.25, 0.75}, 5);
  EXPECT_NEAR(kl(half, quarter), 0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3), 1e-6);
  EXPECT_NEAR(kl(quarter, half), 0.25 * std::log(0.5) + 0.75 * std::log(1.5), 1e-6);  // the other way round
  EXPECT_EQ(kl(quarter, quarter), 0);
}

TEST(Gini, KnownValues) {
  EXPECT_DOUBLE_EQ(gini({3, 3, 3, 3}), 0);
  EXPECT_DOUBLE_EQ(gini({0, 0, 7, 0}), 0.75);
  EXPECT_DOUBLE_EQ(gini({3, 1, 2}), 2.0 / 9);
  EXPECT_DOUBLE_EQ(gini({0, 0}), 0);
}

TEST(TextScoreTest, FiguresAndSum) {
  TextScore a{.path = "a", .tokens = 2, .bytes = 4, .nll = 2 * std::log(8.0), .elapsed_s = 0.5};
  a.kl = {0.0, 1.0};
  a.agreed = 1;
  EXPECT_NEAR(a.perplexity(), 8, 1e-12);
  EXPECT_NEAR(a.bits_per_byte(), 1.5, 1e-12);
  EXPECT_DOUBLE_EQ(a.tokens_per_s(), 4);
  EXPECT_DOUBLE_EQ(a.agreement(), 0.5);
  EXPECT_DOUBLE_EQ(a.mean_kl(), 0.5);
  EXPECT_DOUBLE_EQ(a.p99_kl(), 0.99);
  TextScore total;
  total.add(a);
  total.add({.tokens = 6, .bytes = 4, .nll = 6 * std::log(2.0), .elapsed_s = 0.5});
  EXPECT_NEAR(total.perplexity(), std::pow(2.0, 12.0 / 8), 1e-12);  // weighted by tokens
  EXPECT_EQ(TextScore().perplexity(), 1);
}

TEST(ExpertLoadTest, CountsTheTokensItIsTold) {
  ExpertLoad load(4, 2);
  const int32_t ids[] = {0, 1, 2, 3, 0, 2};  // of 3 tokens
  const int32_t tokens[] = {0, 2};
  load.count(5, ids, tokens);
  load.count(1, ids, tokens);
  load.count(1, ids, tokens);
  const auto layers = load.layers();
  ASSERT_EQ(layers.size(), 2);
  EXPECT_EQ(layers[0].layer, 1);
  EXPECT_EQ(layers[0].choices, 8);
  EXPECT_EQ(layers[1].layer, 5);
  EXPECT_EQ(layers[1].choices, 4);
  EXPECT_EQ(layers[1].share, (std::vector<double>{0.5, 0.25, 0.25, 0}));
  EXPECT_EQ(layers[1].busiest, 0);
  EXPECT_DOUBLE_EQ(layers[1].max_over_uniform, 2);
  EXPECT_EQ(layers[1].never_chosen, std::vector<int32_t>{3});
}

}  // namespace
}  // namespace vayu::eval
