// Reads memory from one end to the other: what it leaves in the second-level cache is clean, so that a kernel timed
// behind it pays neither for hits nor for writing back somebody else's lines; also the measure of read bandwidth.
#pragma once

#include <cstdint>

#include "ops/cuda/types.h"

namespace vayu::ops {

void read_memory_cuda(CudaStream stream, const void* data, int64_t bytes);

}  // namespace vayu::ops
