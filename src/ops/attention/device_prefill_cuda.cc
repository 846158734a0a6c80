#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/attention/device_prefill_kernels.h"
#include "ops/attention/device_widen.h"
#include "ops/cuda/divide.h"
#include "ops/cuda/num_sms.h"
#include "ops/cuda/tensor_map.h"

namespace vayu::ops {
namespace {

// Tiles over BF16 pages; page_table may be null (see PrefillParams).
void launch_tiles(CudaStream stream, const DevicePrefill& args, const void* pages, const int32_t* page_table,
                  const PrefillTile* tiles, int32_t num_tiles) {
  const DeviceKvLayer& kv = args.kv;
  const PrefillParams params = {.q = args.q,
                                .q_stride = args.q_stride,
                                .out = args.out,
                                .page_table = page_table,
                                .tiles = tiles,
                                .num_items = num_tiles * kv.num_kv_heads,
                                .num_kv_heads = kv.num_kv_heads,
                                .group = args.num_q_heads / kv.num_kv_heads,
                                .kv_heads_reciprocal = reciprocal_of(kv.num_kv_heads),
                                .group_reciprocal = reciprocal_of(args.num_q_heads / kv.num_kv_heads),
                                .scale_log2 = args.scale * static_cast<float>(M_LOG2E)};
  const int32_t blocks = std::min(params.num_items, num_sms());
  // A row is one token of K or V of one head; the number of pages is not known here, so the map has the largest number
  // of rows a coordinate can name.
  const CUtensorMap map =
      byte_rows_map(pages, std::numeric_limits<int32_t>::max(), int64_t{kv.head_dim} * 2, kv.page_size);
  (kv.head_dim == 128 ? launch_prefill_d128 : launch_prefill_d64)(stream, blocks, params, map);
}

}  // namespace

void device_prefill_cuda(CudaStream stream, const DevicePrefill& args) {
  const DeviceKvLayer& kv = args.kv;
  if (args.num_tiles == 0) return;
  VAYU_CHECK(kv.head_dim == 64 || kv.head_dim == 128, "head dim {}", kv.head_dim);
  VAYU_CHECK(kv.page_size == 16 && kv.latent_dim == 0, "page size {}, latent dim {}", kv.page_size, kv.latent_dim);
  VAYU_CHECK(args.num_q_heads % kv.num_kv_heads == 0, "{} heads on {}", args.num_q_heads, kv.num_kv_heads);
  VAYU_CHECK(args.q_stride % 8 == 0 && reinterpret_cast<uintptr_t>(args.q) % 16 == 0, "q not 16-byte aligned");
  VAYU_CHECK(args.scale > 0, "scale {}", args.scale);
  if (kv.format == DeviceKvFormat::kBF16) {
    launch_tiles(stream, args, kv.pages, args.batch.page_table, args.tiles, args.num_tiles);
    return;
  }
  VAYU_CHECK(args.wide_pages != nullptr && args.num_passes > 0, "FP8 pages without passes");
  for (int32_t i = 0; i < args.num_passes; ++i) {
    const PrefillPass& pass = args.passes[i];
    widen_pages_cuda(stream, {.from = static_cast<const F8E4M3*>(kv.pages),
                              .sources = args.wide_sources + pass.first_source,
                              .num_pages = pass.num_pages,
                              .page_elements = kv.page_elements(),
                              .to = args.wide_pages});
    launch_tiles(stream, args, args.wide_pages, nullptr, args.tiles + pass.first_tile, pass.num_tiles);
  }
}

}  // namespace vayu::ops
