// The references of the device rotations against those of the CPU ops, on the same numbers.
#include "ops/rope/device_rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/attention/kv_element.h"
#include "ops/cpu/op_test_util.h"
#include "ops/cuda/host_rows.h"
#include "ops/rope/device_rope_mla.h"
#include "ops/rope/mla_rope_kv_write.h"

namespace vayu::ops {
namespace {

struct Rows {
  std::vector<Bf16> bf16;
  std::vector<float> floats;
};
Rows random_rows(TestRandom& random, int64_t count) {
  Rows rows;
  for (int64_t i = 0; i < count; ++i) {
    rows.bf16.push_back(host_bf16(random.normal()));
    rows.floats.push_back(host_float(rows.bf16.back()));
  }
  return rows;
}
std::vector<float> frequencies(int rotary_dim) {
  std::vector<float> out;
  for (int i = 0; i < rotary_dim / 2; ++i) out.push_back(std::pow(1e4f, -2.0f * static_cast<float>(i) / rotary_dim));
  return out;
}

TEST(DeviceRopeReference, IsRopeKvWrite) {
  TestRandom random;
  for (RopePairing pairing : {RopePairing::kHalfSplit, RopePairing::kInterleaved}) {
    const int head_dim = 48, rotary_dim = 32, heads = 3, kv_heads = 2, page_size = 4, tokens = 6, pages = 3;
    Rows qkv = random_rows(random, tokens * (heads + 2 * kv_heads) * head_dim);
    const std::vector<float> inv_freq = frequencies(rotary_dim), q_norm = random.normals(head_dim),
                             k_norm = random.normals(head_dim);
    std::vector<int32_t> positions, slots(pages * page_size);
    for (int t = 0; t < tokens; ++t) positions.push_back(static_cast<int32_t>(random.integer(0, 131071)));
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), random.engine());

    std::vector<float> cpu_pages(pages * kv_heads * 2 * page_size * head_dim, kNaN);
    RopeKvWriteArgs cpu{
        qkv.floats.data(), positions.data(), slots.data(), inv_freq.data(), 1.2f, q_norm.data(), k_norm.data(), 1e-5f,
        pairing,           rotary_dim,       heads,        tokens,          {}};
    cpu.kv = {cpu_pages.data(), KvFormat::kF32, kv_heads, head_dim, page_size, 0};
    rope_kv_write({Backend::kReference, nullptr}, cpu);

    std::vector<Bf16> device_pages(cpu_pages.size(), Bf16{0xFFFF});
    DeviceRopeKvWriteArgs args;
    args.qkv = qkv.bf16.data();
    args.positions = positions.data();
    args.slot_mapping = slots.data();
    args.rotation = {inv_freq.data(), 1.2f, pairing, rotary_dim};
    args.q_norm = q_norm.data();
    args.k_norm = k_norm.data();
    args.norm_eps = 1e-5f;
    args.num_q_heads = heads;
    args.num_tokens = tokens;
    args.kv = {device_pages.data(), DeviceKvFormat::kBF16, kv_heads, head_dim, page_size, 0};
    device_rope_kv_write_ref(args);

    const int row = (heads + 2 * kv_heads) * head_dim;
    for (int i = 0; i < tokens * row; ++i) {
      if (i % row >= heads * head_dim) continue;
      ASSERT_EQ(host_float(qkv.bf16[i]), host_float(host_bf16(qkv.floats[i]))) << i;
    }
    for (int page = 0; page < pages; ++page) {
      for (int h = 0; h < kv_heads; ++h) {
        for (int offset = 0; offset < page_size; ++offset) {
          for (int d = 0; d < head_dim; ++d) {
            const int64_t at = ((int64_t{page} * kv_heads + h) * 2 * page_size + offset) * head_dim + d;
            const float k = host_float(device_pages[at]), v = host_float(device_pages[at + page_size * head_dim]);
            const float want_k = cpu_pages[k_index(cpu.kv, page, h, offset, d)];
            ASSERT_EQ(std::isnan(k), std::isnan(want_k));
            if (std::isnan(k)) continue;
            ASSERT_EQ(k, host_float(host_bf16(want_k)));
            ASSERT_EQ(v, cpu_pages[v_index(cpu.kv, page, h, offset, d)]);
          }
        }
      }
    }
  }
}

