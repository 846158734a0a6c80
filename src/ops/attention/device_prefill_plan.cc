#include <algorithm>

#include "base/check.h"
#include "ops/attention/device_prefill.h"

namespace vayu::ops {
namespace {

constexpr int32_t kPageSize = 16;

}  // namespace

// Three warpgroups of 64 rows at head dim 64, two at 128, where the accumulators need twice the registers.
int32_t device_prefill_tile_rows(int32_t head_dim) { return head_dim == 64 ? 192 : 128; }

int64_t max_device_prefill_tiles(int64_t num_tokens, int64_t num_rows, int32_t group, int32_t head_dim) {
  return num_tokens * group / device_prefill_tile_rows(head_dim) + num_rows;
}

int32_t device_prefill_wide_pages(int32_t max_rows, int32_t max_context) {
  constexpr int64_t kEnough = 65536 / kPageSize;
  const int64_t of_row = (int64_t{max_context} + kPageSize - 1) / kPageSize;
  return static_cast<int32_t>(std::min(max_rows * of_row, std::max(of_row, kEnough)));
}

namespace {

// The row's pages become the next ones of the scratch, in a new pass if they do not fit. Returns the first.
int32_t add_sources(const PrefillLists& lists, int32_t row, PrefillPlan& plan) {
  const int32_t pages = (lists.kv_lens[row] + kPageSize - 1) / kPageSize;
  VAYU_CHECK(pages <= plan.wide_capacity, "a row of {} pages, scratch of {}", pages, plan.wide_capacity);
  VAYU_CHECK(plan.num_sources + pages <= plan.max_sources, "more than {} pages", plan.max_sources);
  if (plan.num_passes == 0 || plan.passes[plan.num_passes - 1].num_pages + pages > plan.wide_capacity) {
    VAYU_CHECK(plan.num_passes < plan.max_passes, "more than {} passes", plan.max_passes);
    plan.passes[plan.num_passes++] = {
        .first_tile = plan.num_tiles, .num_tiles = 0, .first_source = plan.num_sources, .num_pages = 0};
  }
  PrefillPass& pass = plan.passes[plan.num_passes - 1];
  std::copy_n(lists.page_table + lists.kv_indptr[row], pages, plan.wide_sources + plan.num_sources);
  plan.num_sources += pages;
  pass.num_pages += pages;
  return pass.num_pages - pages;
}

void add_tiles(const PrefillTile& row, int32_t group, int32_t head_dim, PrefillPlan& plan) {
  const int64_t tile_rows = device_prefill_tile_rows(head_dim), packed_rows = int64_t{row.q_len} * group;
  // Of a tile's rows beyond the end, too (ops/cuda/divide.h).
  VAYU_CHECK((packed_rows + tile_rows) * group < int64_t{1} << 31, "{} tokens of {} heads", row.q_len, group);
  for (int64_t first = 0; first < packed_rows; first += tile_rows) {
    VAYU_CHECK(plan.num_tiles < plan.max_tiles, "more than {} tiles", plan.max_tiles);
    const auto last_token = static_cast<int32_t>((std::min(first + tile_rows, packed_rows) - 1) / group);
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

}  // namespace

void plan_device_prefill(const PrefillLists& lists, PrefillRows rows, int32_t group, int32_t head_dim,
                         PrefillPlan& plan) {
  plan.num_tiles = plan.num_sources = plan.num_passes = 0;
  for (int32_t row = 0; row < lists.num_rows; ++row) {
    const int32_t q_begin = lists.qo_indptr[row], q_len = lists.qo_indptr[row + 1] - q_begin;
    const int32_t kv_len = lists.kv_lens[row];
    if (q_len == 0 || kv_len == 0 || (q_len == 1 && rows == PrefillRows::kMultiToken)) continue;
    VAYU_CHECK(kv_len >= q_len, "row {}: {} tokens, {} of them cached", row, q_len, kv_len);
    const int32_t page_begin = plan.wide_capacity > 0 ? add_sources(lists, row, plan) : lists.kv_indptr[row];
    add_tiles({.q_begin = q_begin, .q_len = q_len, .kv_len = kv_len, .page_begin = page_begin, .row = row}, group,
              head_dim, plan);
    if (plan.num_passes > 0) {
      PrefillPass& pass = plan.passes[plan.num_passes - 1];
      pass.num_tiles = plan.num_tiles - pass.first_tile;
    }
  }
  if (plan.wide_capacity == 0) sort_heaviest_first(plan.tiles, plan.num_tiles);
  for (int32_t i = 0; i < plan.num_passes; ++i) {
    sort_heaviest_first(plan.tiles + plan.passes[i].first_tile, plan.passes[i].num_tiles);
  }
}

}  // namespace vayu::ops
