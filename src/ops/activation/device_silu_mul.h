// SwiGLU of a gate-up product in device memory: y = silu(gate) * up, silu(v) = v / (1 + exp(-v)), in float. Columns are
// interleaved as in a gate-up DeviceMatrix: columns [128 b, 128 b + 64) are gates [64 b, 64 b + 64), the 64 behind them
// the ups of the same outputs.
#pragma once

#include "ops/cuda/types.h"

namespace vayu::ops {

struct DeviceSiluMulArgs {
  const Bf16* gate_up = nullptr;  // (num_rows, 2 * y.cols)
  int64_t num_rows = 0;
  ActRows y;  // (num_rows, ffn): BF16 (ffn a multiple of 64), or FP8 with scale_group 128 (ffn a multiple of 128)
};

void device_silu_mul_ref(const DeviceSiluMulArgs& args);  // host pointers
void device_silu_mul_cuda(CudaStream stream, const DeviceSiluMulArgs& args);

}  // namespace vayu::ops
