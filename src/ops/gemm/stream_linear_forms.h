// The forms of stream_linear: how the SMs share a matrix. Each writes the same result up to the order of the sums.
#pragma once

#include "ops/gemm/stream_linear.h"

namespace vayu::ops {

// Pairs of blocks, each with half of the depth. Not for scales along the depth. `fills`: all pairs are resident at once
// and leave few SMs idle.
bool pair_linear_fits(const StreamLinearArgs& args);
bool pair_linear_fills(const StreamLinearArgs& args);
void pair_linear_cuda(CudaStream stream, const StreamLinearArgs& args);

}  // namespace vayu::ops
