#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "base/check.h"
#include "ops/attention/device_mla_prefill.h"

namespace vayu::ops {
namespace {

constexpr int32_t kPageSize = 16;
constexpr int64_t kTokensThatPay = 64;
constexpr int64_t kItemCost = 1;  // beside its blocks of keys, in those
// Heads go through all tiles in groups whose keys and values are this much, so that they stay in the second-level
// cache: half of it, since a group begins while the one before ends.
constexpr int64_t kGroupBytes = int64_t{16} << 20;
constexpr int64_t kHeadRowBytes = (kMlaPrefillNope + kMlaPrefillValue) * int64_t{sizeof(Bf16)};

int32_t divide_up(int32_t n, int32_t d) { return (n + d - 1) / d; }

}  // namespace

// A token sees on average kv_len - (q_len - 1) / 2 keys.
bool mla_prefill_pays(int32_t q_len, int32_t kv_len) {
  return int64_t{q_len} * (2 * int64_t{kv_len} - (q_len - 1)) >= 2 * kTokensThatPay * kv_len;
}

int64_t max_mla_prefill_tiles(int64_t num_tokens, int64_t num_rows) {
  return num_tokens / kMlaPrefillTileTokens + num_rows;
}

namespace {

class Planner {
 public:
  Planner(const PrefillLists& lists, MlaPrefillPlan& plan) : lists_(lists), plan_(plan) {}

  void plan() {
    VAYU_CHECK(plan_.num_blocks >= 1 && plan_.num_blocks <= kPrefillMaxBlocks, "{} thread blocks", plan_.num_blocks);
    plan_.num_rows = plan_.num_items = plan_.num_passes = plan_.num_sources = 0;
    for (int32_t row = 0; row < lists_.num_rows; ++row) {
      plan_.chosen[row] = is_chosen(row);
      if (plan_.chosen[row]) add_row(row);
    }
    for (int32_t i = 0; i < plan_.num_passes; ++i) deal(plan_.passes[i]);
  }

 private:
  int32_t q_len(int32_t row) const { return lists_.qo_indptr[row + 1] - lists_.qo_indptr[row]; }

  bool is_chosen(int32_t row) const {
    const int32_t kv_len = lists_.kv_lens[row];
    if (q_len(row) < 2 || divide_up(kv_len, kPageSize) * int64_t{kPageSize} > plan_.capacity) return false;
    return plan_.choice == MlaPrefillChoice::kAlways || mla_prefill_pays(q_len(row), kv_len);
  }

  // The row's context goes behind that of the pass's other rows, or begins a new pass.
  void add_row(int32_t row) {
    const int32_t kv_len = lists_.kv_lens[row], pages = divide_up(kv_len, kPageSize);
    VAYU_CHECK(kv_len >= q_len(row), "row {}: {} tokens, {} of them cached", row, q_len(row), kv_len);
    VAYU_CHECK(plan_.num_rows < plan_.max_rows && plan_.num_sources + pages <= plan_.max_sources,
               "more than {} rows or {} pages", plan_.max_rows, plan_.max_sources);
    const bool fits = plan_.num_passes > 0 &&
                      (plan_.passes[plan_.num_passes - 1].num_pages + int64_t{pages}) * kPageSize <= plan_.capacity;
    if (!fits) {
      plan_.passes[plan_.num_passes++] = {.first_row = plan_.num_rows, .first_source = plan_.num_sources};
    }
    MlaPrefillPass& pass = plan_.passes[plan_.num_passes - 1];
    plan_.rows[plan_.num_rows++] = {.q_begin = lists_.qo_indptr[row],
                                    .q_len = q_len(row),
                                    .kv_len = kv_len,
                                    .kv_first = pass.num_pages * kPageSize};
    std::copy_n(lists_.page_table + lists_.kv_indptr[row], pages, plan_.sources + plan_.num_sources);
    plan_.num_sources += pages;
    pass.num_pages += pages;
    ++pass.num_rows;
  }

