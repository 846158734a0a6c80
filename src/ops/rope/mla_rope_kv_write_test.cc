#include "ops/rope/mla_rope_kv_write.h"

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
constexpr float kAbsolute = 2e-5f;  // as in rope_kv_write_test.cc

struct Case {
  MlaRopeKvWriteArgs args;
  std::vector<float> q_kv, inv_freq, latent_norm;
  std::vector<int32_t> positions, slots;
  int64_t num_pages = 0;

  int64_t stride() const {
    return int64_t{args.num_q_heads} * (args.nope_dim + args.rope_dim) + args.kv.latent_dim + args.rope_dim;
  }
};

struct Dims {
  int heads, nope, rope, latent;
};

Case random_case(TestRandom& random, KvFormat format, const Dims& dims, int page_size) {
  Case c;
  c.args.num_q_heads = dims.heads;
  c.args.nope_dim = dims.nope;
  c.args.rope_dim = dims.rope;
  c.args.num_tokens = random.integer(1, 40);
  c.args.pairing = random.integer(0, 2) ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
  c.args.attention_factor = random.integer(0, 1) ? 1.0f : 1.2f;
  c.args.kv.format = format;
  c.args.kv.num_kv_heads = 1;
  c.args.kv.head_dim = dims.latent + dims.rope;
  c.args.kv.latent_dim = dims.latent;
  c.args.kv.page_size = page_size;
  c.q_kv = random.normals(c.args.num_tokens * c.stride());
  c.latent_norm = random.normals(dims.latent);
  for (int i = 0; i < dims.rope / 2; ++i) c.inv_freq.push_back(std::pow(1e4f, -2.0f * i / dims.rope));
  for (int64_t t = 0; t < c.args.num_tokens; ++t)
    c.positions.push_back(static_cast<int32_t>(random.integer(0, 131071)));
  c.num_pages = c.args.num_tokens / page_size + 3;
  c.slots.resize(c.num_pages * page_size);
  std::iota(c.slots.begin(), c.slots.end(), 0);
  std::shuffle(c.slots.begin(), c.slots.end(), random.engine());
  return c;
}

struct Output {
  std::vector<float> q_kv;
  std::vector<float> pages;    // as floats
  std::vector<uint8_t> bytes;  // as written
};

Output run(const OpContext& ctx, const Case& c) {
  Output out{c.q_kv, {}, {}};
  MlaRopeKvWriteArgs args = c.args;
  out.bytes.assign(c.num_pages * args.kv.page_bytes(), 0xFF);  // NaN in every format
  args.kv.pages = out.bytes.data();
  args.q_kv = out.q_kv.data();
  args.positions = c.positions.data();
  args.slot_mapping = c.slots.data();
  args.inv_freq = c.inv_freq.data();
  args.latent_norm = c.latent_norm.data();
  mla_rope_kv_write(ctx, args);
  for (int64_t i = 0; i < c.num_pages * args.kv.page_elements(); ++i) out.pages.push_back(load_kv(args.kv, i));
  return out;
}

// One head of 1 + 4 over a latent of 2: pairs are neighbours, the latent is normed and the shared key is not.
TEST(MlaRopeKvWrite, ReferenceOnAKnownCase) {
  Case c;
  c.args.num_q_heads = 1;
  c.args.nope_dim = 1;
  c.args.rope_dim = 4;
  c.args.num_tokens = 1;
  c.args.norm_eps = 0;
  c.args.kv.format = KvFormat::kF32;
  c.args.kv.num_kv_heads = 1;
  c.args.kv.head_dim = 6;
  c.args.kv.latent_dim = 2;
  c.args.kv.page_size = 2;
  c.q_kv = {9, 1, 0, 0, 1, 3, 4, 0, 2, 5, 0};  // nope, rope; latent, shared key
  c.latent_norm = {2, -1};
  c.inv_freq = {0.5f, 0.25f};
  c.positions = {3};
  c.slots = {3};  // page 1, offset 1
  c.num_pages = 2;
  const Output out = run({Backend::kReference, nullptr}, c);
  const float cos0 = std::cos(1.5f), sin0 = std::sin(1.5f), cos1 = std::cos(0.75f), sin1 = std::sin(0.75f);
  const float q[] = {9, cos0, sin0, -sin1, cos1};
  for (int d = 0; d < 5; ++d) EXPECT_NEAR(out.q_kv[d], q[d], 1e-6) << d;
  const float rms = std::sqrt(12.5f);
  const float key[] = {2 * 3 / rms, -4 / rms, -2 * sin0, 2 * cos0, 5 * cos1, 5 * sin1};
  for (int d = 0; d < 6; ++d) EXPECT_NEAR(out.pages[12 + d * 2 + 1], key[d], 1e-6) << d;
  EXPECT_EQ(std::count_if(out.pages.begin(), out.pages.end(), [](float v) { return !std::isnan(v); }), 6);
}

TEST(MlaRopeKvWrite, CpuMatchesReference) {
  TestRandom random;
  for (auto [format, relative] : kFormats) {
    for (const Dims& dims : {Dims{8, 64, 32, 128}, Dims{4, 128, 64, 512}, Dims{3, 10, 6, 20}, Dims{1, 5, 2, 33}}) {
      for (int page_size : {1, 16, 24}) {
        const Case c = random_case(random, format, dims, page_size);
        const Output expected = run({Backend::kReference, nullptr}, c);
        for_each_cpu_variant([&](const OpContext& ctx, const std::string& name) {
          const Output out = run(ctx, c);
          const int64_t q_width = int64_t{dims.heads} * (dims.nope + dims.rope);
          for (int64_t i = 0; i < c.args.num_tokens * c.stride(); ++i) {
            if (i % c.stride() >= q_width) continue;  // latent and shared key are promised in the page only
            ASSERT_NEAR(out.q_kv[i], expected.q_kv[i], kAbsolute) << name << ' ' << dims.latent << ' ' << i;
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

TEST(MlaRopeKvWrite, AloneGivesTheSameBits) {
  TestRandom random;
  for (auto [format, relative] : kFormats) {
    Case c = random_case(random, format, {8, 64, 32, 128}, 16);
    c.args.num_tokens = 40;
    c.q_kv = random.normals(40 * c.stride());
    c.positions.resize(40, 77);
    c.num_pages = 5;
    c.slots.resize(c.num_pages * 16);
    std::iota(c.slots.begin(), c.slots.end(), 0);
    ThreadPool pool(3);
    const OpContext ctx{Backend::kCpu, &pool};
    const Output batch = run(ctx, c);
    for (int64_t t = 0; t < 40; ++t) {
      Case one = c;
      one.args.num_tokens = 1;
      one.q_kv.assign(c.q_kv.begin() + t * c.stride(), c.q_kv.begin() + (t + 1) * c.stride());
      one.positions = {c.positions[t]};
      one.slots = {c.slots[t]};
      const Output out = run(ctx, one);
      ASSERT_TRUE(std::equal(out.q_kv.begin(), out.q_kv.end(), batch.q_kv.begin() + t * c.stride())) << t;
      for (size_t i = 0; i < out.pages.size(); ++i) {
        ASSERT_TRUE(std::isnan(out.pages[i]) || out.pages[i] == batch.pages[i]) << t;
      }
    }
  }
}

}  // namespace
}  // namespace vayu::ops
