// What the kernels that stream weights share: a ring of stages in shared memory, and the product of one stage.
#pragma once

#include "ops/cuda/sm90.cuh"
#include "ops/cuda/wgmma.cuh"

namespace vayu::ops {

// A place in a ring and the parity of the barriers there.
struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance(int size) {
    if (++stage == size) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// d (64 weight rows, kWidth rows of x) (+)= 32 bytes of depth.
template <int kElementBytes, int kWidth>
__device__ __forceinline__ void multiply(float (&d)[kWidth / 2], uint64_t a, uint64_t b, int accumulate) {
  if constexpr (kElementBytes == 1) {
    WgmmaF8<kWidth>::run(d, a, b, accumulate);
  } else {
    WgmmaBf16<kWidth>::run(d, a, b, accumulate);
  }
}

}  // namespace vayu::ops
