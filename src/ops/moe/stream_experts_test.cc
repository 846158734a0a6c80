#include "ops/moe/stream_experts.h"

#include <gtest/gtest.h>

namespace vayu::ops {
namespace {

StreamExpertsArgs args_of(WeightScale scale, int64_t hidden) {
  static float some_scale = 1;
  const bool f8 = scale != WeightScale::kNone;
  StreamExpertsArgs args;
  args.gate_up = {.scale = scale, .rows = 4 * 256, .cols = hidden};
  args.down = {.scale = scale, .rows = 4 * hidden, .cols = 128};
  args.shared_gate_up = {.scale = scale, .rows = 256, .cols = hidden};
  args.shared_down = {.scale = scale, .rows = hidden, .cols = 128};
  args.x = {.scales = f8 ? &some_scale : nullptr, .cols = hidden};
  args.h = {.scales = f8 ? &some_scale : nullptr, .cols = 128, .scale_group = f8 ? kScaleGroup : 0};
  args.num_tokens = 8;
  args.num_experts = 4;
  args.top_k = 2;
  args.ffn = 128;
  return args;
}

TEST(StreamExperts, FitsWhereAllScalesAreOfAKind) {
  for (const WeightScale scale : {WeightScale::kNone, WeightScale::kRow, WeightScale::kBlock}) {
    EXPECT_TRUE(stream_experts_fits(args_of(scale, 384)));
    EXPECT_EQ(stream_experts_fits(args_of(scale, 400)), scale != WeightScale::kBlock);
    for (DeviceMatrix StreamExpertsArgs::*matrix :
         {&StreamExpertsArgs::gate_up, &StreamExpertsArgs::down, &StreamExpertsArgs::shared_gate_up,
          &StreamExpertsArgs::shared_down}) {
      StreamExpertsArgs args = args_of(scale, 384);
      (args.*matrix).scale = scale == WeightScale::kRow ? WeightScale::kBlock : WeightScale::kRow;
      EXPECT_FALSE(stream_experts_fits(args));
    }
  }
}

TEST(StreamExperts, HalfTilesHaveScalesOfTheirOwn) {
  StreamExpertsArgs args = args_of(WeightScale::kRow, 384);
  args.half_tiles = true;
  EXPECT_FALSE(stream_experts_fits(args));
  args.h.scale_group = kScaleGroup / 2;
  EXPECT_TRUE(stream_experts_fits(args));
  args.num_tokens = kStreamExpertsHalvesTokens + 1;
  EXPECT_FALSE(stream_experts_fits(args));
  args.half_tiles = false;
  EXPECT_FALSE(stream_experts_fits(args));
}

TEST(StreamExperts, HalfTilesPayWhereWholeOnesLeaveProcessorsIdle) {
  StreamExpertsArgs args = args_of(WeightScale::kRow, 4096);
  args.num_experts = 128;
  args.top_k = 6;
  args.ffn = 1024;
  const auto pay = [&](int32_t tokens) {
    args.num_tokens = tokens;
    return stream_experts_halves_pay(args, 132);
  };
  EXPECT_TRUE(pay(1));   // 56 tiles
  EXPECT_TRUE(pay(2));   // 104
  EXPECT_TRUE(pay(3));   // 152 in two rounds, 304 halves in three
  EXPECT_FALSE(pay(4));  // 200 in two, 400 in four
  EXPECT_FALSE(pay(9));
  args.shared_gate_up.rows = 0;
  args.num_experts = 8;
  EXPECT_TRUE(pay(8));  // no more than eight experts: 64
}

}  // namespace
}  // namespace vayu::ops
