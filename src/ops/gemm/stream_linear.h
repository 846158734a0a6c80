// y = x W^T for few rows of x (decode): bound by reading W once. For more rows: device_gemm.h.
#pragma once

#include <cstdint>

#include "ops/cuda/types.h"

namespace vayu::ops {

// How the SMs share the weights (stream_linear_forms.h); kAuto takes what was measured to be fastest.
enum class StreamLinearForm : uint8_t { kAuto, kLine, kPairs };

struct StreamLinearArgs {
  DeviceMatrix weight;  // (rows, cols); BF16, or FP8 with any scale
  ActRows x;            // (num_rows, cols): BF16 for BF16 weights, else FP8
  int32_t num_rows = 0;
  Bf16* y = nullptr;          // (num_rows, weight.rows), or
  float* y_float = nullptr;   // the same in float (logits); exactly one of the two is set
  void* workspace = nullptr;  // stream_linear_workspace_bytes, zeroed once; every launch leaves its counters zeroed
  StreamLinearForm form = StreamLinearForm::kAuto;
};

constexpr int32_t kStreamLinearMaxRows = 64;
constexpr int32_t kStreamLinearMaxTiles = 8192;  // of 128 weight rows
int64_t stream_linear_workspace_bytes();
bool stream_linear_fits(const StreamLinearArgs& args);

void stream_linear_ref(const StreamLinearArgs& args);  // pointers to host memory
void stream_linear_cuda(CudaStream stream, const StreamLinearArgs& args);

}  // namespace vayu::ops
