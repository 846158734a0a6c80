// Latents of some pages as contiguous rows of BF16, so that one product expands them into the keys and values of every
// head (the expanded form of latent attention). FP8 becomes BF16 exactly; NaN stays NaN.
#pragma once

#include <cstdint>

#include "ops/cuda/types.h"

namespace vayu::ops {

// Slot s of page sources[i] becomes row r = 16 i + s: latents[r] its first latent_dim elements, rope[r] the others.
// Whole pages, whatever their slots hold.
struct MlaGatherArgs {
  DeviceKvLayer kv;                  // pages of 16; latent_dim and head_dim multiples of 8
  const int32_t* sources = nullptr;  // (num_pages), written before the step: read while the kernel before still runs
  int32_t num_pages = 0;
  Bf16* latents = nullptr;  // (16 num_pages, latent_dim), 16-byte aligned, like rope
  Bf16* rope = nullptr;     // (16 num_pages, head_dim - latent_dim)
};

void mla_gather_ref(const MlaGatherArgs& args);  // host pointers
void mla_gather_cuda(CudaStream stream, const MlaGatherArgs& args);

}  // namespace vayu::ops
