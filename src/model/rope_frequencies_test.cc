#include "model/rope_frequencies.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace vayu::model {
namespace {

RopeConfig plain(int32_t rotary_dim, double base) {
  RopeConfig rope;
  rope.rotary_dim = rotary_dim;
  rope.base = base;
  return rope;
}

// Relative, at float precision: what a position of 40,000 turns into about 2e-3 radians at most.
void expect_close(double actual, double expected) { EXPECT_NEAR(actual / expected, 1.0, 4e-7); }

TEST(RopeFrequencies, Plain) {
  const auto out = *rope_frequencies(plain(64, 100000.0), {});
  ASSERT_EQ(out.inv_freq.size(), 32u);
  EXPECT_EQ(out.inv_freq[0], 1.0f);
  expect_close(out.inv_freq[16], std::sqrt(1e-5));
  expect_close(out.inv_freq[31], std::pow(100000.0, -62.0 / 64));
  EXPECT_EQ(out.attention_factor, 1.0f);
}

TEST(RopeFrequencies, LinearDividesAll) {
  RopeConfig rope = plain(32, 10000.0);
  const auto base = *rope_frequencies(rope, {});
  rope.scaling = RopeScaling::kLinear;
  rope.factor = 4;
  const auto out = *rope_frequencies(rope, {});
  for (size_t i = 0; i < out.inv_freq.size(); ++i) EXPECT_FLOAT_EQ(out.inv_freq[i], base.inv_freq[i] / 4);
  EXPECT_EQ(scaled_context(rope, 2048), 8192);
}

TEST(RopeFrequencies, FactorTensorDivides) {
  RopeConfig rope = plain(8, 10000.0);
  const auto out = *rope_frequencies(rope, std::vector<float>{1, 1, 2, 8});
  expect_close(out.inv_freq[1], 0.1);
  expect_close(out.inv_freq[2], 0.005);
  expect_close(out.inv_freq[3], 0.001 / 8);
  rope.scaling = RopeScaling::kLinear;
  EXPECT_EQ(rope_frequencies(rope, std::vector<float>{1, 1, 2, 8}).error().kind, ErrorKind::kUnsupported);
}

// Llama 3.1: head of 128, base 500,000, factor 8, low 1, high 4, 8,192 tokens. Values from evaluating the published
// rule by hand: pairs faster than 4 turns in 8,192 tokens stay, slower than 1 turn are divided by 8, between is
// blended.
TEST(RopeFrequencies, Llama3) {
  RopeConfig rope = plain(128, 500000.0);
  rope.scaling = RopeScaling::kLlama3;
  rope.factor = 8;
  rope.low_freq_factor = 1;
  rope.high_freq_factor = 4;
  rope.original_context = 8192;
  const auto out = *rope_frequencies(rope, {});
  expect_close(out.inv_freq[28], std::pow(500000.0, -56.0 / 128));      // 4.19 turns
  expect_close(out.inv_freq[35], std::pow(500000.0, -70.0 / 128) / 8);  // 0.997 turns
  const double freq = std::pow(500000.0, -64.0 / 128);                  // 1.844 turns
  const double smooth = (8192 * freq / (2 * M_PI) - 1) / 3;
  expect_close(out.inv_freq[32], (1 - smooth) * freq / 8 + smooth * freq);
  EXPECT_EQ(out.attention_factor, 1.0f);
  EXPECT_EQ(scaled_context(rope, 131072), 131072);
}

// The reference values of a published YaRN table: 64 dimensions, base 10,000, factor 40, 4,096 tokens. Pairs up to 10
// unchanged, 11 to 22 blended, from 23 divided by 40.
TEST(RopeFrequencies, Yarn) {
  RopeConfig rope = plain(64, 10000.0);
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 40;
  rope.original_context = 4096;
  const auto out = *rope_frequencies(rope, {});
  EXPECT_NEAR(out.inv_freq[10], 5.623413e-2, 1e-8);
  EXPECT_NEAR(out.inv_freq[11], 3.900693e-2, 1e-8);
  EXPECT_NEAR(out.inv_freq[16], 5.5e-3, 1e-9);
  EXPECT_NEAR(out.inv_freq[22], 1.778279e-4, 1e-10);
  EXPECT_NEAR(out.inv_freq[23], 3.333804e-5, 1e-11);
  EXPECT_NEAR(out.inv_freq[31], 3.333804e-6, 1e-12);
  EXPECT_NEAR(out.attention_factor, 0.1 * std::log(40.0) + 1, 1e-6);
  EXPECT_EQ(scaled_context(rope, 4096), 163840);
  EXPECT_EQ(scaled_context(rope, 163840), 163840);  // the stated length may already be the extended one
}

// Where a range that is not rounded begins and ends: 10.4722 and 22.5134 of the table above.
TEST(RopeFrequencies, YarnWithoutRounding) {
  RopeConfig rope = plain(64, 10000.0);
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 40;
  rope.original_context = 4096;
  rope.truncate = false;
  const auto out = *rope_frequencies(rope, {});
  expect_close(out.inv_freq[10], std::pow(10.0, -1.25));
  expect_close(out.inv_freq[23], std::pow(10.0, -2.875) / 40);
  const double low = 32 * std::log(4096 / (64 * M_PI)) / std::log(10000.0);
  const double high = 32 * std::log(4096 / (2 * M_PI)) / std::log(10000.0);
  EXPECT_NEAR(low, 10.4722, 1e-4);
  EXPECT_NEAR(high, 22.5134, 1e-4);
  const double ramp = (16 - low) / (high - low);
  expect_close(out.inv_freq[16], 0.01 * (1 - ramp) + 0.01 / 40 * ramp);
}

// A short original context: the range starts below the first pair. 32 dimensions, 256 tokens: pairs 0 to 7.
TEST(RopeFrequencies, YarnRangeIsClamped) {
  RopeConfig rope = plain(32, 10000.0);
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 40;
  rope.original_context = 256;
  const auto out = *rope_frequencies(rope, {});
  EXPECT_EQ(out.inv_freq[0], 1.0f);
  const double freq = std::pow(10000.0, -6.0 / 32);
  expect_close(out.inv_freq[3], freq * (1 - 3.0 / 7) + freq / 40 * (3.0 / 7));
  expect_close(out.inv_freq[7], std::pow(10000.0, -14.0 / 32) / 40);
}

TEST(RopeFrequencies, YarnTemperature) {
  RopeConfig rope = plain(64, 10000.0);
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 40;
  rope.original_context = 4096;
  EXPECT_NEAR(yarn_mscale(40, 1), 1.3688879454, 1e-10);
  EXPECT_EQ(yarn_mscale(1, 1), 1);
  EXPECT_EQ(yarn_mscale(40, 0), 1);
  rope.mscale = 1;  // one of the two alone changes nothing
  EXPECT_NEAR(rope_frequencies(rope, {})->attention_factor, 1.3688879454, 1e-6);
  rope.mscale_all_dim = 1;
  EXPECT_EQ(rope_frequencies(rope, {})->attention_factor, 1.0f);
  rope.mscale = 2;
  EXPECT_NEAR(rope_frequencies(rope, {})->attention_factor, 1.7377758909 / 1.3688879454, 1e-6);
  rope.temperature = 0.75;  // stated outright
  EXPECT_EQ(rope_frequencies(rope, {})->attention_factor, 0.75f);
  rope.temperature = -1;
  EXPECT_EQ(rope_frequencies(rope, {}).error().kind, ErrorKind::kCorrupt);
}

TEST(RopeFrequencies, YarnFactors) {
  RopeConfig rope = plain(64, 10000.0);
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 40;
  rope.original_context = 4096;
  rope.ext_factor = 0;  // pure interpolation, no temperature
  rope.attn_factor = 0.5;
  const auto out = *rope_frequencies(rope, {});
  expect_close(out.inv_freq[0], 1.0 / 40);
  EXPECT_EQ(out.attention_factor, 0.5f);
}

TEST(RopeFrequencies, UnusableValuesAreErrors) {
  const auto expect_corrupt = [](const RopeConfig& rope, std::string_view word) {
    const auto out = rope_frequencies(rope, {});
    ASSERT_FALSE(out.ok()) << word;
    EXPECT_EQ(out.error().kind, ErrorKind::kCorrupt);
    EXPECT_NE(out.error().message.find(word), std::string::npos) << out.error().message;
  };
  RopeConfig rope = plain(8, 0.0);
  expect_corrupt(rope, "base");
  rope.base = std::numeric_limits<double>::infinity();
  expect_corrupt(rope, "base");
  rope = plain(8, 10000.0);
  rope.scaling = RopeScaling::kLinear;
  rope.factor = 0;
  expect_corrupt(rope, "factor");
  rope.factor = 2;
  rope.scaling = RopeScaling::kLlama3;
  expect_corrupt(rope, "original");
  rope.original_context = 100;
  rope.high_freq_factor = 1;
  expect_corrupt(rope, "high");
  rope.scaling = RopeScaling::kYarn;
  rope.beta_fast = 0.5;
  expect_corrupt(rope, "beta_fast");
  EXPECT_FALSE(rope_frequencies(plain(8, 10000.0), std::vector<float>{1, 1, 0, 1}).ok());
  EXPECT_FALSE(rope_frequencies(plain(8, 10000.0), std::vector<float>{1, 1, NAN, 1}).ok());
}

}  // namespace
}  // namespace vayu::model
