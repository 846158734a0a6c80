#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/attention/device_prefill_kernels.h"
#include "ops/attention/device_widen.h"
#include "ops/cuda/divide.h"
#include "ops/cuda/tensor_map.h"

namespace vayu::ops {
namespace {

// A pass over BF16 pages; page_table may be null (see PrefillParams).
void launch_pass(CudaStream stream, const DevicePrefill& args, const void* pages, const int32_t* page_table,
                 const PrefillPass& pass) {
  const DeviceKvLayer& kv = args.kv;
  const PrefillParams params = {.q = args.q,
                                .q_stride = args.q_stride,
                                .out = args.out,
                                .page_table = page_table,
                                .items = args.items + pass.first_item,
                                .merges = args.merges + pass.first_merge,
                                .parts = args.parts,
                                .num_kv_heads = kv.num_kv_heads,
                                .group = args.num_q_heads / kv.num_kv_heads,
                                .group_reciprocal = reciprocal_of(args.num_q_heads / kv.num_kv_heads),
                                .scale_log2 = args.scale * static_cast<float>(M_LOG2E)};
  // A row is one token of K or V of one head; the number of pages is not known here, so the map has the largest number
  // of rows a coordinate can name.
  const CUtensorMap map =
      byte_rows_map(pages, std::numeric_limits<int32_t>::max(), int64_t{kv.head_dim} * 2, kv.page_size);
  (kv.head_dim == 128 ? launch_prefill_d128 : launch_prefill_d64)(stream, pass.num_blocks, params, map);
  if (pass.num_merges > 0) launch_prefill_merge(stream, pass.num_merges, kv.head_dim, params);
}

}  // namespace

void device_prefill_cuda(CudaStream stream, const DevicePrefill& args) {
  const DeviceKvLayer& kv = args.kv;
  if (args.num_passes == 0) return;
  VAYU_CHECK(kv.head_dim == 64 || kv.head_dim == 128, "head dim {}", kv.head_dim);
  VAYU_CHECK(kv.page_size == 16 && kv.latent_dim == 0, "page size {}, latent dim {}", kv.page_size, kv.latent_dim);
  VAYU_CHECK(args.num_q_heads % kv.num_kv_heads == 0, "{} heads on {}", args.num_q_heads, kv.num_kv_heads);
  VAYU_CHECK(args.q_stride % 8 == 0 && reinterpret_cast<uintptr_t>(args.q) % 16 == 0, "q not 16-byte aligned");
  VAYU_CHECK(args.scale > 0, "scale {}", args.scale);
  VAYU_CHECK(args.parts != nullptr && reinterpret_cast<uintptr_t>(args.parts) % 16 == 0, "no room for parts");
  if (kv.format == DeviceKvFormat::kBF16) {
    launch_pass(stream, args, kv.pages, args.batch.page_table, args.passes[0]);
    return;
  }
  VAYU_CHECK(args.wide_pages != nullptr, "FP8 pages without a scratch");
  for (int32_t i = 0; i < args.num_passes; ++i) {
    const PrefillPass& pass = args.passes[i];
    widen_pages_cuda(stream, {.from = static_cast<const F8E4M3*>(kv.pages),
                              .sources = args.wide_sources + pass.first_source,
                              .num_pages = pass.num_pages,
                              .page_elements = kv.page_elements(),
                              .to = args.wide_pages});
    launch_pass(stream, args, args.wide_pages, nullptr, pass);
  }
}

}  // namespace vayu::ops
