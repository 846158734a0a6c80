#include "ops/rope/rope_kv_write.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/attention/kv_element.h"
#include "ops/cpu/op_test_util.h"

namespace vayu::ops {
namespace {

struct FormatTolerance {
  KvFormat format;
  float relative;  // one rounding step: the float results of two backends may fall on two sides of a tie
};
constexpr FormatTolerance kFormats[] = {
    {KvFormat::kF32, 2e-6f}, {KvFormat::kF16, 0x1p-10f}, {KvFormat::kBF16, 0x1p-7f}};

// Normed and scaled heads reach about 20, and a rotation can cancel: a few roundings of that.
constexpr float kAbsolute = 2e-5f;

struct Case {
  RopeKvWriteArgs args;
  std::vector<float> qkv, inv_freq, q_norm, k_norm;
  std::vector<int32_t> positions, slots;
  int64_t num_pages = 0;

  int64_t stride() const { return (args.num_q_heads + 2 * args.kv.num_kv_heads) * int64_t{args.kv.head_dim}; }
};

Case random_case(TestRandom& random, KvFormat format, int head_dim, int rotary_dim, int page_size) {
  Case c;
  c.args.num_q_heads = static_cast<int32_t>(random.integer(1, 9));
  c.args.num_tokens = random.integer(1, 70);
  c.args.rotary_dim = rotary_dim;
  c.args.pairing = random.integer(0, 1) ? RopePairing::kHalfSplit : RopePairing::kInterleaved;
  c.args.attention_factor = random.integer(0, 1) ? 1.0f : 1.2f;
  c.args.norm_eps = 1e-5f;
  c.args.kv = {nullptr, format, static_cast<int32_t>(random.integer(1, 3)), head_dim, page_size};
  c.qkv = random.normals(c.args.num_tokens * c.stride());
  for (int i = 0; i < rotary_dim / 2; ++i) c.inv_freq.push_back(std::pow(1e5f, -2.0f * i / rotary_dim));
  if (random.integer(0, 1)) c.q_norm = random.normals(head_dim);
  if (random.integer(0, 1)) c.k_norm = random.normals(head_dim);
  for (int64_t t = 0; t < c.args.num_tokens; ++t)
    c.positions.push_back(static_cast<int32_t>(random.integer(0, 131071)));
  c.num_pages = c.args.num_tokens / page_size + 3;
  c.slots.resize(c.num_pages * page_size);
  std::iota(c.slots.begin(), c.slots.end(), 0);
  std::shuffle(c.slots.begin(), c.slots.end(), random.engine());
  return c;
}

struct Output {
  std::vector<float> qkv;
  std::vector<float> pages;    // as floats
  std::vector<uint8_t> bytes;  // as written
};

Output run(const OpContext& ctx, const Case& c) {
  Output out{c.qkv, {}, {}};
  RopeKvWriteArgs args = c.args;
  out.bytes.assign(c.num_pages * args.kv.page_bytes(), 0xFF);  // NaN in every format
  args.kv.pages = out.bytes.data();
  args.qkv = out.qkv.data();
  args.positions = c.positions.data();
  args.slot_mapping = c.slots.data();
  args.inv_freq = c.inv_freq.data();
  args.q_norm = c.q_norm.empty() ? nullptr : c.q_norm.data();
  args.k_norm = c.k_norm.empty() ? nullptr : c.k_norm.data();
  rope_kv_write(ctx, args);
  for (int64_t i = 0; i < c.num_pages * args.kv.page_elements(); ++i) out.pages.push_back(load_kv(args.kv, i));
  return out;
}

TEST(RopeKvWrite, ReferenceOnAKnownCase) {
  Case c;
  c.args.num_q_heads = 1;
  c.args.num_tokens = 1;
  c.args.rotary_dim = 2;
  c.args.kv = {nullptr, KvFormat::kF32, 1, 4, 2};
  c.qkv = {1, 0, 5, 6, 0, 1, 7, 8, 9, 10, 11, 12};  // Q, K, V
  c.inv_freq = {0.5f};
  c.positions = {3};
  c.slots = {3};  // page 1, offset 1
  c.num_pages = 2;
  const Output out = run({Backend::kReference, nullptr}, c);
  const float cos = std::cos(1.5f);
  const float sin = std::sin(1.5f);
  const float q[] = {cos, sin, 5, 6};
  const float k[] = {-sin, cos, 7, 8};
  for (int d = 0; d < 4; ++d) {
    EXPECT_NEAR(out.qkv[d], q[d], 1e-6);
    EXPECT_NEAR(out.pages[16 + d * 2 + 1], k[d], 1e-6);
    EXPECT_EQ(out.pages[16 + 8 + 4 + d], 9 + d);
  }
  EXPECT_EQ(std::count_if(out.pages.begin(), out.pages.end(), [](float v) { return !std::isnan(v); }), 8);
}

// Norm, then rotation. With weights that differ within a pair the other order gives other numbers.
TEST(RopeKvWrite, HeadsAreNormedBeforeTheyAreRotated) {
  Case c;
  c.args.num_q_heads = 1;
  c.args.num_tokens = 1;
  c.args.rotary_dim = 2;
  c.args.norm_eps = 0;
  c.args.kv.format = KvFormat::kF32;
  c.args.kv.num_kv_heads = 1;
  c.args.kv.head_dim = 2;
  c.args.kv.page_size = 1;
  c.qkv = {3, 4, 6, 8, 10, 11};  // Q, K, V; root mean squares of Q and K: 5 / sqrt(2), 10 / sqrt(2)
  c.q_norm = {2, -1};
  c.k_norm = {1, 3};
  c.inv_freq = {0.5f};
  c.positions = {3};
  c.slots = {0};
  c.num_pages = 1;
  const float cos = std::cos(1.5f), sin = std::sin(1.5f), root = std::sqrt(2.0f);
  const float q[] = {root * 1.2f, root * -0.8f};
  const float k[] = {root * 0.6f, root * 2.4f};
  const auto check = [&](const Output& out, const std::string& name) {
    EXPECT_NEAR(out.qkv[0], q[0] * cos - q[1] * sin, 1e-6) << name;
    EXPECT_NEAR(out.qkv[1], q[1] * cos + q[0] * sin, 1e-6) << name;
    EXPECT_NEAR(out.pages[0], k[0] * cos - k[1] * sin, 1e-6) << name;
    EXPECT_NEAR(out.pages[1], k[1] * cos + k[0] * sin, 1e-6) << name;
    EXPECT_EQ(out.pages[2], 10) << name;
    EXPECT_EQ(out.pages[3], 11) << name;
  };
  check(run({Backend::kReference, nullptr}, c), "reference");
  for_each_cpu_variant([&](const OpContext& ctx, const std::string& name) { check(run(ctx, c), name); });
}

TEST(RopeKvWrite, CpuMatchesReference) {
  TestRandom random;
  for (auto [format, relative] : kFormats) {
    for (auto [head_dim, rotary_dim] :
         {std::pair{64, 64}, {32, 32}, {80, 32}, {96, 96}, {128, 128}, {256, 64}, {20, 12}, {512, 512}, {64, 0}}) {
      for (int page_size : {1, 16, 24, 64}) {
        const Case c = random_case(random, format, head_dim, rotary_dim, page_size);
        const Output expected = run({Backend::kReference, nullptr}, c);
        for_each_cpu_variant([&](const OpContext& ctx, const std::string& name) {
          const Output out = run(ctx, c);
          for (int64_t i = 0; i < c.args.num_tokens * c.stride(); ++i) {
            ASSERT_NEAR(out.qkv[i], expected.qkv[i], kAbsolute) << name << ' ' << head_dim << ' ' << i;
          }
          for (size_t i = 0; i < out.pages.size(); ++i) {
            ASSERT_EQ(std::isnan(out.pages[i]), std::isnan(expected.pages[i])) << name << ' ' << i;
            if (std::isnan(out.pages[i])) continue;
            ASSERT_NEAR(out.pages[i], expected.pages[i], relative * std::abs(expected.pages[i]) + kAbsolute)
                << name << ' ' << i;
          }
        });
      }
    }
  }
}

TEST(RopeKvWrite, AloneGivesTheSameBits) {
  TestRandom random;
  for (auto [format, relative] : kFormats) {
    Case c = random_case(random, format, 64, 64, 16);
    c.args.num_tokens = 50;
    c.qkv = random.normals(50 * c.stride());
    c.positions.resize(50, 77);
    c.num_pages = 6;
    c.slots.resize(c.num_pages * 16);
    std::iota(c.slots.begin(), c.slots.end(), 0);
    ThreadPool pool(3);
    const OpContext ctx{Backend::kCpu, &pool};
    const Output batch = run(ctx, c);
    for (int64_t t = 0; t < 50; ++t) {
      Case one = c;
      one.args.num_tokens = 1;
      one.qkv.assign(c.qkv.begin() + t * c.stride(), c.qkv.begin() + (t + 1) * c.stride());
      one.positions = {c.positions[t]};
      one.slots = {c.slots[t]};
      const Output out = run(ctx, one);
      ASSERT_TRUE(std::equal(out.qkv.begin(), out.qkv.end(), batch.qkv.begin() + t * c.stride())) << t;
      for (size_t i = 0; i < out.pages.size(); ++i) {
        ASSERT_TRUE(std::isnan(out.pages[i]) || out.pages[i] == batch.pages[i]) << t;
      }
    }
  }
}

}  // namespace
}  // namespace vayu::ops
