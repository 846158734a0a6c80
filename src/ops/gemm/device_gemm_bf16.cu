#include "ops/gemm/device_gemm_kernel.cuh"

namespace vayu::ops {

void launch_gemm_bf16(CudaStream stream, const GemmLaunch& launch) {
  launch_gemm<Bf16Products, ScalesAlongK::kNone>(stream, launch);
}

}  // namespace vayu::ops
