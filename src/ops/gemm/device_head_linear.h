// A linear a head: y[t, h, o] = sum over i of x[t, h, i] W[h, o, i], rounded to BF16 from float sums. What the absorbed
// form of multi-head latent attention puts before and behind the attention (DeepSeek-V2, 2024, section 2.1).
#pragma once

#include <cstdint>

#include "ops/cuda/types.h"

namespace vayu::ops {

// Heads and tokens lie at strides, so that parts of wider rows can be read and written. Strides count elements and are
// multiples of 8; x, y and weight are 16-byte aligned. NaN or infinity in a row of x shows in that row of y alone.
struct DeviceHeadLinearArgs {
  const Bf16* weight = nullptr;  // (num_heads, out, in), constant: read before earlier kernels end
  const Bf16* x = nullptr;       // x[t, h, i] at t * x_stride + h * x_head_stride + i
  int64_t x_stride = 0;
  int64_t x_head_stride = 0;
  Bf16* y = nullptr;  // y[t, h, o] at t * y_stride + h * y_head_stride + o; what lies between is not touched
  int64_t y_stride = 0;
  int64_t y_head_stride = 0;
  int32_t num_heads = 0;
  int32_t in = 0;   // a multiple of 16, at most 512
  int32_t out = 0;  // a multiple of 16, at most 512
  int32_t num_tokens = 0;
};

constexpr int32_t kHeadLinearMaxDim = 512;

void device_head_linear_ref(const DeviceHeadLinearArgs& args);  // host pointers
void device_head_linear_cuda(CudaStream stream, const DeviceHeadLinearArgs& args);

}  // namespace vayu::ops
