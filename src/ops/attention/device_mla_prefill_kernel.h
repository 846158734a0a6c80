// What device_mla_prefill_cuda.cc passes to device_mla_prefill.cu.
#pragma once

#include <cuda.h>

#include "ops/attention/device_mla_prefill.h"

namespace vayu::ops {

struct MlaPrefillParams {
  const MlaPrefillItem* items;  // of the pass
  Bf16* out;
  int32_t num_heads;
  float scale_log2;  // scale * log2(e): the softmax is of powers of two
};

// Boxes of 64 elements: 64 rows of the queries, 128 of the keys and values and of the rotated key.
struct MlaPrefillMaps {
  CUtensorMap q, kv, rope;
};

void launch_mla_prefill(CudaStream stream, int32_t num_blocks, const MlaPrefillParams& params,
                        const MlaPrefillMaps& maps);

}  // namespace vayu::ops
