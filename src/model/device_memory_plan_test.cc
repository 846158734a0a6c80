#include "model/device_memory_plan.h"

#include <gtest/gtest.h>

namespace vayu::model {
namespace {

constexpr int64_t kMiB = 1 << 20, kGiB = 1 << 30;

// 20 GiB of weights on a device of 80.
DeviceMemoryNeeds needs_of(int32_t num_graphs = 36) {
  return {.device = "a device",
          .total = 80 * kGiB,
          .fraction = 0.9,
          .weights = 20 * kGiB,
          .workspace = 2 * kGiB,
          .workspace_taken = kGiB / 2,
          .staging = 128 * kMiB,
          .num_layers = 19,
          .num_graphs = num_graphs,
          .page_bytes = kMiB,
          .least_pages = 128,
          .most_pages = 1000000};
}

bool says(const Error& error, const std::string& text) { return error.message.find(text) != std::string::npos; }

TEST(DeviceMemoryPlan, EveryByteHasAName) {
  DeviceMemoryPlan plan{.weights = 20, .kv_pages = 30, .workspace = 5, .graphs = 1, .total = 100};
  plan.close(37);
  EXPECT_EQ(plan.free, 37);
  EXPECT_EQ(plan.other, 7);
}

TEST(DeviceMemoryPlan, ReserveGrowsWithGraphs) {
  EXPECT_EQ(needs_of(0).reserve(), 64 * kMiB);
  EXPECT_EQ(needs_of(36).reserve(), 64 * kMiB + 36 * (2 * kMiB + (19 * 16 + 8) * 8192));
}

// Nobody else on the device: the fraction is the bound, and what the caller holds is part of it.
TEST(DeviceMemoryPlan, FractionIsOfEverything) {
  const DeviceMemoryNeeds needs = needs_of();
  ASSERT_TRUE(check_device_memory(needs, 79 * kGiB).ok());
  EXPECT_EQ(*plan_kv_pages(needs, 57 * kGiB), (72 - 22) * 1024);
}

TEST(DeviceMemoryPlan, AFullDeviceGetsFewerPages) {
  DeviceMemoryNeeds needs = needs_of();
  ASSERT_TRUE(check_device_memory(needs, 24 * kGiB).ok());
  // Weights and the rest of the workspace took 21.5 GiB and 100 MiB that nobody reckoned with.
  const int64_t left = 24 * kGiB - 21 * kGiB - kGiB / 2 - 100 * kMiB;
  EXPECT_EQ(*plan_kv_pages(needs, left), (left - needs.reserve()) / kMiB);
  EXPECT_EQ(*plan_kv_pages(needs, needs.reserve() + kMiB), 1);
  needs.most_pages = 50;
  EXPECT_EQ(*plan_kv_pages(needs, left), 50);
}

// To the byte: weights, the workspace that is to come, the least pages, reserve and rounding.
TEST(DeviceMemoryPlan, RefusesBeforeLoading) {
  const DeviceMemoryNeeds needs = needs_of();
  const int64_t need = 21 * kGiB + kGiB / 2 + 128 * kMiB + needs.reserve() + (19 * 7 + 2) * kMiB;
  EXPECT_TRUE(check_device_memory(needs, need).ok());
  const Status refused = check_device_memory(needs, need - 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kResourceExhausted);
  for (const char* part : {"a device has 21.98", " of 80.00 GiB free", "kept for graphs and the driver",
                           "weights take about 20.00 GiB", "workspace 1.50", "128 KV pages 0.125"}) {
    EXPECT_TRUE(says(refused.error(), part)) << part << ": " << refused.error().message;
  }
}

TEST(DeviceMemoryPlan, RefusesMoreThanTheFraction) {
  DeviceMemoryNeeds needs = needs_of();
  needs.fraction = 0.25;
  const Status refused = check_device_memory(needs, 79 * kGiB);
  ASSERT_FALSE(refused.ok());
  EXPECT_TRUE(says(refused.error(), "--mem-fraction-static 0.25 allows 19.50")) << refused.error().message;
}

// The staging of many threads may be more than all that comes behind it.
TEST(DeviceMemoryPlan, StagingHasToFitBesideTheWeights) {
  DeviceMemoryNeeds needs = needs_of();
  needs.staging = 3 * kGiB;
  const int64_t need = needs.weights + needs.staging + (19 * 7 + 2) * kMiB;
  EXPECT_TRUE(check_device_memory(needs, need).ok());
  EXPECT_FALSE(check_device_memory(needs, need - 1).ok());
}

TEST(DeviceMemoryPlan, PagesThatAreAskedForAreAllOrNothing) {
  DeviceMemoryNeeds needs = needs_of();
  needs.num_pages = 3000;
  EXPECT_TRUE(check_device_memory(needs, 25 * kGiB).ok());
  EXPECT_FALSE(check_device_memory(needs, 24 * kGiB).ok());
  EXPECT_EQ(*plan_kv_pages(needs, needs.reserve() + 3000 * kMiB), 3000);
  const Result<int64_t> refused = plan_kv_pages(needs, needs.reserve() + 3000 * kMiB - 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kResourceExhausted);
  EXPECT_TRUE(says(refused.error(), "3000 KV pages of 1048576 bytes")) << refused.error().message;
}

TEST(DeviceMemoryPlan, NoPageIsARefusal) {
  const DeviceMemoryNeeds needs = needs_of();
  EXPECT_FALSE(plan_kv_pages(needs, needs.reserve() + kMiB - 1).ok());
  EXPECT_FALSE(plan_kv_pages(needs, 0).ok());
}

}  // namespace
}  // namespace vayu::model
