#include <algorithm>

#include "base/check.h"
#include "ops/attention/device_prefill.h"

namespace vayu::ops {
namespace {

constexpr int32_t kPageSize = 16;

// Times in blocks of keys. At head dim 64 a launch takes 1.46 us a block and 2.5 us an item, within 1 % at 3,584, 8,192
// and 16 x 896 tokens.
constexpr int32_t kItemCost = 2;     // beside its blocks: first product, last product, output
constexpr int32_t kMergeCost = 2;    // of the launch that adds up parts
constexpr int32_t kLeastBlocks = 2;  // of a part that is not the last of its tile

}  // namespace

int32_t device_prefill_tile_rows(int32_t head_dim) {
  return head_dim == 64 ? kPrefillTileRows<64> : kPrefillTileRows<128>;
}

int64_t max_device_prefill_tiles(int64_t num_tokens, int64_t num_rows, const PrefillHeads& heads) {
  return num_tokens * heads.group / device_prefill_tile_rows(heads.head_dim) + num_rows;
}

int64_t max_device_prefill_items(int64_t num_tokens, int64_t num_rows, const PrefillHeads& heads) {
  return max_device_prefill_tiles(num_tokens, num_rows, heads) * heads.num_kv_heads + kPrefillMaxBlocks;
}

// Every end of a thread block but the last may leave a tile in two: two parts an end at most.
int64_t device_prefill_scratch_bytes(int32_t head_dim) {
  return 2 * kPrefillMaxBlocks *
         (head_dim == 64 ? kPrefillPartFloats<64> : kPrefillPartFloats<128>)*int64_t{sizeof(float)};
}

int32_t device_prefill_wide_pages(int32_t max_rows, int32_t max_context) {
  constexpr int64_t kEnough = 65536 / kPageSize;
  const int64_t of_row = (int64_t{max_context} + kPageSize - 1) / kPageSize;
  return static_cast<int32_t>(std::min(max_rows * of_row, std::max(of_row, kEnough)));
}

namespace {

PrefillPass& add_pass(PrefillPlan& plan) {
  VAYU_CHECK(plan.num_passes < plan.max_passes, "more than {} passes", plan.max_passes);
  return plan.passes[plan.num_passes++] = {.first_tile = plan.num_tiles, .first_source = plan.num_sources};
}

// The row's pages become the next ones of the scratch, in a new pass if they do not fit. Returns the first.
int32_t add_sources(const PrefillLists& lists, int32_t row, PrefillPlan& plan) {
  const int32_t pages = (lists.kv_lens[row] + kPageSize - 1) / kPageSize;
  VAYU_CHECK(pages <= plan.wide_capacity, "a row of {} pages, scratch of {}", pages, plan.wide_capacity);
  VAYU_CHECK(plan.num_sources + pages <= plan.max_sources, "more than {} pages", plan.max_sources);
  if (plan.passes[plan.num_passes - 1].num_pages + pages > plan.wide_capacity) add_pass(plan);
  PrefillPass& pass = plan.passes[plan.num_passes - 1];
  std::copy_n(lists.page_table + lists.kv_indptr[row], pages, plan.wide_sources + plan.num_sources);
  plan.num_sources += pages;
  pass.num_pages += pages;
  return pass.num_pages - pages;
}

void add_tiles(const PrefillTile& row, const PrefillHeads& heads, PrefillPlan& plan) {
  const int64_t tile_rows = device_prefill_tile_rows(heads.head_dim), packed_rows = int64_t{row.q_len} * heads.group;
  // Of a tile's rows beyond the end, too (ops/cuda/divide.h).
  VAYU_CHECK((packed_rows + tile_rows) * heads.group < int64_t{1} << 31, "{} tokens of {} heads", row.q_len,
             heads.group);
  for (int64_t first = 0; first < packed_rows; first += tile_rows) {
    VAYU_CHECK(plan.num_tiles < plan.max_tiles, "more than {} tiles", plan.max_tiles);
    const auto last_token = static_cast<int32_t>((std::min(first + tile_rows, packed_rows) - 1) / heads.group);
    PrefillTile& tile = plan.tiles[plan.num_tiles++] = row;
    tile.first = static_cast<int32_t>(first);
    tile.num_keys = row.kv_len - row.q_len + last_token + 1;
  }
}

void sort_heaviest_first(PrefillTile* tiles, int32_t count) {
  std::sort(tiles, tiles + count, [](const PrefillTile& a, const PrefillTile& b) {
    if (a.num_keys != b.num_keys) return a.num_keys > b.num_keys;
    return a.row != b.row ? a.row < b.row : a.first < b.first;
  });
}

int32_t blocks_of(const PrefillTile& tile) { return (tile.num_keys + kPrefillBlockKeys - 1) / kPrefillBlockKeys; }

PrefillItem item_of(const PrefillTile& tile, int32_t head, int32_t first_block, int32_t end_block) {
  return {.q_begin = tile.q_begin,
          .q_len = tile.q_len,
          .kv_len = tile.kv_len,
          .page_begin = tile.page_begin,
          .first = tile.first,
          .head = head,
          .first_block = first_block,
          .end_block = end_block,
          .part = -1,
          .next = -1,
          .unused = {}};
}

// Deals the tiles of a pass, heaviest first, out to thread blocks, all heads of a tile one after the other.
class Dealer {
 public:
  Dealer(const PrefillHeads& heads, PrefillPlan& plan, PrefillPass& pass)
      : heads_(heads),
        plan_(plan),
        pass_(pass),
        tiles_(plan.tiles + pass.first_tile),
        whole_items_(pass.num_tiles * heads.num_kv_heads),
        blocks_(plan.num_blocks) {
    pass.first_item = plan.num_items;
    pass.first_merge = plan.num_merges;
    VAYU_CHECK(plan.num_items + whole_items_ <= plan.max_items, "more than {} items", plan.max_items);
  }