  // The tiles of the pass, heaviest first.
  int32_t add_tiles(const MlaPrefillPass& pass) {
    int32_t count = 0;
    for (int32_t r = pass.first_row; r < pass.first_row + pass.num_rows; ++r) {
      const MlaPrefillRow& row = plan_.rows[r];
      for (int32_t first = 0; first < row.q_len; first += kMlaPrefillTileTokens) {
        VAYU_CHECK(count < plan_.max_tiles, "more than {} tiles", plan_.max_tiles);
        const int32_t keys = row.kv_len - row.q_len + std::min(first + kMlaPrefillTileTokens, row.q_len);
        plan_.tiles[count++] = {.q_begin = row.q_begin,
                                .q_len = row.q_len,
                                .kv_len = row.kv_len,
                                .kv_first = row.kv_first,
                                .first = first,
                                .head = 0,
                                .num_blocks = divide_up(keys, kPrefillBlockKeys),
                                .next = -1};
      }
    }
    std::sort(plan_.tiles, plan_.tiles + count, [](const MlaPrefillItem& a, const MlaPrefillItem& b) {
      if (a.num_blocks != b.num_blocks) return a.num_blocks > b.num_blocks;
      return a.q_begin != b.q_begin ? a.q_begin < b.q_begin : a.first < b.first;
    });
    return count;
  }

  void add_items(int32_t first_tile, int32_t end_tile, int32_t first_head, int32_t end_head) {
    for (int32_t i = first_tile; i < end_tile; ++i) {
      for (int32_t head = first_head; head < end_head; ++head) {
        MlaPrefillItem& item = plan_.items[plan_.num_items++] = plan_.tiles[i];
        item.head = head;
      }
    }
  }

  // Every tile for every head: groups of heads one after the other, in a group the heaviest tile first. The lightest
  // tiles, which read the least, come last and for all heads: as many as keep every thread block busy for as long as
  // the heaviest takes, so that they even out what the groups left.
  void add_items(const MlaPrefillPass& pass, int32_t num_tiles) {
    const int32_t heads = plan_.num_heads;
    VAYU_CHECK(plan_.num_items + int64_t{num_tiles} * heads <= plan_.max_items, "more than {} items", plan_.max_items);
    const int64_t wanted = int64_t{plan_.tiles[0].num_blocks} * plan_.num_blocks;
    int32_t heavy = num_tiles;
    for (int64_t light = 0; heavy > 0 && light < wanted;) light += int64_t{plan_.tiles[--heavy].num_blocks} * heads;
    const int64_t fitting = kGroupBytes / (int64_t{pass.num_pages} * kPageSize * kHeadRowBytes);
    const auto group = static_cast<int32_t>(std::clamp<int64_t>(fitting, 1, heads));
    for (int32_t head = 0; head < heads; head += group) add_items(0, heavy, head, std::min(head + group, heads));
    add_items(heavy, num_tiles, 0, heads);
  }

  // In their order, each to the thread block that is through first (Graham's list scheduling, Bell System Technical
  // Journal 45, 1966).
  void deal(MlaPrefillPass& pass) {
    pass.first_item = plan_.num_items;
    add_items(pass, add_tiles(pass));
    pass.num_items = plan_.num_items - pass.first_item;
    pass.num_blocks = std::min(pass.num_items, plan_.num_blocks);
    MlaPrefillItem* items = plan_.items + pass.first_item;
    std::array<std::pair<int64_t, int32_t>, kPrefillMaxBlocks> ends;  // time and thread block, a heap
    std::array<int32_t, kPrefillMaxBlocks> last;                      // item of each thread block
    for (int32_t b = 0; b < pass.num_blocks; ++b) ends[b] = {0, b};
    const auto later = std::greater<std::pair<int64_t, int32_t>>();
    for (int32_t i = 0; i < pass.num_items; ++i) {
      std::pop_heap(ends.begin(), ends.begin() + pass.num_blocks, later);
      auto& [time, block] = ends[pass.num_blocks - 1];
      if (time > 0) items[last[block]].next = i;
      last[block] = i;
      time += items[i].num_blocks + kItemCost;
      std::push_heap(ends.begin(), ends.begin() + pass.num_blocks, later);
    }
  }

  const PrefillLists& lists_;
  MlaPrefillPlan& plan_;
};

}  // namespace

void plan_mla_prefill(const PrefillLists& lists, MlaPrefillPlan& plan) { Planner(lists, plan).plan(); }

}  // namespace vayu::ops
