#include <algorithm>

#include "base/check.h"
#include "ops/attention/device_prefill.h"

namespace vayu::ops {

// Three warpgroups of 64 rows at head dim 64, two at 128, where the accumulators need twice the registers.
int32_t device_prefill_tile_rows(int32_t head_dim) { return head_dim == 64 ? 192 : 128; }

int64_t max_device_prefill_tiles(int64_t num_tokens, int64_t num_rows, int32_t group, int32_t head_dim) {
  return num_tokens * group / device_prefill_tile_rows(head_dim) + num_rows;
}

int32_t plan_device_prefill(const PrefillLists& lists, PrefillRows rows, int32_t group, int32_t head_dim,
                            PrefillTile* tiles, int64_t max_tiles) {
  const int64_t tile_rows = device_prefill_tile_rows(head_dim);
  int32_t count = 0;
  for (int32_t row = 0; row < lists.num_rows; ++row) {
    const int32_t q_begin = lists.qo_indptr[row], q_len = lists.qo_indptr[row + 1] - q_begin;
    const int32_t kv_len = lists.kv_lens[row];
    if (q_len == 0 || kv_len == 0 || (q_len == 1 && rows == PrefillRows::kMultiToken)) continue;
    VAYU_CHECK(kv_len >= q_len, "row {}: {} tokens, {} of them cached", row, q_len, kv_len);
    const int64_t packed_rows = int64_t{q_len} * group;
    for (int64_t first = 0; first < packed_rows; first += tile_rows) {
      VAYU_CHECK(count < max_tiles, "more than {} tiles", max_tiles);
      const auto last_token = static_cast<int32_t>((std::min(first + tile_rows, packed_rows) - 1) / group);
      tiles[count++] = {.q_begin = q_begin,
                        .q_len = q_len,
                        .kv_len = kv_len,
                        .page_begin = lists.kv_indptr[row],
                        .first = static_cast<int32_t>(first),
                        .num_keys = kv_len - q_len + last_token + 1,
                        .row = row,
                        .unused = 0};
    }
  }
  std::sort(tiles, tiles + count, [](const PrefillTile& a, const PrefillTile& b) {
    if (a.num_keys != b.num_keys) return a.num_keys > b.num_keys;
    return a.row != b.row ? a.row < b.row : a.first < b.first;
  });
  return count;
}

}  // namespace vayu::ops