  void deal() {
    if (const int32_t share = best_share(); share > 0) {
      deal_parts(share);
    } else {
      deal_whole();
    }
    plan_.num_items += pass_.num_items;
    plan_.num_merges += pass_.num_merges;
  }

 private:
  // Forwards and backwards in turn, so that thread blocks end nearly together.
  static int32_t next_dealt(int32_t item, int32_t blocks) {
    return (item / blocks + 1) * blocks + blocks - 1 - item % blocks;
  }

  void deal_whole() {
    PrefillItem* items = plan_.items + pass_.first_item;
    pass_.num_items = whole_items_;
    pass_.num_blocks = std::min(whole_items_, blocks_);
    for (int32_t i = 0; i < whole_items_; ++i) {
      const PrefillTile& tile = tiles_[i / heads_.num_kv_heads];
      items[i] = item_of(tile, i % heads_.num_kv_heads, 0, blocks_of(tile));
      if (const int32_t next = next_dealt(i, pass_.num_blocks); next < whole_items_) items[i].next = next;
    }
  }

  int64_t whole_time() const {
    const int32_t blocks = std::min(whole_items_, blocks_);
    int64_t longest = 0;
    for (int32_t b = 0; b < blocks; ++b) {
      int64_t time = 0;
      for (int32_t i = b; i < whole_items_; i = next_dealt(i, blocks)) {
        time += blocks_of(tiles_[i / heads_.num_kv_heads]) + kItemCost;
      }
      longest = std::max(longest, time);
    }
    return longest;
  }

  // All tiles and heads end to end, cut where a thread block has had its share (McNaughton's rule, Management Science
  // 6, 1959): calls emit(block, tile, head, first block of keys, end) and returns how many thread blocks that takes. A
  // part begins no higher than where the tile's first row still sees keys, so that no row of a part is without any.
  template <class Emit>
  int32_t cut(int32_t share, const Emit& emit) const {
    int32_t block = 0, time = 0;
    for (int32_t i = 0; i < whole_items_; ++i) {
      const PrefillTile& tile = tiles_[i / heads_.num_kv_heads];
      const int32_t highest = (tile.kv_len - tile.q_len + tile.first / heads_.group) / kPrefillBlockKeys;
      const int32_t end = blocks_of(tile);
      for (int32_t first = 0; first < end;) {
        const int32_t room = share - time - kItemCost;
        const bool fits = end - first <= room;
        const int32_t count = fits ? end - first : std::min(room, highest - first);
        if (fits || count >= kLeastBlocks) {
          emit(block, tile, i % heads_.num_kv_heads, first, first + count);
          first += count;
          time += count + kItemCost;
        }
        if (fits) continue;
        ++block;
        time = 0;
        if (block >= blocks_) return blocks_ + 1;
      }
    }
    return block + 1;
  }