TEST(DeviceMlaRopeReference, IsMlaRopeKvWrite) {
  TestRandom random;
  const int nope = 16, rope = 32, latent = 40, heads = 3, page_size = 4, tokens = 5, pages = 2;
  const int row = heads * (nope + rope) + latent + rope;
  Rows q_kv = random_rows(random, tokens * row);
  const std::vector<float> inv_freq = frequencies(rope), norm = random.normals(latent);
  const std::vector<int32_t> positions = {0, 1, 77, 5000, 131071}, slots = {7, 0, -1, 3, 4};
  std::vector<int32_t> cpu_slots = slots;
  cpu_slots[2] = 1;  // the CPU op knows no absent slots; slot 1 is skipped below

  std::vector<float> cpu_pages(pages * page_size * (latent + rope), kNaN);
  MlaRopeKvWriteArgs cpu;
  cpu.q_kv = q_kv.floats.data();
  cpu.positions = positions.data();
  cpu.slot_mapping = cpu_slots.data();
  cpu.inv_freq = inv_freq.data();
  cpu.latent_norm = norm.data();
  cpu.nope_dim = nope;
  cpu.rope_dim = rope;
  cpu.num_q_heads = heads;
  cpu.num_tokens = tokens;
  cpu.kv = {cpu_pages.data(), KvFormat::kF32, 1, latent + rope, page_size, latent};
  mla_rope_kv_write({Backend::kReference, nullptr}, cpu);

  std::vector<Bf16> device_pages(cpu_pages.size(), Bf16{0xFFFF});
  std::vector<Bf16> q_latent(tokens * heads * (latent + rope), Bf16{0xFFFF}), split = q_latent;
  DeviceMlaRopeKvWriteArgs args;
  args.q_kv = q_kv.bf16.data();
  args.positions = positions.data();
  args.slot_mapping = slots.data();
  args.rotation = {inv_freq.data(), 1.0f, RopePairing::kInterleaved, rope};
  args.latent_norm = norm.data();
  args.nope_dim = nope;
  args.num_heads = heads;
  args.num_tokens = tokens;
  args.kv = {device_pages.data(), DeviceKvFormat::kBF16, 1, latent + rope, page_size, latent};
  args.q_latent = q_latent.data();
  device_mla_rope_kv_write_ref(args);
  mla_split_queries_ref({q_kv.bf16.data(), row, split.data(), nope, rope, latent, heads, tokens});

  for (int i = 0; i < tokens * row; ++i) {
    if (i % row >= heads * (nope + rope)) continue;
    ASSERT_EQ(host_float(q_kv.bf16[i]), host_float(host_bf16(q_kv.floats[i]))) << i;
  }
  for (int slot = 0; slot < pages * page_size; ++slot) {
    for (int d = 0; d < latent + rope; ++d) {
      const float got = host_float(device_pages[slot * (latent + rope) + d]);
      const float want = cpu_pages[k_index(cpu.kv, slot / page_size, 0, slot % page_size, d)];
      ASSERT_EQ(std::isnan(got), std::isnan(want) || slot == 1) << slot;
      if (std::isnan(got)) continue;
      ASSERT_EQ(got, host_float(host_bf16(want))) << slot << ' ' << d;
    }
  }
  for (size_t i = 0; i < split.size(); ++i) {
    ASSERT_EQ(split[i].bits, q_latent[i].bits) << i;
    const int column = static_cast<int>(i) % (latent + rope), pair = static_cast<int>(i) / (latent + rope);
    if (column < latent) continue;
    const int at = pair / heads * row + pair % heads * (nope + rope) + nope + column - latent;
    ASSERT_EQ(split[i].bits, q_kv.bf16[at].bits) << i;
  }
}

}  // namespace
}  // namespace vayu::ops
