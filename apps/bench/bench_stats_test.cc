#include <gtest/gtest.h>

#include <algorithm>

#include "apps/bench/random.h"
#include "apps/bench/stats.h"

namespace vayu::bench {
namespace {

TEST(Stats, PercentilesAreNumpysLinear) {
  const std::vector<double> values = {1, 2, 3, 4};  // numpy.percentile([1, 2, 3, 4], p)
  EXPECT_DOUBLE_EQ(percentile(values, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(values, 50), 2.5);
  EXPECT_DOUBLE_EQ(percentile(values, 90), 3.7);
  EXPECT_DOUBLE_EQ(percentile(values, 99), 3.97);
  EXPECT_DOUBLE_EQ(percentile(values, 100), 4);
  EXPECT_DOUBLE_EQ(percentile({7}, 95), 7);
}

TEST(Stats, SummaryDoesNotDependOnOrder) {
  std::vector<double> values;
  for (int i = 100; i >= 0; --i) values.push_back(i);
  const Summary s = summarize(values);
  EXPECT_EQ(s.count, 101);
  EXPECT_DOUBLE_EQ(s.mean, 50);
  EXPECT_DOUBLE_EQ(s.min, 0);
  EXPECT_DOUBLE_EQ(s.p50, 50);
  EXPECT_DOUBLE_EQ(s.p90, 90);
  EXPECT_DOUBLE_EQ(s.p95, 95);
  EXPECT_DOUBLE_EQ(s.p99, 99);
  EXPECT_DOUBLE_EQ(s.max, 100);
  EXPECT_EQ(summarize({}).count, 0);
}

TEST(PoissonArrivals, RateSpreadAndSeed) {
  PoissonArrivals arrivals(50, 7), same(50, 7), other(50, 8);
  std::vector<double> gaps;
  double last = 0;
  for (int i = 0; i < 20000; ++i) {
    const double at = arrivals.next_s();
    ASSERT_GT(at, last);
    ASSERT_EQ(at, same.next_s());
    gaps.push_back(at - last);
    last = at;
  }
  EXPECT_NE(other.next_s(), PoissonArrivals(50, 7).next_s());
  const Summary s = summarize(gaps);
  EXPECT_NEAR(s.mean, 1.0 / 50, 0.0006);           // 3 standard errors of 20,000 exponential gaps are 0.00042
  EXPECT_NEAR(s.p50, std::log(2.0) / 50, 0.0006);  // the median tells an exponential from an even spread
  EXPECT_NEAR(s.p95, std::log(20.0) / 50, 0.002);
}

}  // namespace
}  // namespace vayu::bench
