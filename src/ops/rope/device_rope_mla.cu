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

// One warp: sums the squares, then reads the latent again (from the first-level cache) and writes it normed.
__device__ __forceinline__ void write_latent(const DeviceMlaRopeKvWriteArgs& args, const Bf16* latent, int32_t slot) {
  const int first = static_cast<int>(threadIdx.x % 32) * 8;
  float x[8], w[8];
  float squares = 0;
  for (int i = first; i < args.kv.latent_dim; i += 256) {
    load_bf16x8(latent + i, x);
#pragma unroll
    for (int e = 0; e < 8; ++e) squares = fmaf(x[e], x[e], squares);
  }
  const float scale = norm_scale(warp_sum(squares), args.kv.latent_dim, args.norm_eps);
  if (slot < 0) return;
  for (int i = first; i < args.kv.latent_dim; i += 256) {
    load_bf16x8(latent + i, x);
    load_float8(args.latent_norm + i, w);
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] *= scale * w[e];
    store_kv8(args.kv, int64_t{slot} * args.kv.head_dim + i, x);
  }
}

template <bool kInterleaved>
__device__ __forceinline__ void rotate_part(const DeviceMlaRopeKvWriteArgs& args, int64_t token, int part,
                                            const HeadSlice& slice, const float2* turns, int32_t slot) {
  const bool is_key = part == args.num_heads;
  const int rope_dim = args.rotation.rotary_dim;
  const int q_dim = args.nope_dim + rope_dim;
  const int in_row = is_key ? args.num_heads * q_dim + args.kv.latent_dim : part * q_dim + args.nope_dim;
  Bf16* const x = args.q_kv + token * (args.num_heads * q_dim + args.kv.head_dim) + in_row;
  float near[8], far[8];
  load_bf16x8(x + slice.near, near);
  load_bf16x8(x + slice.far, far);
  rotate_slice<kInterleaved>(near, far, slice, turns);
  if (is_key) {
    if (slot < 0) return;
    const int64_t at = int64_t{slot} * args.kv.head_dim + args.kv.latent_dim;
    store_kv8(args.kv, at + slice.near, near);
    store_kv8(args.kv, at + slice.far, far);
    return;
  }
  store_bf16x8(x + slice.near, near);
  store_bf16x8(x + slice.far, far);
  if (!args.q_latent) return;
  Bf16* const copy = args.q_latent + (token * args.num_heads + part) * args.kv.head_dim + args.kv.latent_dim;
  store_bf16x8(copy + slice.near, near);
  store_bf16x8(copy + slice.far, far);
}

// The last warp has the latent; the threads before it share the rotated parts.
template <bool kInterleaved>
__global__ void __launch_bounds__((kMaxRopeWarps + 1) * 32, 3)
    mla_kernel(DeviceMlaRopeKvWriteArgs args, HeadShape shape) {
  __shared__ __align__(16) float2 turns[kMaxRotatedDim / 2];
  const int lane = static_cast<int>(threadIdx.x) % shape.lanes;
  const HeadSlice slice = head_slice<kInterleaved>(lane, shape.head_dim, shape.head_dim);
  const int workers = static_cast<int>(blockDim.x) - 32;
  wait_for_inputs();
  const int64_t token = blockIdx.x;
  const int32_t slot = args.slot_mapping[token];
  fill_turns(turns, args.rotation, shape.head_dim, args.positions[token]);
  __syncthreads();
  let_next_start();
  if (static_cast<int>(threadIdx.x) >= workers) {
    const int q_dim = args.num_heads * (args.nope_dim + args.rotation.rotary_dim);  // of all heads
    return write_latent(args, args.q_kv + token * (q_dim + args.kv.head_dim) + q_dim, slot);
  }
  if (lane * 16 >= shape.head_dim) return;
  for (int part = static_cast<int>(threadIdx.x) / shape.lanes; part <= args.num_heads; part += workers / shape.lanes) {
    rotate_part<kInterleaved>(args, token, part, slice, turns, slot);
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
  VAYU_REQUIRE(args.rope_dim() > 0 && args.rope_dim() % 16 == 0 && args.rope_dim() <= kMaxRotatedDim, "rope_dim");
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
