// The reference of the device's decode attention against paged_attention on the CPU, whose pages lie differently.
#include "ops/attention/device_decode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ops/attention/paged_attention.h"
#include "ops/cpu/op_test_util.h"
#include "ops/cuda/host_rows.h"

namespace vayu::ops {
namespace {

TEST(DeviceDecode, ReferenceAgreesWithPagedAttention) {
  TestRandom random;
  const int32_t heads = 2, group = 3, dim = 64;
  const std::vector<int32_t> lens = {1, 17, 48, 90};
  const auto rows = static_cast<int32_t>(lens.size());
  std::vector<int32_t> indptr = {0}, qo = {0}, table;
  for (int32_t len : lens) {
    qo.push_back(qo.back() + 1);
    indptr.push_back(indptr.back() + (len + 15) / 16);
  }
  for (int32_t page = indptr.back(); page > 0; --page) table.push_back(page - 1);

  const int64_t page_elements = heads * 2 * 16 * dim;
  std::vector<Bf16> device_pages(page_elements * indptr.back()), cpu_pages(device_pages.size());
  for (int64_t i = 0; i < static_cast<int64_t>(device_pages.size()); ++i) {
    const Bf16 v = host_bf16(random.normal());
    device_pages[i] = v;
    const int64_t d = i % dim, slot = i / dim % 16, part = i / dim / 16 % 2, head = i / dim / 32;
    const int64_t to = part == 0 ? d * 16 + slot : 16 * dim + slot * dim + d;  // K is transposed there
    cpu_pages[head * 32 * dim + to] = v;
  }
  const int64_t cols = int64_t{heads} * group * dim;
  std::vector<Bf16> q(rows * cols);
  std::vector<float> q_float(q.size()), expected(q.size());
  for (size_t i = 0; i < q.size(); ++i) q[i] = host_bf16(random.normal()), q_float[i] = host_float(q[i]);

  ThreadPool pool(1);
  const OpContext ctx{Backend::kCpu, &pool};
  PagedAttentionArgs cpu;
  cpu.q = q_float.data();
  cpu.q_stride = cols;
  cpu.out = expected.data();
  cpu.qo_indptr = qo.data();
  cpu.kv_indptr = indptr.data();
  cpu.page_table = table.data();
  cpu.kv_lens = lens.data();
  cpu.num_rows = rows;
  cpu.num_q_heads = heads * group;
  cpu.scale = 0.125f;
  cpu.kv = {.pages = cpu_pages.data(), .format = KvFormat::kBF16, .num_kv_heads = heads, .head_dim = dim};
  TestScratch scratch(paged_attention_scratch_bytes(ctx, cpu.num_q_heads, cpu.kv, rows, 96));
  cpu.scratch = scratch.get();
  paged_attention(ctx, cpu);

  const std::vector<int32_t> decode_rows = {2, 0, -1, 3, 1};
  for (bool f8 : {false, true}) {
    std::vector<uint8_t> data(q.size() * 2);
    std::vector<float> scales(rows);
    DecodeAttentionArgs args;
    args.batch = {.qo_indptr = qo.data(),
                  .kv_indptr = indptr.data(),
                  .page_table = table.data(),
                  .kv_lens = lens.data(),
                  .num_tokens = rows,
                  .num_rows = rows};
    args.decode_rows = decode_rows.data();
    args.num_decode_rows = static_cast<int32_t>(decode_rows.size());
    args.q = q.data();
    args.q_stride = cols;
    args.num_q_heads = heads * group;
    args.scale = 0.125f;
    args.kv = {.pages = device_pages.data(), .num_kv_heads = heads, .head_dim = dim};
    args.out = {.data = data.data(), .scales = f8 ? scales.data() : nullptr, .cols = cols};
    decode_attention_ref(args);
    for (int32_t row = 0; row < rows; ++row) {
      const std::vector<float> actual = host_row(args.out, row);
      for (int64_t i = 0; i < cols; ++i) {
        // BF16 2^-9 of the value; E4M3 2^-4 and half a subnormal step of a row whose peak is below 5.
        const float want = expected[row * cols + i];
        EXPECT_NEAR(actual[i], want, (f8 ? 0.063f : 0.004f) * std::fabs(want) + (f8 ? 5e-5f : 1e-5f))
            << row << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace vayu::ops
