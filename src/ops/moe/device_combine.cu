// combine_add_norm on the device: see ops/norm/add_norm_kernel.cuh. Bytes a token at hidden 4096 and top 6: 48 KiB of
// experts' rows, 8 of the shared expert's and 8 of residual read, 8 and 4 (FP8) or 8 (BF16) written.
#include "ops/moe/device_combine.h"

#include "ops/norm/add_norm_kernel.cuh"

namespace vayu::ops {

void combine_add_norm_cuda(CudaStream stream, const CombineAddNormArgs& args) {
  if (args.norm.num_rows == 0) return;
  VAYU_REQUIRE(args.expert_out && args.pair_position && args.weights && args.top_k > 0 && args.top_k <= kCombineMaxTopK,
               "null pointer or top_k");
  VAYU_REQUIRE(args.norm.weight || !args.norm.row_ids, "rows picked for nothing");
  launch_add_norm<true>(stream, args.norm, ExpertRows{args.expert_out, args.pair_position, args.weights, args.top_k});
}

}  // namespace vayu::ops
