#include "telemetry/kernel_trace.h"

#include <gtest/gtest.h>

namespace vayu {
namespace {

TEST(KernelTrace, NamesWithoutScopesAndParameters) {
  EXPECT_EQ(short_kernel_name("void vayu::ops::(anonymous namespace)::f<3, (bool)1>(vayu::ops::Args, int)"),
            "f<3, (bool)1>");
  EXPECT_EQ(short_kernel_name("vayu::ops::(anonymous namespace)::read_all(const uint4 *, long, unsigned int *)"),
            "read_all");
  EXPECT_EQ(short_kernel_name("plain"), "plain");
  EXPECT_EQ(short_kernel_name("void k<ns::A<int>, ns::B>(int)"), "k<ns::A<int>, ns::B>");
}

TEST(KernelTrace, TotalsAndBusyTime) {
  const std::vector<KernelRecord> records = {{"a", 0, 1000, 7}, {"b", 500, 1500, 8}, {"a", 4000, 6000, 7}};
  const std::vector<KernelTotal> totals = kernel_totals(records);
  ASSERT_EQ(totals.size(), 2);
  EXPECT_EQ(totals[0].name, "a");
  EXPECT_EQ(totals[0].calls, 2);
  EXPECT_DOUBLE_EQ(totals[0].us, 3.0);
  EXPECT_DOUBLE_EQ(totals[0].own_us, 3.0);
  EXPECT_DOUBLE_EQ(totals[1].us, 1.0);
  EXPECT_DOUBLE_EQ(totals[1].own_us, 0.5);
  EXPECT_EQ(busy_ns(records), 3500);  // what runs beside something else counts once
  EXPECT_EQ(busy_ns({}), 0);
}

TEST(KernelTrace, ChromeTraceCountsFromTheFirstEvent) {
  const std::string text = chrome_trace({{"k\"1", 5000, 7000, 3}}, {{"launch", 4000, 4500}});
  EXPECT_NE(text.find(R"({"ph":"X","name":"launch","pid":0,"tid":0,"ts":0.000,"dur":0.500})"), std::string::npos)
      << text;
  EXPECT_NE(text.find(R"({"ph":"X","name":"k\"1","pid":1,"tid":3,"ts":1.000,"dur":2.000})"), std::string::npos) << text;
}

}  // namespace
}  // namespace vayu
