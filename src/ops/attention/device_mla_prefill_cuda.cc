#include <cmath>

#include "base/check.h"
#include "ops/attention/device_mla_prefill_kernel.h"
#include "ops/cuda/tensor_map.h"

namespace vayu::ops {

void device_mla_prefill_cuda(CudaStream stream, const DeviceMlaPrefill& args) {
  if (args.num_blocks == 0) return;
  VAYU_CHECK(args.num_heads >= 1 && args.scale > 0, "{} heads, scale {}", args.num_heads, args.scale);
  VAYU_CHECK(args.q_stride % 8 == 0 && reinterpret_cast<uintptr_t>(args.q) % 16 == 0, "q not 16-byte aligned");
  const int64_t head_bytes = kMlaPrefillNope * int64_t{sizeof(Bf16)};
  static_assert(kMlaPrefillNope == kMlaPrefillValue);
  const MlaPrefillParams params = {.items = args.items,
                                   .out = args.out,
                                   .num_heads = args.num_heads,
                                   .scale_log2 = args.scale * static_cast<float>(M_LOG2E)};
  const MlaPrefillMaps maps = {
      .q = byte_rows_map(args.q, args.num_tokens, args.q_stride * int64_t{sizeof(Bf16)}, 64),
      .kv = byte_rows_map(args.kv, args.num_context, 2 * args.num_heads * head_bytes, kPrefillBlockKeys),
      .rope = byte_rows_map(args.rope, args.num_context, kMlaPrefillRope * int64_t{sizeof(Bf16)}, kPrefillBlockKeys)};
  launch_mla_prefill(stream, args.num_blocks, params, maps);
}

}  // namespace vayu::ops
