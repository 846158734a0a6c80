// The part of stream_linear_cuda for matrices with enough rows to give every SM tiles of whole depth.
#pragma once

#include "ops/gemm/stream_linear.h"

namespace vayu::ops {

bool stream_linear_is_tall(const StreamLinearArgs& args);
void stream_linear_tall_cuda(CudaStream stream, const StreamLinearArgs& args);

}  // namespace vayu::ops
