#include "apps/eval/windows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace vayu::eval {
namespace {

struct Cut {
  int64_t num_tokens;
  int32_t window, stride;
};

const Cut kCuts[] = {{2, 2, 1},       {9, 2, 1},      {512, 512, 256}, {513, 512, 256}, {768, 512, 256},
                     {769, 512, 256}, {1000, 64, 63}, {1000, 64, 1},   {37, 10, 3},     {5, 100, 7}};

TEST(Windows, EveryTokenIsScoredOnceWithItsContext) {
  for (const auto& [n, window, stride] : kCuts) {
    std::vector<int> scored(n, 0);
    for (const Window& w : plan_windows(n, window, stride)) {
      ASSERT_LE(w.end - w.begin, window);
      ASSERT_GE(w.first_logit(), 0);
      for (int64_t t = w.score_begin; t < w.end; ++t) {
        ++scored[t];
        const int64_t context = t - w.begin;
        ASSERT_TRUE(w.begin == 0 || context >= window - stride) << "token " << t << " of " << n;
      }
    }
    EXPECT_EQ(scored[0], 0);
    EXPECT_TRUE(std::all_of(scored.begin() + 1, scored.end(), [](int times) { return times == 1; })) << n;
  }
}

TEST(Windows, NoneIsSpentOnNothing) {
  EXPECT_EQ(plan_windows(512, 512, 256).size(), 1);
  EXPECT_EQ(plan_windows(513, 512, 256).size(), 2);
  EXPECT_EQ(plan_windows(768, 512, 256).size(), 2);
  EXPECT_EQ(plan_windows(769, 512, 256).size(), 3);
}

TEST(Steps, RunEveryInputInOrderWithinTheLimits) {
  for (const auto& [n, window, stride] : kCuts) {
    for (const StepLimits limits : {StepLimits{1, 1}, {7, 3}, {64, 64}, {64, 5}, {2048, 300}, {2048, 2048}}) {
      const auto windows = plan_windows(n, window, stride);
      std::vector<int32_t> done(windows.size(), 0);
      for (const auto& step : plan_steps(windows, limits)) {
        ASSERT_FALSE(step.empty());
        ASSERT_LE(step.size(), max_rows_per_step(window, limits.max_tokens));
        int32_t tokens = 0, logits = 0;
        for (size_t i = 0; i < step.size(); ++i) {
          const StepRow& row = step[i];
          ASSERT_EQ(row.first, done[row.window]);
          ASSERT_TRUE(i == 0 || row.window == step[i - 1].window + 1);  // so no two share a remainder
          ASSERT_GT(row.count, 0);
          done[row.window] += row.count;
          tokens += row.count;
          logits += std::max(0, row.first + row.count - std::max(row.first, windows[row.window].first_logit()));
        }
        ASSERT_LE(tokens, limits.max_tokens);
        ASSERT_LE(logits, limits.max_logits);
      }
      for (size_t i = 0; i < windows.size(); ++i) ASSERT_EQ(done[i], windows[i].num_inputs());
    }
  }
}

TEST(Steps, AreFilled) {
  const auto windows = plan_windows(10'000, 512, 256);
  const auto steps = plan_steps(windows, {2048, 2048});
  int64_t inputs = 0;
  for (const Window& w : windows) inputs += w.num_inputs();
  EXPECT_EQ(steps.size(), (inputs + 2047) / 2048);
}

}  // namespace
}  // namespace vayu::eval
