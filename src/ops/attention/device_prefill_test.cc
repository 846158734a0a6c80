// The tiles of a plan, and the reference against the formula on contiguous doubles.
#include "ops/attention/device_prefill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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

// A batch, its plan and the places of that.
struct Planned {
  std::vector<int32_t> qo_indptr = {0}, kv_indptr = {0}, kv_lens, page_table;
  PrefillHeads heads;
  PrefillRows rows = PrefillRows::kAll;
  std::vector<PrefillTile> tiles;
  std::vector<PrefillItem> items;
  std::vector<PrefillMerge> merges;
  std::vector<int32_t> sources;
  std::vector<PrefillPass> passes;
  PrefillPlan plan;

  void add_row(int32_t q_len, int32_t kv_len) {
    qo_indptr.push_back(qo_indptr.back() + q_len);
    kv_lens.push_back(kv_len);
    kv_indptr.push_back(kv_indptr.back() + (kv_len + 15) / 16);
  }
  int32_t num_rows() const { return static_cast<int32_t>(kv_lens.size()); }
  int32_t q_len(int32_t row) const { return qo_indptr[row + 1] - qo_indptr[row]; }
  bool selects(int32_t row) const { return q_len(row) > 1 || (q_len(row) == 1 && rows == PrefillRows::kAll); }
  void make(int32_t num_blocks, int32_t wide_capacity, bool may_split = true) {
    tiles.resize(max_device_prefill_tiles(qo_indptr.back(), num_rows(), heads));
    items.resize(max_device_prefill_items(qo_indptr.back(), num_rows(), heads));
    merges.resize(kPrefillMaxBlocks);
    sources.resize(page_table.size());
    passes.resize(num_rows());
    plan = {.num_blocks = num_blocks,
            .may_split = may_split,
            .tiles = tiles.data(),
            .max_tiles = static_cast<int64_t>(tiles.size()),
            .items = items.data(),
            .max_items = static_cast<int64_t>(items.size()),
            .merges = merges.data(),
            .max_merges = static_cast<int32_t>(merges.size()),
            .passes = passes.data(),
            .max_passes = num_rows(),
            .wide_capacity = wide_capacity,
            .wide_sources = sources.data(),
            .max_sources = static_cast<int64_t>(sources.size())};
    plan_device_prefill({qo_indptr.data(), kv_indptr.data(), page_table.data(), kv_lens.data(), num_rows()}, rows,
                        heads, plan);
  }
  // The longest of a pass's thread blocks: blocks of keys, and two for each item.
  int32_t longest(const PrefillPass& pass) const {
    int32_t most = 0;
    for (int32_t b = 0; b < pass.num_blocks; ++b) {
      int32_t time = 0;
      for (int32_t i = b; i >= 0; i = items[pass.first_item + i].next) {
        time += items[pass.first_item + i].end_block - items[pass.first_item + i].first_block + 2;
      }
      most = std::max(most, time);
    }
    return most;
  }
};

Planned random_batch(TestRandom& random, int64_t most_tokens, int64_t most_cached) {
  Planned batch;
  batch.heads = {.group = static_cast<int32_t>(random.integer(1, 16)),
                 .num_kv_heads = static_cast<int32_t>(random.integer(1, 8)),
                 .head_dim = random.integer(0, 1) ? 64 : 128};
  batch.rows = random.integer(0, 1) ? PrefillRows::kAll : PrefillRows::kMultiToken;
  for (int64_t r = random.integer(1, 9); r > 0; --r) {
    const auto q_len =
        static_cast<int32_t>(random.integer(0, 3) ? random.integer(1, most_tokens) : random.integer(0, 1));
    batch.add_row(q_len, q_len == 0 ? 0 : q_len + static_cast<int32_t>(random.integer(0, most_cached)));
  }
  return batch;
}

TEST(DevicePrefillPlan, CoversEverySelectedRowOnceHeaviestFirst) {
  TestRandom random;
  for (int round = 0; round < 50; ++round) {
    Planned batch = random_batch(random, 400, 300);
    batch.make(132, 0);
    const std::vector<PrefillTile>& tiles = batch.tiles;
    const int32_t tile_rows = device_prefill_tile_rows(batch.heads.head_dim), group = batch.heads.group;
    std::map<int32_t, std::set<int32_t>> firsts;
    for (int32_t i = 0; i < batch.plan.num_tiles; ++i) {
      const PrefillTile& tile = tiles[i];
      const int32_t r = tile.row, q_len = batch.q_len(r);
      EXPECT_EQ(tile.q_begin, batch.qo_indptr[r]);
      EXPECT_EQ(tile.q_len, q_len);
      EXPECT_EQ(tile.kv_len, batch.kv_lens[r]);
      EXPECT_EQ(tile.page_begin, batch.kv_indptr[r]);
      EXPECT_TRUE(firsts[r].insert(tile.first).second);
      EXPECT_EQ(tile.first % tile_rows, 0);
      EXPECT_LT(tile.first, q_len * group);
      const int32_t end = std::min(tile.first + tile_rows, q_len * group);
      EXPECT_EQ(tile.num_keys, batch.kv_lens[r] - q_len + (end - 1) / group + 1);
      if (i > 0) {
        EXPECT_LE(tile.num_keys, tiles[i - 1].num_keys);
      }
    }
    for (int32_t r = 0; r < batch.num_rows(); ++r) {
      const int32_t want = batch.selects(r) ? (batch.q_len(r) * group + tile_rows - 1) / tile_rows : 0;
      EXPECT_EQ(firsts[r].size(), static_cast<size_t>(want)) << "row " << r;
    }
    EXPECT_EQ(batch.plan.num_passes, batch.plan.num_tiles > 0 ? 1 : 0);
  }
}

