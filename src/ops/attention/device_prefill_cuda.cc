#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/attention/device_prefill_kernels.h"
#include "ops/cuda/tensor_map.h"

namespace vayu::ops {
namespace {

int32_t num_sms() {
  static const int32_t count = [] {
    int device = 0, sms = 0;
    VAYU_CHECK(cudaGetDevice(&device) == cudaSuccess, "no current device");
    VAYU_CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) == cudaSuccess, "SM count");
    return sms;
  }();
  return count;
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
  const PrefillParams params = {.q = args.q,
                                .q_stride = args.q_stride,
                                .out = args.out,
                                .pages = static_cast<const uint8_t*>(kv.pages),
                                .page_table = args.batch.page_table,
                                .tiles = args.tiles,
                                .num_items = args.num_tiles * kv.num_kv_heads,
                                .num_kv_heads = kv.num_kv_heads,
                                .group = args.num_q_heads / kv.num_kv_heads,
                                .scale_log2 = args.scale * static_cast<float>(M_LOG2E)};
  const int32_t blocks = std::min(params.num_items, num_sms());
  const bool wide = kv.head_dim == 128;
  CUtensorMap map = {};
  if (kv.format == DeviceKvFormat::kBF16) {
    // A row is one token of K or V of one head; the number of pages is not known here, so the map has the largest
    // number of rows a coordinate can name.
    map = byte_rows_map(kv.pages, std::numeric_limits<int32_t>::max(), int64_t{kv.head_dim} * 2, kv.page_size);
    (wide ? launch_prefill_d128_bf16 : launch_prefill_d64_bf16)(stream, blocks, params, map);
  } else {
    (wide ? launch_prefill_d128_f8 : launch_prefill_d64_f8)(stream, blocks, params, map);
  }
}

}  // namespace vayu::ops
