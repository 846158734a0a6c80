// The parts of tiles that were split over their keys, added up: for a row with parts i, of base b_i (a logit), sum of
// weights s_i and sum of values o_i,
//   out = sum_i w_i o_i / sum_i w_i s_i,  w_i = exp(scale (b_i - max_j b_j)).
// A row without a logit above -inf is 0 / 0 by w_i = exp(-inf + inf), as in one piece, and a NaN in a part stays one.
//
// A thread has 4 dimensions of a row; 16 threads are a row of 64, 32 one of 128. Parts were written by the kernel
// before and lie in the second-level cache: 512 tokens of 3,584 are some 200 parts of 50 KB, 10 MB or 2 us, most of it
// the chain of the item, the bases and the sums. The item is read before the kernel before has ended.
#include "ops/attention/device_prefill_kernels.h"
#include "ops/cuda/divide.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/require.h"
#include "ops/cuda/vector.cuh"

namespace vayu::ops {
namespace {

constexpr int kThreads = 256;

template <int kDim>
__global__ void __launch_bounds__(kThreads) merge_kernel(const PrefillParams params) {
  constexpr int kRowThreads = kDim / 4, kRows = kThreads / kRowThreads;
  constexpr int kTileRows = kPrefillTileRows<kDim>, kChunks = kTileRows / kRows;
  constexpr int64_t kPartFloats = kPrefillPartFloats<kDim>;
  const int row = blockIdx.x % kChunks * kRows + threadIdx.x / kRowThreads, lane = threadIdx.x % kRowThreads;
  const PrefillMerge merge = params.merges[blockIdx.x / kChunks];
  const PrefillItem item = params.items[merge.item];
  const int token = divide(item.first + row, params.group_reciprocal);
  const float* sums = params.parts + item.part * kPartFloats + row * kDim + lane * 4;
  const float* scales = params.parts + item.part * kPartFloats + kTileRows * kDim + row * 2;
  let_next_start();
  wait_for_inputs();
  if (token >= item.q_len) return;
  float top = __int_as_float(0xff800000);
#pragma unroll 4
  for (int i = 0; i < merge.num_parts; ++i) top = fmaxf(top, scales[i * kPartFloats]);
  float total = 0;
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
  for (int i = 0; i < merge.num_parts; ++i) {
    const float2 scale = *reinterpret_cast<const float2*>(scales + i * kPartFloats);
    const float4 part = *reinterpret_cast<const float4*>(sums + i * kPartFloats);
    const float weight = exp2f((scale.x - top) * params.scale_log2);
    total += weight * scale.y;
    sum.x += weight * part.x;
    sum.y += weight * part.y;
    sum.z += weight * part.z;
    sum.w += weight * part.w;
  }
  const float inverse = 1.0f / total;
  const int64_t q_row = int64_t{item.q_begin + token} * params.num_kv_heads * params.group + item.head * params.group +
                        (item.first + row - token * params.group);
  *reinterpret_cast<uint2*>(params.out + q_row * kDim + lane * 4) =
      make_uint2(pack_bf16x2(sum.x * inverse, sum.y * inverse), pack_bf16x2(sum.z * inverse, sum.w * inverse));
}

}  // namespace

void launch_prefill_merge(CudaStream stream, int32_t num_merges, int32_t head_dim, const PrefillParams& params) {
  VAYU_REQUIRE(head_dim == 64 || head_dim == 128, "the head dims of the prompt kernel");
  const int32_t tile_rows = device_prefill_tile_rows(head_dim), rows = kThreads / (head_dim / 4);
  launch_overlapped(head_dim == 64 ? merge_kernel<64> : merge_kernel<128>,
                    {.grid = dim3(num_merges * (tile_rows / rows)), .block = dim3(kThreads)}, stream, params);
}

}  // namespace vayu::ops
