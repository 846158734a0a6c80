#include "ops/attention/device_prefill_sm90.cuh"

namespace vayu::ops {

void launch_prefill_d64_f8(CudaStream stream, int32_t blocks, const PrefillParams& params, const CUtensorMap& map) {
  launch_prefill<64, true>(stream, blocks, params, map);
}

}  // namespace vayu::ops
