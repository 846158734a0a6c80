// One launcher a head dim and KV format, each in a .cu file of its own.
#pragma once

#include <cuda.h>

#include "ops/attention/device_prefill.h"

namespace vayu::ops {

struct PrefillParams {
  const Bf16* q;
  int64_t q_stride;
  Bf16* out;
  const uint8_t* pages;  // FP8; BF16 pages are read through the tensor map
  const int32_t* page_table;
  const PrefillTile* tiles;
  int32_t num_items;  // tiles times KV heads: item i is head i % num_kv_heads of tile i / num_kv_heads
  int32_t num_kv_heads;
  int32_t group;
  float scale_log2;  // scale * log2(e): the softmax is of powers of two
};

using PrefillLauncher = void(CudaStream, int32_t blocks, const PrefillParams&, const CUtensorMap&);
PrefillLauncher launch_prefill_d64_bf16, launch_prefill_d64_f8, launch_prefill_d128_bf16, launch_prefill_d128_f8;

}  // namespace vayu::ops
