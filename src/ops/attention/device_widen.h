// FP8 KV pages widened to BF16: exact, every E4M3 value is a BF16 value, and NaN stays NaN.
#pragma once

#include <cstdint>

#include "ops/cuda/types.h"

namespace vayu::ops {

// to[i][e] = from[sources[i]][e] for pages i < num_pages of page_elements elements.
struct WidenPagesArgs {
  const F8E4M3* from = nullptr;      // pages, 16-byte aligned
  const int32_t* sources = nullptr;  // (num_pages), written before the step: read while the kernel before still runs
  int32_t num_pages = 0;
  int64_t page_elements = 0;  // a multiple of 16
  Bf16* to = nullptr;         // 16-byte aligned
};

void widen_pages_ref(const WidenPagesArgs& args);
void widen_pages_cuda(CudaStream stream, const WidenPagesArgs& args);

}  // namespace vayu::ops
