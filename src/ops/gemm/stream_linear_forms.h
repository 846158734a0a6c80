// The forms of stream_linear: how the SMs share a matrix. Each writes the same result up to the order of the sums.
#pragma once

#include "ops/gemm/stream_linear.h"

namespace vayu::ops {

// Whole weight rows a block, read by mma: FP8 with one scale a row, at most 8 rows of x, at most 4096 inputs.
bool owned_linear_fits(const StreamLinearArgs& args);
void owned_linear_cuda(CudaStream stream, const StreamLinearArgs& args);

// Clusters of `blocks` (2 or 4) along the depth. Not for scales along the depth. `fills`: all clusters are resident at
// once and leave few SMs idle.
bool cluster_linear_fits(const StreamLinearArgs& args);
bool cluster_linear_fills(const StreamLinearArgs& args, int32_t blocks);
void cluster_linear_cuda(CudaStream stream, const StreamLinearArgs& args, int32_t blocks);

}  // namespace vayu::ops
