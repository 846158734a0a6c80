#include "telemetry/step_profile.h"

#include <gtest/gtest.h>

namespace vayu {
namespace {

TEST(StepProfile, TableIsOfTheMeanStep) {
  StepProfile profile{.device = "D", .steps = {{32, 32}, {65, 33}}, .host_us = 10};
  profile.records = {{"a", 0, 2000, 7}, {"b", 1000, 3000, 7}, {"a", 6000, 9000, 7}};
  const ProfileTable table = profile_table(profile);
  EXPECT_EQ(table.device, "D");
  EXPECT_EQ(table.num_steps, 2u);
  EXPECT_DOUBLE_EQ(table.tokens, 48.5);
  EXPECT_DOUBLE_EQ(table.rows, 32.5);
  EXPECT_DOUBLE_EQ(table.step_us, 5);
  EXPECT_DOUBLE_EQ(table.busy_us, 3);
  ASSERT_EQ(table.kernels.size(), 2u);
  EXPECT_EQ(table.kernels[0].name, "a");
  EXPECT_DOUBLE_EQ(table.kernels[0].calls, 1);
  EXPECT_DOUBLE_EQ(table.kernels[0].own_us, 2.5);
  EXPECT_DOUBLE_EQ(table.kernels[1].calls, 0.5);
  EXPECT_DOUBLE_EQ(table.kernels[1].own_us, 0.5);
  EXPECT_DOUBLE_EQ(table.kernels[1].us, 1);
  const std::string text = to_text(table);
  EXPECT_NE(text.find("D: 48.5 tokens in 32.5 rows a step, 2 steps; 5.0 us a step under CUPTI, of which 3.0 us the "
                      "device works (60.0%)\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("       1.0         2.5         2.5    83.3%  a\n"), std::string::npos) << text;
}

TEST(StepProfile, NothingRecorded) {
  const ProfileTable table = profile_table({.device = "D"});
  EXPECT_EQ(table.num_steps, 0u);
  EXPECT_EQ(to_text(table).find("nan"), std::string::npos);
}

}  // namespace
}  // namespace vayu
