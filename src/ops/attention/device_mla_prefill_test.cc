// What plan_mla_prefill chooses and how it cuts it, and the reference against the formula on a case small enough to
// write out.
#include "ops/attention/device_mla_prefill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "base/data_format.h"
#include "ops/cpu/op_test_util.h"

namespace vayu::ops {
namespace {

// A batch, its plan and the places of that.
struct Planned {
  std::vector<int32_t> qo_indptr = {0}, kv_indptr = {0}, kv_lens, page_table;
  std::vector<uint8_t> chosen;
  std::vector<MlaPrefillRow> rows;
  std::vector<MlaPrefillItem> tiles, items;
  std::vector<MlaPrefillPass> passes;
  std::vector<int32_t> sources;
  MlaPrefillPlan plan;

  void add_row(int32_t q_len, int32_t kv_len) {
    qo_indptr.push_back(qo_indptr.back() + q_len);
    kv_lens.push_back(kv_len);
    for (int32_t i = 0; i < (kv_len + 15) / 16; ++i) page_table.push_back(static_cast<int32_t>(page_table.size()) * 7);
    kv_indptr.push_back(static_cast<int32_t>(page_table.size()));
  }
  int32_t num_rows() const { return static_cast<int32_t>(kv_lens.size()); }
  int32_t q_len(int32_t row) const { return qo_indptr[row + 1] - qo_indptr[row]; }
  void make(int32_t num_blocks, int32_t num_heads, int32_t capacity, MlaPrefillChoice choice) {
    chosen.assign(num_rows(), 7);
    rows.resize(num_rows());
    tiles.resize(max_mla_prefill_tiles(qo_indptr.back(), num_rows()));
    items.resize(tiles.size() * num_heads);
    passes.resize(num_rows());
    sources.resize(page_table.size());
    plan = {.num_blocks = num_blocks,
            .num_heads = num_heads,
            .capacity = capacity,
            .choice = choice,
            .chosen = chosen.data(),
            .rows = rows.data(),
            .max_rows = num_rows(),
            .tiles = tiles.data(),
            .max_tiles = static_cast<int64_t>(tiles.size()),
            .items = items.data(),
            .max_items = static_cast<int64_t>(items.size()),
            .passes = passes.data(),
            .sources = sources.data(),
            .max_sources = static_cast<int64_t>(sources.size())};
    plan_mla_prefill({qo_indptr.data(), kv_indptr.data(), page_table.data(), kv_lens.data(), num_rows()}, plan);
  }
  // Blocks of keys, and one for each item, of a thread block of a pass.
  int32_t time_of(const MlaPrefillPass& pass, int32_t block) const {
    int32_t time = 0;
    for (int32_t i = block; i >= 0; i = items[pass.first_item + i].next) {
      time += items[pass.first_item + i].num_blocks + 1;
    }
    return time;
  }
};

// Every item in one thread block's list, each in the order of the list of all; every tile of every row and head once.
void expect_sound(const Planned& batch, const MlaPrefillPass& pass) {
  const MlaPrefillItem* items = batch.items.data() + pass.first_item;
  ASSERT_LE(pass.num_blocks, batch.plan.num_blocks);
  std::vector<int32_t> visits(pass.num_items);
  for (int32_t b = 0; b < pass.num_blocks; ++b) {
    for (int32_t i = b; i >= 0; i = items[i].next) {
      ASSERT_LT(i, pass.num_items);
      ASSERT_EQ(visits[i]++, 0);
      ASSERT_TRUE(items[i].next < 0 || items[i].next > i);
    }
  }
  ASSERT_EQ(std::count(visits.begin(), visits.end(), 1), pass.num_items);
  std::map<std::array<int32_t, 3>, const MlaPrefillItem*> found;
  for (int32_t i = 0; i < pass.num_items; ++i) {
    ASSERT_TRUE(found.insert({{items[i].q_begin, items[i].first, items[i].head}, items + i}).second);
  }
  int32_t expected = 0;
  for (int32_t r = pass.first_row; r < pass.first_row + pass.num_rows; ++r) {
    const MlaPrefillRow& row = batch.rows[r];
    for (int32_t first = 0; first < row.q_len; first += kMlaPrefillTileTokens) {
      for (int32_t head = 0; head < batch.plan.num_heads; ++head, ++expected) {
        const auto at = found.find({row.q_begin, first, head});
        ASSERT_NE(at, found.end());
        const MlaPrefillItem& item = *at->second;
        EXPECT_EQ(item.q_len, row.q_len);
        EXPECT_EQ(item.kv_len, row.kv_len);
        EXPECT_EQ(item.kv_first, row.kv_first);
        const int32_t keys = row.kv_len - row.q_len + std::min(first + kMlaPrefillTileTokens, row.q_len);
        EXPECT_EQ(item.num_blocks, (keys + kPrefillBlockKeys - 1) / kPrefillBlockKeys);
      }
    }
  }
  EXPECT_EQ(expected, pass.num_items);
}

TEST(DeviceMlaPrefillPlan, CoversWhatItChooses) {
  TestRandom random;
  int many_passes = 0, left_out = 0;
  for (int round = 0; round < 200; ++round) {
    Planned batch;
    for (int64_t r = random.integer(1, 9); r > 0; --r) {
      const auto q_len = static_cast<int32_t>(random.integer(0, 3) ? random.integer(1, 700) : random.integer(0, 1));
      batch.add_row(q_len, q_len + static_cast<int32_t>(random.integer(0, 1) ? random.integer(0, 3000) : 0));
    }
    const auto choice = random.integer(0, 1) ? MlaPrefillChoice::kAlways : MlaPrefillChoice::kCheaper;
    const auto capacity = static_cast<int32_t>(random.integer(60, 600) * 16);
    const auto blocks = static_cast<int32_t>(random.integer(0, 1) ? 132 : random.integer(1, kPrefillMaxBlocks));
    batch.make(blocks, static_cast<int32_t>(random.integer(1, 64)), capacity, choice);
    int32_t next_row = 0, next_item = 0, next_source = 0;
    for (int32_t i = 0; i < batch.plan.num_passes; ++i) {
      const MlaPrefillPass& pass = batch.passes[i];
      EXPECT_EQ(pass.first_row, next_row);
      EXPECT_EQ(pass.first_item, next_item);
      EXPECT_EQ(pass.first_source, next_source);
      EXPECT_GT(pass.num_rows, 0);
      EXPECT_LE(pass.num_pages * 16, capacity);
      expect_sound(batch, pass);
      if (HasFatalFailure()) return;
      next_row += pass.num_rows;
      next_item += pass.num_items;
      next_source += pass.num_pages;
    }
    EXPECT_EQ(next_row, batch.plan.num_rows);
    EXPECT_EQ(next_item, batch.plan.num_items);
    EXPECT_EQ(next_source, batch.plan.num_sources);
    many_passes += batch.plan.num_passes > 1;

    int32_t taken = 0, pass = 0;
    for (int32_t r = 0; r < batch.num_rows(); ++r) {
      const int32_t pages = batch.kv_indptr[r + 1] - batch.kv_indptr[r];
      const bool wanted = batch.q_len(r) > 1 &&
                          (choice == MlaPrefillChoice::kAlways || mla_prefill_pays(batch.q_len(r), batch.kv_lens[r]));
      left_out += wanted && pages * 16 > capacity;
      ASSERT_EQ(batch.chosen[r], wanted && pages * 16 <= capacity) << "row " << r;
      if (!batch.chosen[r]) continue;
      const MlaPrefillRow& row = batch.rows[taken++];
      EXPECT_EQ(row.q_begin, batch.qo_indptr[r]);
      EXPECT_EQ(row.q_len, batch.q_len(r));
      EXPECT_EQ(row.kv_len, batch.kv_lens[r]);
      while (taken > batch.passes[pass].first_row + batch.passes[pass].num_rows) ++pass;
      ASSERT_LE(row.kv_first / 16 + pages, batch.passes[pass].num_pages);
      for (int32_t j = 0; j < pages; ++j) {
        EXPECT_EQ(batch.sources[batch.passes[pass].first_source + row.kv_first / 16 + j],
                  batch.page_table[batch.kv_indptr[r] + j]);
      }
    }
    EXPECT_EQ(taken, batch.plan.num_rows);
  }
  EXPECT_GT(many_passes, 10);
  EXPECT_GT(left_out, 5);
}

TEST(DeviceMlaPrefillPlan, ChoosesWhatCostsLess) {
  EXPECT_FALSE(mla_prefill_pays(1, 1));
  EXPECT_FALSE(mla_prefill_pays(1, 100000));
  EXPECT_FALSE(mla_prefill_pays(60, 8000));
  EXPECT_TRUE(mla_prefill_pays(65, 8000));
  EXPECT_FALSE(mla_prefill_pays(100, 100));  // a prompt's token sees half of it on average
  EXPECT_TRUE(mla_prefill_pays(128, 128));
  EXPECT_TRUE(mla_prefill_pays(131072, 131072));
}

// Prompts for 64 heads on 132 multiprocessors end within a thirtieth of an even division and an eighth of a tile.
TEST(DeviceMlaPrefillPlan, ThreadBlocksEndTogether) {
  struct Case {
    int32_t q_len, kv_len, rows;
  };
  for (const Case& c : {Case{3584, 3584, 1}, Case{8192, 8192, 1}, Case{896, 896, 4}, Case{512, 3584, 1},
                        Case{1280, 2560, 2}, Case{2000, 2000, 1}}) {
    Planned batch;
    for (int32_t i = 0; i < c.rows; ++i) batch.add_row(c.q_len, c.kv_len);
    batch.make(132, 64, 16384, MlaPrefillChoice::kCheaper);
    ASSERT_EQ(batch.plan.num_passes, 1);
    int32_t total = 0, longest = 0;
    for (int32_t b = 0; b < 132; ++b) {
      const int32_t time = batch.time_of(batch.passes[0], b);
      total += time;
      longest = std::max(longest, time);
    }
    EXPECT_LE(longest, total / 132.0 * (1 + 1.0 / 30) + c.kv_len / 1024.0) << c.q_len << " of " << c.kv_len;
  }
}

// Two heads, of three tokens of a row whose context has four rows, behind two that are not its own.
TEST(DeviceMlaPrefillRef, IsTheFormula) {
  TestRandom random;
  constexpr int32_t kHeads = 2, kContext = 6, kStride = kHeads * 192 + 8;
  const auto bf16 = [&](int64_t count) {
    std::vector<Bf16> values(count);
    const std::vector<float> drawn = random.normals(count);
    quantize_row(DataFormat::kBF16, drawn.data(), values.data(), count);
    return values;
  };
  const auto at = [](const std::vector<Bf16>& values, int64_t i) {
    float v;
    dequantize_row(DataFormat::kBF16, &values[i], &v, 1);
    return double{v};
  };
  const std::vector<Bf16> q = bf16(4 * kStride), kv = bf16(kContext * 2 * kHeads * 128), rope = bf16(kContext * 64);
  std::vector<Bf16> out(4 * kHeads * 128, Bf16{0xFFFF});
  const MlaPrefillRow row{.q_begin = 1, .q_len = 3, .kv_len = 4, .kv_first = 2};
  device_mla_prefill_ref({.q = q.data(),
                          .q_stride = kStride,
                          .num_tokens = 4,
                          .kv = kv.data(),
                          .rope = rope.data(),
                          .num_context = kContext,
                          .out = out.data(),
                          .num_heads = kHeads,
                          .scale = 0.1f,
                          .rows = &row,
                          .num_rows = 1});
  for (int32_t i = 0; i < kHeads * 128; ++i) EXPECT_EQ(out[i].bits, 0xFFFF) << "a token of no row";
  for (int32_t t = 0; t < 3; ++t) {
    for (int32_t head = 0; head < kHeads; ++head) {
      std::array<double, 4> weights{};
      double total = 0;
      for (int32_t i = 0; i < t + 2; ++i) {
        double logit = 0;
        for (int32_t d = 0; d < 192; ++d) {
          const double key = d < 128 ? at(kv, (2 + i) * 512 + head * 128 + d) : at(rope, (2 + i) * 64 + d - 128);
          logit += at(q, (1 + t) * kStride + head * 192 + d) * key;
        }
        total += weights[i] = std::exp(0.1 * logit);
      }
      for (int32_t d = 0; d < 128; ++d) {
        double value = 0;
        for (int32_t i = 0; i < t + 2; ++i) value += weights[i] / total * at(kv, (2 + i) * 512 + 256 + head * 128 + d);
        EXPECT_NEAR(at(out, ((1 + t) * kHeads + head) * 128 + d), value, 0.005 * std::fabs(value) + 1e-4);
      }
    }
  }
}

}  // namespace
}  // namespace vayu::ops
