// device_mla_rope_kv_write and mla_split_queries: see device_rope_math.cuh. A block takes a token: the rotary parts of
// the heads and the shared key, 16 elements a thread (64 + 1 parts of 64: 9 warps), and one more warp for the latent.
// Bytes a token at 64 heads: 9.2 KiB read, 9.1 KiB written.
#include "ops/rope/device_rope_mla.h"

#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/require.h"
#include "ops/rope/device_rope_math.cuh"

namespace vayu::ops {
namespace {

// The latent belongs to one warp, which reads it twice (from the first-level cache the second time).
__device__ __forceinline__ float latent_scale(const DeviceMlaRopeKvWriteArgs& args, const Bf16* latent) {
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x % 32) * 8; i < args.kv.latent_dim; i += 256) {
    float x[8];
    load_bf16x8(latent + i, x);
#pragma unroll
    for (int e = 0; e < 8; ++e) squares = fmaf(x[e], x[e], squares);
  }
  return norm_scale(warp_sum(squares), args.kv.latent_dim, args.norm_eps);
}
__device__ __forceinline__ void write_latent(const DeviceMlaRopeKvWriteArgs& args, const Bf16* latent, int32_t slot,
                                             float scale) {
  for (int i = static_cast<int>(threadIdx.x % 32) * 8; i < args.kv.latent_dim; i += 256) {
    float x[8], w[8];
    load_bf16x8(latent + i, x);
    load_float8(args.latent_norm + i, w);
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] *= scale * w[e];
    store_kv8(args.kv, int64_t{slot} * args.kv.head_dim + i, x);
  }
}

// `part`: a head, or the number of heads for the shared key.
__device__ __forceinline__ Bf16* rotated_part(const DeviceMlaRopeKvWriteArgs& args, Bf16* row, int part) {
  const int q_dim = args.nope_dim + args.rotation.rotary_dim;
  return row + part * q_dim + (part < args.num_heads ? args.nope_dim : args.kv.latent_dim);
}

template <bool kInterleaved>
__device__ __forceinline__ void rotate_part(const DeviceMlaRopeKvWriteArgs& args, const HeadVectors& loaded, Bf16* x,
                                            int part, const HeadSlice& slice, const float2* turns, int32_t slot) {
  float near[8], far[8];
  unpack_bf16x8(loaded.near, near);
  unpack_bf16x8(loaded.far, far);
  rotate_slice<kInterleaved>(near, far, slice, turns);
  if (part == args.num_heads) {
    if (slot < 0) return;
    const int64_t at = int64_t{slot} * args.kv.head_dim + args.kv.latent_dim;
    store_kv8(args.kv, at + slice.near, near);
    store_kv8(args.kv, at + slice.far, far);
    return;
  }
  store_bf16x8(x + slice.near, near);
  store_bf16x8(x + slice.far, far);
  if (!args.q_latent) return;
  const int64_t head = int64_t{blockIdx.x} * args.num_heads + part;
  Bf16* const copy = args.q_latent + head * args.kv.head_dim + args.kv.latent_dim;
  store_bf16x8(copy + slice.near, near);
  store_bf16x8(copy + slice.far, far);
}

// The last warp has the latent; the threads before it share the rotated parts, the first of which is loaded before the
// block waits for the turns.
template <bool kInterleaved>
__global__ void __launch_bounds__((kMaxRopeWarps + 1) * 32, 3)
    mla_kernel(DeviceMlaRopeKvWriteArgs args, HeadShape shape) {
  __shared__ __align__(16) float2 turns[kMaxRotatedDim / 2];
  const int thread = static_cast<int>(threadIdx.x), workers = static_cast<int>(blockDim.x) - 32;
  const int lane = thread % shape.lanes;
  const HeadSlice slice = head_slice<kInterleaved>(lane, shape.head_dim, shape.head_dim);
  const int heads_dim = args.num_heads * (args.nope_dim + args.rotation.rotary_dim);
  const bool is_worker = thread < workers;
  let_next_start();
  wait_for_inputs();

  const int32_t slot = args.slot_mapping[blockIdx.x];
  Bf16* const row = args.q_kv + int64_t{blockIdx.x} * (heads_dim + args.kv.head_dim);
  const bool holds = is_worker && lane * 16 < shape.head_dim;
  int part = thread / shape.lanes;
  HeadVectors loaded;
  if (holds && part <= args.num_heads) loaded = load_head(rotated_part(args, row, part), slice);
  const float scale = is_worker ? 0.0f : latent_scale(args, row + heads_dim);
  fill_turns(turns, args.rotation, shape.head_dim, args.positions[blockIdx.x]);
  __syncthreads();
  if (!is_worker && slot >= 0) write_latent(args, row + heads_dim, slot, scale);
  if (!holds) return;
  while (part <= args.num_heads) {
    rotate_part<kInterleaved>(args, loaded, rotated_part(args, row, part), part, slice, turns, slot);
    part += workers / shape.lanes;
    if (part <= args.num_heads) loaded = load_head(rotated_part(args, row, part), slice);
  }
}

