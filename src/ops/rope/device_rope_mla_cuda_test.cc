#include "ops/rope/device_rope_mla.h"

#include <numeric>

#include "ops/rope/device_rope_test_util.h"

namespace vayu::ops {
namespace {

struct Case {
  DeviceMlaRopeKvWriteArgs args;  // pointers are set by run
  std::vector<Bf16> q_kv;
  std::vector<float> inv_freq, norm;
  std::vector<int32_t> positions, slots;
  int64_t num_pages = 0;
  bool with_copy = false;

  int64_t copy_elements() const { return args.num_tokens * args.num_heads * args.kv.head_dim; }
};

Case make_case(TestRandom& random, int64_t num_tokens, int heads, int nope, int rope, int latent) {
  Case c;
  c.args.num_tokens = num_tokens;
  c.args.num_heads = heads;
  c.args.nope_dim = nope;
  c.args.norm_eps = 1e-5f;
  c.args.rotation = {nullptr, random.integer(0, 1) ? 1.0f : 1.2f, RopePairing::kInterleaved, rope};
  c.args.kv.num_kv_heads = 1;
  c.args.kv.latent_dim = latent;
  c.args.kv.head_dim = latent + rope;
  c.args.kv.page_size = static_cast<int32_t>(random.integer(1, 40));
  c.with_copy = random.integer(0, 1);
  c.q_kv = random_bf16(random, num_tokens * c.args.row_elements());
  c.inv_freq = rope_frequencies(rope, 1e4f);
  c.norm = random.normals(latent);
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
      : q_kv(c.q_kv),
        copy(c.copy_elements()),
        pages(c.num_pages * c.args.kv.page_bytes()),
        inv_freq(c.inv_freq),
        norm(c.norm),
        positions(c.positions),
        slots(c.slots),
        args(c.args) {
    args.q_kv = q_kv.get();
    args.kv.pages = pages.get();
    args.rotation.inv_freq = inv_freq.get();
    args.latent_norm = norm.get();
    args.positions = positions.get();
    args.slot_mapping = slots.get();
    args.q_latent = c.with_copy ? copy.get() : nullptr;
  }
  DeviceArray<Bf16> q_kv, copy;
  DeviceArray<uint8_t> pages;
  DeviceArray<float> inv_freq, norm;
  DeviceArray<int32_t> positions, slots;
  DeviceMlaRopeKvWriteArgs args;
};

void check(Case c) {
  for (RopePairing pairing : {RopePairing::kHalfSplit, RopePairing::kInterleaved}) {
    for (bool f8 : {false, true}) {
      c.args.rotation.pairing = pairing;
      c.args.kv.format = f8 ? DeviceKvFormat::kF8E4M3 : DeviceKvFormat::kBF16;
      const std::string name = std::to_string(c.args.num_tokens) + " tokens, " + std::to_string(c.args.num_heads) +
                               " heads, rope " + std::to_string(c.args.rope_dim()) + (f8 ? " f8" : " bf16") +
                               (pairing == RopePairing::kInterleaved ? " interleaved" : " split");
      DeviceRun device(c);
      device_mla_rope_kv_write_cuda(nullptr, device.args);
      ASSERT_TRUE(last_launch("device_mla_rope_kv_write").ok());

      std::vector<Bf16> q_kv = c.q_kv, copy(c.copy_elements(), Bf16{0xFFFF});
      std::vector<uint8_t> pages(c.num_pages * c.args.kv.page_bytes(), 0xFF);
      DeviceMlaRopeKvWriteArgs args = c.args;
      args.q_kv = q_kv.data();
      args.kv.pages = pages.data();
      args.rotation.inv_freq = c.inv_freq.data();
      args.latent_norm = c.norm.data();
      args.positions = c.positions.data();
      args.slot_mapping = c.slots.data();
      args.q_latent = c.with_copy ? copy.data() : nullptr;
      device_mla_rope_kv_write_ref(args);
      expect_rotated(as_floats(device.q_kv.host()), as_floats(q_kv), false, name + " rows");
      expect_rotated(as_floats(device.copy.host()), as_floats(copy), false, name + " copy");
      expect_rotated(page_values(device.pages.host(), f8), page_values(pages, f8), f8, name + " pages");
    }
  }
}

TEST(DeviceMlaRopeCuda, MatchesReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (auto [nope, rope, latent] :
       {std::tuple{128, 64, 512}, {16, 32, 40}, {0, 16, 8}, {64, 128, 1024}, {8, 256, 264}}) {
    for (int i = 0; i < 3; ++i) {
      Case c = make_case(random, random.integer(1, 30), static_cast<int>(random.integer(1, 130)), nope, rope, latent);
      for (int32_t& slot : c.slots) {
        if (random.integer(0, 5) == 0) slot = -1;
      }
      check(c);
    }
  }
  check(make_case(random, 4096, 2, 8, 16, 8));
}

TEST(DeviceMlaRopeCuda, BadLatentsAreNanAndAlone) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  Case c = make_case(random, 4, 5, 128, 64, 512);
  const int64_t latent = 5 * 192;
  c.q_kv[0 * c.args.row_elements() + latent + 500] = Bf16{0x7fc0};  // latent of token 0
  c.q_kv[2 * c.args.row_elements() + latent + 3] = Bf16{0x7f80};    // of token 2: infinity
  for (int i = 0; i < 64; ++i) c.q_kv[3 * c.args.row_elements() + latent + 512 + i] = Bf16{0x7fc0};  // shared key
  check(c);
}

TEST(MlaSplitQueriesCuda, MatchesReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (auto [nope, rope, latent] : {std::tuple{128, 64, 512}, {16, 32, 40}, {0, 8, 8}}) {
    const auto heads = static_cast<int32_t>(random.integer(1, 70));
    const int64_t tokens = random.integer(1, 30), stride = heads * (nope + rope) + 8 * random.integer(0, 9);
    const std::vector<Bf16> q = random_bf16(random, tokens * stride);
    std::vector<Bf16> want(tokens * heads * (latent + rope), Bf16{0xFFFF});
    mla_split_queries_ref({q.data(), stride, want.data(), nope, rope, latent, heads, tokens});
    const DeviceArray<Bf16> device(q);
    DeviceArray<Bf16> got(static_cast<int64_t>(want.size()));
    mla_split_queries_cuda(nullptr, {device.get(), stride, got.get(), nope, rope, latent, heads, tokens});
    ASSERT_TRUE(last_launch("mla_split_queries").ok());
    const std::vector<Bf16> values = got.host();
    for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(values[i].bits, want[i].bits) << i;
  }
}

TEST(DeviceMlaRopeCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (!speed_wanted()) GTEST_SKIP();
  TestRandom random;
  for (int64_t tokens : {1, 8, 64, 3584}) {
    for (bool with_copy : {false, true}) {
      Case c = make_case(random, tokens, 64, 128, 64, 512);
      c.with_copy = with_copy;
      DeviceRun device(c);
      print_speed("mla_rope_kv_write", std::to_string(tokens) + "x64" + (with_copy ? "+q_latent" : ""),
                  double(tokens) * (64 * 64 * (4 + 2 * with_copy) + 576 * 4),
                  [&](CudaStream stream) { device_mla_rope_kv_write_cuda(stream, device.args); });
    }
    const int64_t stride = 64 * 192 + 576;
    const DeviceArray<Bf16> q(random_bf16(random, tokens * stride));
    DeviceArray<Bf16> q_latent(tokens * 64 * 576);
    print_speed("mla_split_queries", std::to_string(tokens) + "x64", double(tokens) * 64 * 64 * 4,
                [&](CudaStream stream) {
                  mla_split_queries_cuda(stream, {q.get(), stride, q_latent.get(), 128, 64, 512, 64, tokens});
                });
  }
}

}  // namespace
}  // namespace vayu::ops