// What the items of a pass must be, whoever deals them: every block of keys of every tile and head once; every item in
// one thread block's list; the parts of a tile in their order in the scratch, each with keys that all of the tile's
// rows see, and together in one merge.
void expect_sound(const Planned& batch, const PrefillPass& pass) {
  const PrefillItem* items = batch.items.data() + pass.first_item;
  ASSERT_LE(pass.num_blocks, batch.plan.num_blocks);
  std::vector<int32_t> visits(pass.num_items);
  for (int32_t b = 0; b < pass.num_blocks; ++b) {
    for (int32_t i = b; i >= 0; i = items[i].next) {
      ASSERT_LT(i, pass.num_items);
      ASSERT_EQ(visits[i]++, 0);
    }
  }
  ASSERT_EQ(std::count(visits.begin(), visits.end(), 1), pass.num_items);
  std::map<std::array<int32_t, 3>, std::vector<const PrefillItem*>> pieces;  // by q_begin, first, head
  for (int32_t i = 0; i < pass.num_items; ++i) {
    pieces[{items[i].q_begin, items[i].first, items[i].head}].push_back(items + i);
  }
  std::map<std::pair<int32_t, int32_t>, int32_t> merges;  // parts by first part and item
  for (int32_t i = 0; i < pass.num_merges; ++i) {
    const PrefillMerge& merge = batch.merges[pass.first_merge + i];
    ASSERT_TRUE(merges.insert({{items[merge.item].part, merge.item}, merge.num_parts}).second);
  }
  const int64_t part_floats = batch.heads.head_dim == 64 ? kPrefillPartFloats<64> : kPrefillPartFloats<128>;
  const int64_t max_parts = device_prefill_scratch_bytes(batch.heads.head_dim) / 4 / part_floats;
  std::set<int32_t> parts;
  size_t split = 0;
  for (int32_t t = pass.first_tile; t < pass.first_tile + pass.num_tiles; ++t) {
    const PrefillTile& tile = batch.tiles[t];
    const int32_t seen_by_all = tile.kv_len - tile.q_len + tile.first / batch.heads.group + 1;
    for (int32_t head = 0; head < batch.heads.num_kv_heads; ++head) {
      std::vector<const PrefillItem*>& found = pieces[{tile.q_begin, tile.first, head}];
      ASSERT_FALSE(found.empty());
      std::sort(found.begin(), found.end(), [](auto* a, auto* b) { return a->first_block < b->first_block; });
      int32_t block = 0, place = 0;
      for (const PrefillItem* item : found) {
        EXPECT_EQ(item->q_len, tile.q_len);
        EXPECT_EQ(item->kv_len, tile.kv_len);
        EXPECT_EQ(item->page_begin, tile.page_begin);
        EXPECT_EQ(item->first_block, block);
        EXPECT_LT(item->first_block * kPrefillBlockKeys, seen_by_all);
        EXPECT_GT(item->end_block, block);
        block = item->end_block;
        if (found.size() == 1) {
          EXPECT_EQ(item->part, -1);
          continue;
        }
        EXPECT_EQ(item->part, found.front()->part + place++);
        EXPECT_TRUE(parts.insert(item->part).second);
        EXPECT_LT(item->part, max_parts);
      }
      EXPECT_EQ(block, (tile.num_keys + kPrefillBlockKeys - 1) / kPrefillBlockKeys);
      if (found.size() == 1) continue;
      ++split;
      const auto merge = merges.find({found.front()->part, static_cast<int32_t>(found.front() - items)});
      ASSERT_NE(merge, merges.end());
      EXPECT_EQ(merge->second, static_cast<int32_t>(found.size()));
    }
  }
  EXPECT_EQ(merges.size(), split);
  EXPECT_EQ(pieces.size(), static_cast<size_t>(pass.num_tiles) * batch.heads.num_kv_heads);
}

