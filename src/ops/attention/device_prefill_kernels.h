// One launcher a head dim, each in a .cu file of its own; and that of the parts.
#pragma once

#include <cuda.h>

#include "ops/attention/device_prefill.h"

namespace vayu::ops {

struct PrefillParams {
  const Bf16* q;
  int64_t q_stride;
  Bf16* out;
  const int32_t* page_table;   // null: page i of the list is page i of the memory that the tensor map shows
  const PrefillItem* items;    // of the pass
  const PrefillMerge* merges;  // of the pass
  float* parts;
  int32_t num_kv_heads;
  int32_t group;
  uint32_t group_reciprocal;  // for divide()
  float scale_log2;           // scale * log2(e): the softmax is of powers of two
};

using PrefillLauncher = void(CudaStream, int32_t blocks, const PrefillParams&, const CUtensorMap&);
PrefillLauncher launch_prefill_d64, launch_prefill_d128;
void launch_prefill_merge(CudaStream stream, int32_t num_merges, int32_t head_dim, const PrefillParams& params);

}  // namespace vayu::ops