  // The least time in which the thread blocks, each with its share, do everything; 0: whole tiles end as soon.
  int32_t best_share() const {
    if (!plan_.may_split || blocks_ < 2) return 0;
    const bool room =
        plan_.num_items + whole_items_ + blocks_ <= plan_.max_items && plan_.num_merges + blocks_ <= plan_.max_merges;
    if (!room) return 0;
    int64_t total = int64_t{kItemCost} * (blocks_ - 1);
    for (int32_t i = 0; i < pass_.num_tiles; ++i) {
      total += int64_t{heads_.num_kv_heads} * (blocks_of(tiles_[i]) + kItemCost);
    }
    const int64_t whole = whole_time(), limit = whole - whole / 32 - kMergeCost;
    // At least so much that a fresh thread block always takes a part of what does not fit: highest >= end - 3.
    constexpr int64_t kLeastShare = kItemCost + kLeastBlocks + 3;
    for (int64_t share = std::max((total + blocks_ - 1) / blocks_, kLeastShare); share < limit;
         share += 1 + share / 64) {
      if (cut(static_cast<int32_t>(share), [](auto...) {}) <= blocks_) return static_cast<int32_t>(share);
    }
    return 0;
  }

  void deal_parts(int32_t share) {
    PrefillItem* items = plan_.items + pass_.first_item;
    PrefillMerge* merges = plan_.merges + pass_.first_merge;
    pass_.num_blocks = cut(share, [](auto...) {});
    int32_t dealt = -1, last = 0, further = pass_.num_blocks, parts = 0;  // thread block, its item, items beyond firsts
    const auto place = [&](int32_t block, const PrefillTile& tile, int32_t head, int32_t first, int32_t end) {
      const int32_t index = block > dealt ? block : further++;
      PrefillItem& item = items[index] = item_of(tile, head, first, end);
      if (block == dealt) items[last].next = index;
      dealt = block;
      last = index;
      if (first == 0 && end == blocks_of(tile)) return;
      if (first == 0) merges[pass_.num_merges++] = {index, 0};
      ++merges[pass_.num_merges - 1].num_parts;
      item.part = parts++;
    };
    cut(share, place);
    pass_.num_items = further;
  }

  const PrefillHeads& heads_;
  PrefillPlan& plan_;
  PrefillPass& pass_;
  const PrefillTile* tiles_;
  int32_t whole_items_;
  int32_t blocks_;
};

}  // namespace

void plan_device_prefill(const PrefillLists& lists, PrefillRows rows, const PrefillHeads& heads, PrefillPlan& plan) {
  VAYU_CHECK(plan.num_blocks >= 1 && plan.num_blocks <= kPrefillMaxBlocks, "{} thread blocks", plan.num_blocks);
  plan.num_tiles = plan.num_items = plan.num_merges = plan.num_sources = plan.num_passes = 0;
  for (int32_t row = 0; row < lists.num_rows; ++row) {
    const int32_t q_begin = lists.qo_indptr[row], q_len = lists.qo_indptr[row + 1] - q_begin;
    const int32_t kv_len = lists.kv_lens[row];
    if (q_len == 0 || kv_len == 0 || (q_len == 1 && rows == PrefillRows::kMultiToken)) continue;
    VAYU_CHECK(kv_len >= q_len, "row {}: {} tokens, {} of them cached", row, q_len, kv_len);
    if (plan.num_passes == 0) add_pass(plan);
    const int32_t page_begin = plan.wide_capacity > 0 ? add_sources(lists, row, plan) : lists.kv_indptr[row];
    add_tiles({.q_begin = q_begin, .q_len = q_len, .kv_len = kv_len, .page_begin = page_begin, .row = row}, heads,
              plan);
    PrefillPass& pass = plan.passes[plan.num_passes - 1];
    pass.num_tiles = plan.num_tiles - pass.first_tile;
  }
  for (int32_t i = 0; i < plan.num_passes; ++i) {
    PrefillPass& pass = plan.passes[i];
    sort_heaviest_first(plan.tiles + pass.first_tile, pass.num_tiles);
    Dealer(heads, plan, pass).deal();
  }
}

}  // namespace vayu::ops
