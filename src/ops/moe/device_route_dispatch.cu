// Checks, and which of the two router kernels runs.
#include "ops/cuda/require.h"
#include "ops/moe/device_route.cuh"

namespace vayu::ops {

void device_route_cuda(CudaStream stream, const DeviceRouteArgs& args) {
  const RouterShape& shape = args.shape;
  VAYU_REQUIRE(shape.hidden > 0 && shape.hidden % kRouteChunk == 0, "hidden is a multiple of 64");
  VAYU_REQUIRE(shape.num_experts > 0 && shape.num_experts <= kRouteMaxExperts, "1 to 256 experts");
  VAYU_REQUIRE(shape.top_k > 0 && shape.top_k <= kRouteMaxTopK && shape.top_k <= shape.num_experts,
               "1 to 16 chosen, of those there are");
  VAYU_REQUIRE(shape.num_groups > 0 && shape.num_groups <= kRouteMaxGroups &&
                   shape.num_experts % shape.num_groups == 0 && shape.groups_kept <= shape.num_groups,
               "1 to 32 groups of equal size");
  VAYU_REQUIRE(args.num_tokens >= 0 && args.num_tokens <= kRouteMaxTokens, "0 to 65,536 tokens");
  if (route_small_fits(args)) {
    launch_route_small(stream, args);
  } else {
    launch_route_large(stream, args);
  }
}

}  // namespace vayu::ops
