#include "ops/rope/device_rope.h"

#include <numeric>

#include "ops/rope/device_rope_test_util.h"

namespace vayu::ops {
namespace {

struct Case {
  DeviceRopeKvWriteArgs args;  // host pointers are set by run
  std::vector<Bf16> qkv;
  std::vector<float> inv_freq, q_norm, k_norm;
  std::vector<int32_t> positions, slots;
  int64_t num_pages = 0;

  int64_t stride() const { return (args.num_q_heads + 2 * args.kv.num_kv_heads) * int64_t{args.kv.head_dim}; }
  std::string name() const {
    return std::to_string(args.num_tokens) + " tokens, " + std::to_string(args.num_q_heads) + "+" +
           std::to_string(args.kv.num_kv_heads) + " heads of " + std::to_string(args.kv.head_dim) + ", rotary " +
           std::to_string(args.rotation.rotary_dim) +
           (args.rotation.pairing == RopePairing::kInterleaved ? " interleaved" : " split") +
           (args.kv.format == DeviceKvFormat::kF8E4M3 ? " f8" : " bf16");
  }
};

Case make_case(TestRandom& random, int64_t num_tokens, int q_heads, int kv_heads, int head_dim, int rotary_dim) {
  Case c;
  c.args.num_tokens = num_tokens;
  c.args.num_q_heads = q_heads;
  c.args.rotation = {nullptr, random.integer(0, 1) ? 1.0f : 1.2f, RopePairing::kHalfSplit, rotary_dim};
  c.args.norm_eps = 1e-5f;
  c.args.kv.num_kv_heads = kv_heads;
  c.args.kv.head_dim = head_dim;
  c.args.kv.page_size = static_cast<int32_t>(random.integer(0, 1) ? 16 : random.integer(1, 40));
  c.qkv = random_bf16(random, num_tokens * c.stride());
  c.inv_freq = rope_frequencies(rotary_dim, 1e5f);
  c.inv_freq.push_back(0);  // not read; no array is empty
  c.q_norm = random.normals(head_dim);
  c.k_norm = random.normals(head_dim);
  for (int64_t t = 0; t < num_tokens; ++t) c.positions.push_back(static_cast<int32_t>(random.integer(0, 131071)));
  c.num_pages = num_tokens / c.args.kv.page_size + 2;
  c.slots.resize(c.num_pages * c.args.kv.page_size);
  std::iota(c.slots.begin(), c.slots.end(), 0);
  std::shuffle(c.slots.begin(), c.slots.end(), random.engine());
  c.slots.resize(num_tokens);
  return c;
}

struct DeviceRun {
  explicit DeviceRun(const Case& c)
      : qkv(c.qkv),
        pages(c.num_pages * c.args.kv.page_bytes()),
        inv_freq(c.inv_freq),
        q_norm(c.q_norm),
        k_norm(c.k_norm),
        positions(c.positions),
        slots(c.slots),
        args(c.args) {
    args.qkv = qkv.get();
    args.kv.pages = pages.get();
    args.rotation.inv_freq = inv_freq.get();
    args.q_norm = c.args.q_norm ? q_norm.get() : nullptr;
    args.k_norm = c.args.k_norm ? k_norm.get() : nullptr;
    args.positions = positions.get();
    args.slot_mapping = slots.get();
  }
  DeviceArray<Bf16> qkv;
  DeviceArray<uint8_t> pages;
  DeviceArray<float> inv_freq, q_norm, k_norm;
  DeviceArray<int32_t> positions, slots;
  DeviceRopeKvWriteArgs args;
};

void check(Case c) {
  for (RopePairing pairing : {RopePairing::kHalfSplit, RopePairing::kInterleaved}) {
    for (DeviceKvFormat format : {DeviceKvFormat::kBF16, DeviceKvFormat::kF8E4M3}) {
      c.args.rotation.pairing = pairing;
      c.args.kv.format = format;
      DeviceRun device(c);
      device_rope_kv_write_cuda(nullptr, device.args);
      ASSERT_TRUE(last_launch("device_rope_kv_write").ok());

      std::vector<Bf16> qkv = c.qkv;
      std::vector<uint8_t> pages(c.num_pages * c.args.kv.page_bytes(), 0xFF);
      DeviceRopeKvWriteArgs args = c.args;
      args.qkv = qkv.data();
      args.kv.pages = pages.data();
      args.rotation.inv_freq = c.inv_freq.data();
      args.positions = c.positions.data();
      args.slot_mapping = c.slots.data();
      device_rope_kv_write_ref(args);
      const bool f8 = format == DeviceKvFormat::kF8E4M3;
      expect_rotated(as_floats(device.qkv.host()), as_floats(qkv), false, c.name() + " rows");
      expect_rotated(page_values(device.pages.host(), f8), page_values(pages, f8), f8, c.name() + " pages");
    }
  }
}

TEST(DeviceRopeCuda, MatchesReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (auto [head_dim, rotary_dim] : {std::pair{64, 64},
                                      {128, 128},
                                      {128, 64},
                                      {16, 16},
                                      {32, 32},
                                      {80, 32},
                                      {80, 64},
                                      {96, 96},
                                      {256, 256},
                                      {256, 64},
                                      {64, 0},
                                      {112, 112}}) {
    for (int i = 0; i < 3; ++i) {
      Case c = make_case(random, random.integer(1, 40), static_cast<int>(random.integer(1, 70)),
                         static_cast<int>(random.integer(1, 9)), head_dim, rotary_dim);
      if (i != 1) c.args.q_norm = c.q_norm.data();
      if (i != 2) c.args.k_norm = c.k_norm.data();
      for (int32_t& slot : c.slots) {
        if (random.integer(0, 5) == 0) slot = -1;
      }
      check(c);
    }
  }
}

TEST(DeviceRopeCuda, OurModelAndManyTokens) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (auto [tokens, q_heads, kv_heads] :
       {std::tuple<int64_t, int, int>{1, 64, 4}, {64, 64, 4}, {unless_short(8192, 1000), 2, 1}}) {
    Case c = make_case(random, tokens, q_heads, kv_heads, 64, 64);
    c.args.q_norm = c.q_norm.data();
    c.args.k_norm = c.k_norm.data();
    check(c);
  }
}

// A head with NaN or infinity becomes NaN when it is normed; other heads and tokens keep their numbers.
TEST(DeviceRopeCuda, BadHeadsAreNanAndAlone) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  Case c = make_case(random, 4, 8, 2, 64, 64);
  c.args.q_norm = c.q_norm.data();
  c.args.k_norm = c.k_norm.data();
  c.qkv[0 * c.stride() + 3 * 64 + 5] = Bf16{0x7fc0};   // Q of token 0
  c.qkv[1 * c.stride() + 8 * 64 + 60] = Bf16{0xff80};  // K of token 1
  c.qkv[2 * c.stride() + 11 * 64 + 1] = Bf16{0x7f80};  // V of token 2: that element
  c.qkv[3 * c.stride() + 10 * 64 + 9] = Bf16{0x7fc0};  // V of token 3: that element
  check(c);
}

TEST(DeviceRopeCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (!speed_wanted()) GTEST_SKIP();
  TestRandom random;
  for (int64_t tokens : {1, 8, 32, 64, 3584}) {
    for (DeviceKvFormat format : {DeviceKvFormat::kBF16, DeviceKvFormat::kF8E4M3}) {
      Case c = make_case(random, tokens, 64, 4, 64, 64);
      c.args.q_norm = c.q_norm.data();
      c.args.k_norm = c.k_norm.data();
      c.args.kv.format = format;
      DeviceRun device(c);
      const bool f8 = format == DeviceKvFormat::kF8E4M3;
      print_speed("rope_kv_write", std::to_string(tokens) + "x72x64" + (f8 ? " f8" : " bf16"),
                  double(tokens) * 64 * (64 * 4 + 8 * (f8 ? 3 : 4)),
                  [&](CudaStream stream) { device_rope_kv_write_cuda(stream, device.args); });
    }
  }
}

}  // namespace
}  // namespace vayu::ops