TEST(DevicePrefillPlan, ItemsAreAllOfTheTiles) {
  TestRandom random;
  int split = 0;
  for (int round = 0; round < 400; ++round) {
    Planned batch = random_batch(random, random.integer(0, 1) ? 30 : 500, random.integer(0, 1) ? 300 : 9000);
    const auto blocks = static_cast<int32_t>(random.integer(0, 1) ? 132 : random.integer(1, kPrefillMaxBlocks));
    batch.make(blocks, 0, false);
    const int32_t whole = batch.plan.num_passes > 0 ? batch.longest(batch.passes[0]) : 0;
    for (int32_t i = 0; i < batch.plan.num_passes; ++i) expect_sound(batch, batch.passes[i]);
    EXPECT_EQ(batch.plan.num_merges, 0);
    batch.make(blocks, 0);
    for (int32_t i = 0; i < batch.plan.num_passes; ++i) expect_sound(batch, batch.passes[i]);
    if (HasFatalFailure()) return;
    if (batch.plan.num_merges == 0) continue;
    ++split;
    EXPECT_LT(batch.longest(batch.passes[0]) + 2, whole);
  }
  EXPECT_GT(split, 50);
}

// Blocks of keys, and two for each item, until the last of 132 thread blocks ends, for sarvam-30b: few tiles behind
// long contexts end within a tenth of an even division, and where whole tiles do that they stay whole.
TEST(DevicePrefillPlan, SplitsWhereThatEndsSooner) {
  struct Case {
    int32_t q_len, kv_len;
    bool split;
  };
  for (const Case& c : {Case{512, 512, false}, Case{512, 3584, true}, Case{1280, 1280, false}, Case{1280, 2560, true},
                        Case{1216, 3584, true}, Case{3584, 3584, false}, Case{8192, 8192, false}, Case{100, 8192, true},
                        Case{64, 32768, true}}) {
    Planned batch;
    batch.heads = {.group = 16, .num_kv_heads = 4, .head_dim = 64};
    batch.add_row(c.q_len, c.kv_len);
    batch.make(132, 0);
    double even = 0;
    for (int32_t i = 0; i < batch.plan.num_tiles; ++i) even += (batch.tiles[i].num_keys + 127) / 128 + 2;
    even *= 4.0 / 132;
    EXPECT_EQ(batch.plan.num_merges > 0, c.split) << c.q_len << " of " << c.kv_len;
    EXPECT_LT(batch.longest(batch.passes[0]), even * 1.1 + 3) << c.q_len << " of " << c.kv_len;
  }
}

// FP8 pages: every pass fits the scratch, has the pages of its rows in their order, and tiles that name them.
TEST(DevicePrefillPlan, PassesFitTheScratch) {
  TestRandom random;
  for (int round = 0; round < 50; ++round) {
    Planned batch = random_batch(random, 100, random.integer(0, 1) ? 300 : 5000);
    int32_t longest = 1;
    for (const int32_t kv_len : batch.kv_lens) longest = std::max(longest, (kv_len + 15) / 16);
    for (int32_t i = 0; i < batch.kv_indptr.back(); ++i) {
      batch.page_table.push_back(static_cast<int32_t>(random.integer(0, 9999)));
    }
    batch.make(132, longest + static_cast<int32_t>(random.integer(0, 40)));
    int32_t next_tile = 0, next_source = 0, next_item = 0, next_merge = 0;
    std::set<int32_t> seen_rows;
    for (int32_t i = 0; i < batch.plan.num_passes; ++i) {
      const PrefillPass& pass = batch.passes[i];
      EXPECT_EQ(pass.first_tile, next_tile);
      EXPECT_EQ(pass.first_source, next_source);
      EXPECT_EQ(pass.first_item, next_item);
      EXPECT_EQ(pass.first_merge, next_merge);
      EXPECT_GT(pass.num_tiles, 0);
      EXPECT_LE(pass.num_pages, batch.plan.wide_capacity);
      for (int32_t t = pass.first_tile; t < pass.first_tile + pass.num_tiles; ++t) {
        const PrefillTile& tile = batch.tiles[t];
        const int32_t r = tile.row, pages = batch.kv_indptr[r + 1] - batch.kv_indptr[r];
        seen_rows.insert(r);
        if (t > pass.first_tile) {
          EXPECT_LE(tile.num_keys, batch.tiles[t - 1].num_keys);
        }
        ASSERT_LE(tile.page_begin + pages, pass.num_pages);
        for (int32_t j = 0; j < pages; ++j) {
          EXPECT_EQ(batch.sources[pass.first_source + tile.page_begin + j], batch.page_table[batch.kv_indptr[r] + j]);
        }
      }
      expect_sound(batch, pass);
      if (HasFatalFailure()) return;
      next_tile += pass.num_tiles;
      next_source += pass.num_pages;
      next_item += pass.num_items;
      next_merge += pass.num_merges;
    }
    EXPECT_EQ(next_tile, batch.plan.num_tiles);
    EXPECT_EQ(next_source, batch.plan.num_sources);
    EXPECT_EQ(next_item, batch.plan.num_items);
    EXPECT_EQ(next_merge, batch.plan.num_merges);
    for (int32_t r = 0; r < batch.num_rows(); ++r) {
      EXPECT_EQ(seen_rows.count(r), batch.selects(r) ? 1u : 0u) << "row " << r;
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
