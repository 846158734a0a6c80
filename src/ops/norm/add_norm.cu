// add_norm on the device: see add_norm_kernel.cuh. Bytes a row at hidden 4096: 8 KiB of residual and 8 of delta read, 8
// and 4 (FP8) or 8 (BF16) written, and 16 of weight from the first-level cache.
#include "ops/norm/add_norm_kernel.cuh"

namespace vayu::ops {

void add_norm_cuda(CudaStream stream, const AddNormArgs& args) {
  VAYU_REQUIRE(args.num_rows == 0 || args.weight, "no weight");
  launch_add_norm<false>(stream, args, ExpertRows{});
}

}  // namespace vayu::ops
