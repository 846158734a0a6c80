// device_rope_kv_write: see device_rope_math.cuh. At 64 + 4 + 4 heads of 64 a token is 9 warps of 8 heads (288 threads,
// two 16-byte loads each). Bytes a token there: 9 KiB read, 8 KiB of Q and 1 KiB (BF16) of K and V written; 15.6 us for
// 3,584 tokens at 4.25 TB/s. A table of turns would add 256 bytes a token and 33 MB for 131,072 positions to save about
// 40 instructions in one warp of nine, so there is none.
#include "ops/rope/device_rope.h"

#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/require.h"
#include "ops/rope/device_rope_math.cuh"

namespace vayu::ops {
namespace {

__device__ __forceinline__ void norm_slice(float (&near)[8], float (&far)[8], const HeadSlice& slice,
                                           const float* weight, float scale) {
  float w[8];
  load_float8(weight + slice.near, w);
#pragma unroll
  for (int e = 0; e < 8; ++e) near[e] *= scale * w[e];
  load_float8(weight + slice.far, w);
#pragma unroll
  for (int e = 0; e < 8; ++e) far[e] *= scale * w[e];
}

__device__ __forceinline__ float sum_over_head(float v, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

template <bool kInterleaved>
__global__ void __launch_bounds__(kMaxRopeWarps * 32, 4)
    rope_kernel(DeviceRopeKvWriteArgs args, HeadShape shape, int64_t page_elements) {
  __shared__ __align__(16) float2 turns[kMaxRotatedDim / 2];
  const int rotated_heads = args.num_q_heads + args.kv.num_kv_heads;
  const int num_heads = rotated_heads + args.kv.num_kv_heads;
  const int lane = static_cast<int>(threadIdx.x) % shape.lanes;
  const int heads_a_pass = static_cast<int>(blockDim.x) / shape.lanes;
  const HeadSlice slice = head_slice<kInterleaved>(lane, shape.head_dim, args.rotation.rotary_dim);
  const bool holds = lane * 16 < shape.head_dim;
  let_next_start();  // attention fetches settled keys meanwhile
  wait_for_inputs();

  const int64_t token = blockIdx.x;
  Bf16* const row = args.qkv + token * num_heads * shape.head_dim;
  const int32_t slot = args.slot_mapping[token];
  bool filled = false;
  // Whole warps stay in the loop together, for the shuffles: every warp passes the same number of times.
  for (int first = 0; first < num_heads; first += heads_a_pass) {
    const int head = first + static_cast<int>(threadIdx.x) / shape.lanes;
    const bool mine = holds && head < num_heads;
    Bf16* const x = row + head * shape.head_dim;
    HeadVectors loaded;
    if (mine) loaded = load_head(x, slice);
    if (!filled) {
      fill_turns(turns, args.rotation, shape.head_dim, args.positions[token]);
      __syncthreads();
      filled = true;
    }
    float near[8], far[8];
    unpack_bf16x8(loaded.near, near);
    unpack_bf16x8(loaded.far, far);
    float squares = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) squares = fmaf(near[e], near[e], fmaf(far[e], far[e], squares));
    squares = sum_over_head(squares, shape.lanes);
    if (!mine) continue;
    if (head < rotated_heads) {
      const float* weight = head < args.num_q_heads ? args.q_norm : args.k_norm;
      if (weight) norm_slice(near, far, slice, weight, norm_scale(squares, shape.head_dim, args.norm_eps));
      rotate_slice<kInterleaved>(near, far, slice, turns);
    }
    if (head < args.num_q_heads) {
      store_bf16x8(x + slice.near, near);
      store_bf16x8(x + slice.far, far);
    } else if (slot >= 0) {
      const int is_v = head >= rotated_heads;
      const int kv_head = head - (is_v ? rotated_heads : args.num_q_heads);
      const int page = slot / args.kv.page_size;
      const int line = (kv_head * 2 + is_v) * args.kv.page_size + slot - page * args.kv.page_size;
      const int64_t at = page * page_elements + line * shape.head_dim;
      store_kv8(args.kv, at + slice.near, near);
      store_kv8(args.kv, at + slice.far, far);
    }
  }
}

}  // namespace

void device_rope_kv_write_cuda(CudaStream stream, const DeviceRopeKvWriteArgs& args) {
  if (args.num_tokens == 0) return;
  const DeviceKvLayer& kv = args.kv;
  const DeviceRotation& rotation = args.rotation;
  const bool interleaved = rotation.pairing == RopePairing::kInterleaved;
  VAYU_REQUIRE(args.qkv && args.positions && args.slot_mapping && kv.pages, "null pointer");
  VAYU_REQUIRE(args.num_q_heads > 0 && kv.num_kv_heads > 0 && kv.page_size > 0 && kv.latent_dim == 0, "heads");
  VAYU_REQUIRE(kv.head_dim > 0 && kv.head_dim % 16 == 0 && kv.head_dim <= kMaxRotatedDim, "head_dim");
  VAYU_REQUIRE(rotation.rotary_dim >= 0 && rotation.rotary_dim <= kv.head_dim, "rotary_dim");
  VAYU_REQUIRE(rotation.rotary_dim % (interleaved ? 2 : kHalfSplitUnit) == 0, "rotary_dim");
  VAYU_REQUIRE(rotation.rotary_dim == 0 || rotation.inv_freq, "no inv_freq");
  const HeadShape shape = head_shape(kv.head_dim);
  const int num_heads = args.num_q_heads + 2 * kv.num_kv_heads;
  const int warps = std::min((num_heads * shape.lanes + 31) / 32, kMaxRopeWarps);
  launch_overlapped(interleaved ? rope_kernel<true> : rope_kernel<false>,
                    {.grid = dim3(static_cast<unsigned>(args.num_tokens)), .block = dim3(warps * 32u)}, stream, args,
                    shape, kv.page_elements());
}

}  // namespace vayu::ops
