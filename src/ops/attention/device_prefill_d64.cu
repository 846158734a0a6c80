#include "ops/attention/device_prefill_sm90.cuh"

namespace vayu::ops {

void launch_prefill_d64(CudaStream stream, int32_t blocks, int32_t variant, const PrefillParams& params,
                        const CUtensorMap& map) {
  switch (variant) {
    case 1:
      return launch_prefill<64, 1>(stream, blocks, params, map);
    case 2:
      return launch_prefill<64, 2>(stream, blocks, params, map);
    case 3:
      return launch_prefill<64, 3>(stream, blocks, params, map);
    case 4:
      return launch_prefill<64, 4>(stream, blocks, params, map);
    case 5:
      return launch_prefill<64, 5>(stream, blocks, params, map);
    case 6:
      return launch_prefill<64, 6>(stream, blocks, params, map);
    case 7:
      return launch_prefill<64, 7>(stream, blocks, params, map);
    default:
      return launch_prefill<64, 0>(stream, blocks, params, map);
  }
}

}  // namespace vayu::ops
