#include "ops/gemm/device_gemm_kernel.cuh"

namespace vayu::ops {

void launch_gemm_f8(CudaStream stream, const GemmLaunch& launch) {
  launch_gemm<F8Products, ScalesAlongK::kNone>(stream, launch);
}

}  // namespace vayu::ops
