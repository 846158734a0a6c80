#include "ops/attention/device_prefill_sm90.cuh"

namespace vayu::ops {

void launch_prefill_d128(CudaStream stream, int32_t blocks, const PrefillParams& params, const CUtensorMap& map) {
  launch_prefill<128>(stream, blocks, params, map);
}

}  // namespace vayu::ops
