#include "ops/attention/device_prefill_sm90.cuh"

namespace vayu::ops {

void launch_prefill_d128(CudaStream stream, int32_t blocks, int32_t variant, const PrefillParams& params,
                         const CUtensorMap& map) {
  variant == 4 ? launch_prefill<128, 4>(stream, blocks, params, map)
               : launch_prefill<128, 0>(stream, blocks, params, map);
}

}  // namespace vayu::ops
