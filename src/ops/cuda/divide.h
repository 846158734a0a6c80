// Division by a number that is known at launch alone, by one multiplication: the instructions a compiler makes of n / d
// are some 22. No CUDA header: host code makes the reciprocals and a CPU test checks them.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define VAYU_DIVIDE_SIDES __host__ __device__ __forceinline__
#else
#define VAYU_DIVIDE_SIDES inline
#endif

namespace vayu::ops {

// d >= 1.
VAYU_DIVIDE_SIDES uint32_t reciprocal_of(int32_t d) { return (uint32_t{1} << 31) / static_cast<uint32_t>(d) + 1; }

// n / d for n >= 0, n * d < 2^31: the reciprocal is (2^31 + e) / d with 0 < e <= d, so the product exceeds n / d by
// n e / (d 2^31) <= n / 2^31 < 1 / d.
VAYU_DIVIDE_SIDES int32_t divide(int32_t n, uint32_t reciprocal) {
  return static_cast<int32_t>(static_cast<uint64_t>(static_cast<uint32_t>(n)) * reciprocal >> 31);
}

}  // namespace vayu::ops
