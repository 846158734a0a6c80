// One launcher a head dim, each in a .cu file of its own.
#pragma once

#include <cuda.h>

#include "ops/attention/device_prefill.h"

namespace vayu::ops {

struct PrefillParams {
  const Bf16* q;
  int64_t q_stride;
  Bf16* out;
  const int32_t* page_table;  // null: page i of the list is page i of the memory that the tensor map shows
  const PrefillTile* tiles;
  int32_t num_items;  // tiles times KV heads: item i is head i % num_kv_heads of tile i / num_kv_heads
  int32_t num_kv_heads;
  int32_t group;
  uint32_t kv_heads_reciprocal;  // for divide()
  uint32_t group_reciprocal;
  float scale_log2;  // scale * log2(e): the softmax is of powers of two
};

using PrefillLauncher = void(CudaStream, int32_t blocks, const PrefillParams&, const CUtensorMap&);
PrefillLauncher launch_prefill_d64, launch_prefill_d128;

}  // namespace vayu::ops
