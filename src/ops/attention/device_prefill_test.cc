// The tiles of a plan, and the reference against the formula on contiguous doubles.
#include "ops/attention/device_prefill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "base/data_format.h"
#include "ops/cpu/op_test_util.h"
#include "ops/cuda/divide.h"

namespace vayu::ops {
namespace {

TEST(DevicePrefillPlan, CoversEverySelectedRowOnceHeaviestFirst) {
  TestRandom random;
  for (int round = 0; round < 50; ++round) {
    const int32_t dim = random.integer(0, 1) ? 64 : 128, group = static_cast<int32_t>(random.integer(1, 16));
    const auto rows = random.integer(0, 1) ? PrefillRows::kAll : PrefillRows::kMultiToken;
    const auto num_rows = static_cast<int32_t>(random.integer(1, 9));
    std::vector<int32_t> qo_indptr = {0}, kv_indptr = {0}, kv_lens;
    for (int32_t r = 0; r < num_rows; ++r) {
      const auto q_len = static_cast<int32_t>(random.integer(0, 3) ? random.integer(1, 400) : random.integer(0, 1));
      const int32_t kv_len = q_len == 0 ? 0 : q_len + static_cast<int32_t>(random.integer(0, 300));
      qo_indptr.push_back(qo_indptr.back() + q_len);
      kv_lens.push_back(kv_len);
      kv_indptr.push_back(kv_indptr.back() + (kv_len + 15) / 16);
    }
    const PrefillLists lists = {qo_indptr.data(), kv_indptr.data(), nullptr, kv_lens.data(), num_rows};
    const int64_t bound = max_device_prefill_tiles(qo_indptr.back(), num_rows, group, dim);
    std::vector<PrefillTile> tiles(bound + 1);
    PrefillPlan plan{.tiles = tiles.data(), .max_tiles = bound};
    plan_device_prefill(lists, rows, group, dim, plan);
    const int32_t count = plan.num_tiles;
    EXPECT_EQ(plan.num_passes, 0);
    std::map<int32_t, std::set<int32_t>> firsts;
    for (int32_t i = 0; i < count; ++i) {
      const PrefillTile& tile = tiles[i];
      const int32_t r = tile.row, q_len = qo_indptr[r + 1] - qo_indptr[r];
      EXPECT_EQ(tile.q_begin, qo_indptr[r]);
      EXPECT_EQ(tile.q_len, q_len);
      EXPECT_EQ(tile.kv_len, kv_lens[r]);
      EXPECT_EQ(tile.page_begin, kv_indptr[r]);
      EXPECT_TRUE(firsts[r].insert(tile.first).second);
      EXPECT_EQ(tile.first % device_prefill_tile_rows(dim), 0);
      EXPECT_LT(tile.first, q_len * group);
      const int32_t end = std::min(tile.first + device_prefill_tile_rows(dim), q_len * group);
      EXPECT_EQ(tile.num_keys, kv_lens[r] - q_len + (end - 1) / group + 1);
      if (i > 0) {
        EXPECT_LE(tile.num_keys, tiles[i - 1].num_keys);
      }
    }
    for (int32_t r = 0; r < num_rows; ++r) {
      const int32_t q_len = qo_indptr[r + 1] - qo_indptr[r], tile_rows = device_prefill_tile_rows(dim);
      const bool selected = q_len > 1 || (q_len == 1 && rows == PrefillRows::kAll);
      EXPECT_EQ(firsts[r].size(), selected ? (q_len * group + tile_rows - 1) / tile_rows : 0u) << "row " << r;
    }
  }
}

// FP8 pages: every pass fits the scratch, has the pages of its rows in their order, and tiles that name them.
TEST(DevicePrefillPlan, PassesFitTheScratch) {
  TestRandom random;
  for (int round = 0; round < 50; ++round) {
    const auto num_rows = static_cast<int32_t>(random.integer(1, 9));
    const auto rows = random.integer(0, 1) ? PrefillRows::kAll : PrefillRows::kMultiToken;
    std::vector<int32_t> qo_indptr = {0}, kv_indptr = {0}, kv_lens, page_table;
    int32_t longest = 1;
    for (int32_t r = 0; r < num_rows; ++r) {
      const auto q_len = static_cast<int32_t>(random.integer(0, 3) ? random.integer(1, 100) : 1);
      kv_lens.push_back(q_len + static_cast<int32_t>(random.integer(0, 300)));
      qo_indptr.push_back(qo_indptr.back() + q_len);
      kv_indptr.push_back(kv_indptr.back() + (kv_lens.back() + 15) / 16);
      longest = std::max(longest, (kv_lens.back() + 15) / 16);
    }
    for (int32_t i = 0; i < kv_indptr.back(); ++i) page_table.push_back(static_cast<int32_t>(random.integer(0, 9999)));
    const int64_t bound = max_device_prefill_tiles(qo_indptr.back(), num_rows, 4, 64);
    std::vector<PrefillTile> tiles(bound);
    std::vector<int32_t> sources(page_table.size());
    std::vector<PrefillPass> passes(num_rows);
    PrefillPlan plan{.tiles = tiles.data(),
                     .max_tiles = bound,
                     .wide_capacity = longest + static_cast<int32_t>(random.integer(0, 40)),
                     .wide_sources = sources.data(),
                     .max_sources = static_cast<int64_t>(sources.size()),
                     .passes = passes.data(),
                     .max_passes = num_rows};
    plan_device_prefill({qo_indptr.data(), kv_indptr.data(), page_table.data(), kv_lens.data(), num_rows}, rows, 4, 64,
                        plan);
    int32_t next_tile = 0, next_source = 0;
    std::set<int32_t> seen_rows;
    for (int32_t i = 0; i < plan.num_passes; ++i) {
      const PrefillPass& pass = passes[i];
      EXPECT_EQ(pass.first_tile, next_tile);
      EXPECT_EQ(pass.first_source, next_source);
      EXPECT_GT(pass.num_tiles, 0);
      EXPECT_LE(pass.num_pages, plan.wide_capacity);
      for (int32_t t = pass.first_tile; t < pass.first_tile + pass.num_tiles; ++t) {
        const int32_t r = tiles[t].row, pages = kv_indptr[r + 1] - kv_indptr[r];
        seen_rows.insert(r);
        if (t > pass.first_tile) {
          EXPECT_LE(tiles[t].num_keys, tiles[t - 1].num_keys);
        }
        ASSERT_LE(tiles[t].page_begin + pages, pass.num_pages);
        for (int32_t j = 0; j < pages; ++j) {
          EXPECT_EQ(sources[pass.first_source + tiles[t].page_begin + j], page_table[kv_indptr[r] + j]);
        }
      }
      next_tile += pass.num_tiles;
      next_source += pass.num_pages;
    }
    EXPECT_EQ(next_tile, plan.num_tiles);
    EXPECT_EQ(next_source, plan.num_sources);
    for (int32_t r = 0; r < num_rows; ++r) {
      const bool selected = qo_indptr[r + 1] - qo_indptr[r] > 1 || rows == PrefillRows::kAll;
      EXPECT_EQ(seen_rows.count(r), selected ? 1u : 0u) << "row " << r;
    }
  }
}

TEST(DevicePrefillPlan, DividesByMultiplication) {
  TestRandom random;
  for (int32_t d = 1; d <= 128; ++d) {
    const int32_t end = INT32_MAX / d;
    const uint32_t r = reciprocal_of(d);
    for (int32_t n = 0; n < std::min(end, 5000); ++n) ASSERT_EQ(divide(n, r), n / d) << n << " / " << d;
    for (int32_t i = 0; i < 2000; ++i) {
      const auto multiple = static_cast<int32_t>(random.integer(1, end / d)) * d;
      for (const int32_t n : {multiple - 1, multiple, static_cast<int32_t>(random.integer(0, end))}) {
        ASSERT_EQ(divide(n, r), n / d) << n << " / " << d;
      }
    }
    ASSERT_EQ(divide(end, r), end / d);
  }
}

TEST(DevicePrefillPlan, WidePagesHoldTheLongestRow) {
  EXPECT_EQ(device_prefill_wide_pages(64, 131072), 8192);
  EXPECT_EQ(device_prefill_wide_pages(64, 8192), 4096);
  EXPECT_EQ(device_prefill_wide_pages(2, 100), 14);
}

TEST(DevicePrefillRef, IsTheFormula) {
  TestRandom random;
  const int32_t dim = 64, heads = 4, kv_heads = 2, kv_len = 21, q_len = 3, pages = 2;
  const int64_t run = 16 * dim;  // of a head of a page: K, then as much V
  std::vector<float> k(kv_heads * 32 * dim), v(kv_heads * 32 * dim);
  std::vector<uint16_t> memory(pages * kv_heads * 2 * run, 0xFFFF);
  const int32_t page_table[] = {1, 0}, qo_indptr[] = {0, q_len}, kv_indptr[] = {0, 2}, kv_lens[] = {kv_len};
  for (int32_t h = 0; h < kv_heads; ++h) {
    for (int32_t i = 0; i < kv_len; ++i) {
      for (int32_t d = 0; d < dim; ++d) {
        for (int32_t plane = 0; plane < 2; ++plane) {
          const float value = static_cast<float>(random.integer(-64, 64)) / 32;  // exact in BF16
          (plane ? v : k)[(h * 32 + i) * dim + d] = value;
          uint32_t bits;
          std::memcpy(&bits, &value, 4);
          memory[((page_table[i / 16] * kv_heads + h) * 2 + plane) * run + i % 16 * dim + d] = bits >> 16;
        }
      }
    }
  }
  const std::vector<float> values = random.normals(q_len * heads * dim);
  std::vector<Bf16> q(values.size()), out(values.size());
  quantize_row(DataFormat::kBF16, values.data(), q.data(), static_cast<int64_t>(values.size()));
  std::vector<float> rounded(values.size()), got(values.size());
  dequantize_row(DataFormat::kBF16, q.data(), rounded.data(), static_cast<int64_t>(values.size()));
  DevicePrefill args;
  args.q = q.data();
  args.q_stride = heads * dim;
  args.out = out.data();
  args.kv = {.pages = memory.data(), .num_kv_heads = kv_heads, .head_dim = dim};
  args.batch.qo_indptr = qo_indptr;
  args.batch.kv_indptr = kv_indptr;
  args.batch.page_table = page_table;
  args.batch.kv_lens = kv_lens;
  args.batch.num_rows = 1;
  args.batch.num_tokens = q_len;
  args.num_q_heads = heads;
  args.scale = 0.125f;
  device_prefill_ref(args);
  dequantize_row(DataFormat::kBF16, out.data(), got.data(), static_cast<int64_t>(got.size()));
  for (int32_t t = 0; t < q_len; ++t) {
    for (int32_t h = 0; h < heads; ++h) {
      std::vector<double> sum(dim);
      double total = 0;
      for (int32_t i = 0; i < kv_len - q_len + t + 1; ++i) {
        double dot = 0;
        for (int32_t d = 0; d < dim; ++d) dot += rounded[(t * heads + h) * dim + d] * k[(h / 2 * 32 + i) * dim + d];
        const double weight = std::exp(dot * 0.125);
        total += weight;
        for (int32_t d = 0; d < dim; ++d) sum[d] += weight * v[(h / 2 * 32 + i) * dim + d];
      }
      for (int32_t d = 0; d < dim; ++d) {
        const double expected = sum[d] / total;
        EXPECT_NEAR(got[(t * heads + h) * dim + d], expected, std::abs(expected) / 256 + 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace vayu::ops