__global__ void __launch_bounds__(256) split_queries_kernel(MlaSplitQueriesArgs args) {
  const int vectors = args.rope_dim / 8;  // of a head
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  wait_for_inputs();
  let_next_start();
  if (i >= args.num_heads * vectors) return;
  const int64_t token = blockIdx.x;
  const int head = i / vectors;
  const int column = (i - head * vectors) * 8;
  const Bf16* from = args.q + token * args.q_stride + head * (args.nope_dim + args.rope_dim) + args.nope_dim;
  Bf16* to = args.q_latent + (token * args.num_heads + head) * (args.latent_dim + args.rope_dim) + args.latent_dim;
  *reinterpret_cast<Bytes16*>(to + column) = *reinterpret_cast<const Bytes16*>(from + column);
}

}  // namespace

void device_mla_rope_kv_write_cuda(CudaStream stream, const DeviceMlaRopeKvWriteArgs& args) {
  if (args.num_tokens == 0) return;
  const DeviceKvLayer& kv = args.kv;
  VAYU_REQUIRE(args.q_kv && args.positions && args.slot_mapping && kv.pages && args.latent_norm, "null pointer");
  VAYU_REQUIRE(args.rotation.inv_freq, "no inv_freq");
  VAYU_REQUIRE(args.num_heads > 0 && args.nope_dim >= 0 && args.nope_dim % 8 == 0, "heads");
  VAYU_REQUIRE(args.rope_dim() > 0 && args.rope_dim() % kHalfSplitUnit == 0 && args.rope_dim() <= kMaxRotatedDim,
               "rope_dim");
  VAYU_REQUIRE(kv.latent_dim > 0 && kv.latent_dim % 8 == 0 && kv.head_dim == kv.latent_dim + args.rope_dim(), "latent");
  const HeadShape shape = head_shape(args.rope_dim());
  const int warps = std::min(((args.num_heads + 1) * shape.lanes + 31) / 32, kMaxRopeWarps) + 1;
  const bool interleaved = args.rotation.pairing == RopePairing::kInterleaved;
  launch_overlapped(interleaved ? mla_kernel<true> : mla_kernel<false>,
                    {.grid = dim3(static_cast<unsigned>(args.num_tokens)), .block = dim3(warps * 32u)}, stream, args,
                    shape);
}

void mla_split_queries_cuda(CudaStream stream, const MlaSplitQueriesArgs& args) {
  if (args.num_tokens == 0) return;
  VAYU_REQUIRE(args.q && args.q_latent && args.num_heads > 0, "null pointer or no heads");
  VAYU_REQUIRE(args.rope_dim > 0 && args.rope_dim % 8 == 0 && args.nope_dim % 8 == 0 && args.latent_dim % 8 == 0 &&
                   args.q_stride % 8 == 0,
               "16-byte vectors");
  const auto vectors = static_cast<unsigned>(args.num_heads * (args.rope_dim / 8));
  const dim3 grid(static_cast<unsigned>(args.num_tokens), (vectors + 255) / 256);
  launch_overlapped(split_queries_kernel, {.grid = grid, .block = dim3(256)}, stream, args);
}

}  // namespace vayu::ops
