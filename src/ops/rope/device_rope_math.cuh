// The rotation of heads on the device, shared by the kernels that write keys.
//
// A block takes a token. Its sines and cosines are made once, one pair a thread, into shared memory, while the loads of
// the heads are under way. A head of head_dim elements belongs to head_dim / 16 neighbouring threads (rounded up to a
// power of two, so that a norm is a butterfly of shuffles), each with two vectors of eight elements, "near" and "far".
// In the half-split pairing they are chosen such that element e of one pairs with element e of the other, and nothing
// moves between threads; an interleaved pair lies within a vector anyway.
#pragma once

#include "ops/cuda/vector.cuh"
#include "ops/norm/quantize_rows_math.cuh"
#include "ops/rope/device_rope.h"

namespace vayu::ops {

// Of a token, 64 + 4 + 4 heads of 64 in one pass; four such blocks share a multiprocessor at 56 registers a thread.
constexpr int kMaxRopeWarps = 9;

struct HeadShape {
  int head_dim;
  int lanes;  // of a head: a power of two, at least head_dim / 16
};
inline HeadShape head_shape(int head_dim) {
  int lanes = 1;
  while (lanes * 16 < head_dim) lanes *= 2;
  return {head_dim, lanes};
}

// Cosine and sine of an angle times `factor`. The angle is reduced by quarter turns in double (exact to 1e-11 for 1e5
// turns), then the Taylor series of r in [-pi/4, pi/4]; the first terms left out are 2e-9 and 3e-8.
__device__ __forceinline__ float2 cos_sin(float angle, float factor) {
  const double turns = rint(static_cast<double>(angle) * 0.63661977236758134308);
  const auto r = static_cast<float>(fma(turns, -1.57079632679489655800, static_cast<double>(angle)));
  const float r2 = r * r;
  float s = fmaf(r2, 1.0f / 362880, -1.0f / 5040);
  s = fmaf(s, r2, 1.0f / 120);
  s = fmaf(s, r2, -1.0f / 6);
  s = fmaf(s * r2, r, r);
  float c = fmaf(r2, 1.0f / 40320, -1.0f / 720);
  c = fmaf(c, r2, 1.0f / 24);
  c = fmaf(c, r2, -0.5f);
  c = fmaf(c, r2, 1.0f);
  const int quarter = static_cast<int>(turns);  // mod 4: sin = s, c, -s, -c and cos = c, -s, -c, s
  const float sin_abs = quarter & 1 ? c : s;
  const float cos_abs = quarter & 1 ? s : c;
  return make_float2((quarter + 1) & 2 ? -cos_abs * factor : cos_abs * factor,
                     quarter & 2 ? -sin_abs * factor : sin_abs * factor);
}

// The turns of all pairs of a head at `position`; pairs behind rotary_dim do not turn. Then a block barrier.
__device__ __forceinline__ void fill_turns(float2* turns, const DeviceRotation& rotation, int head_dim,
                                           int32_t position) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < head_dim / 2; i += static_cast<int>(blockDim.x)) {
    const bool turned = i < rotation.rotary_dim / 2;
    turns[i] = turned
                   ? cos_sin(__fmul_rn(static_cast<float>(position), rotation.inv_freq[i]), rotation.attention_factor)
                   : make_float2(1.0f, 0.0f);
  }
}

// Where in a head the two vectors of thread `lane` begin, and the pair of the first element of each.
struct HeadSlice {
  int near, far;
  int near_pair, far_pair;
};
template <bool kInterleaved>
__device__ __forceinline__ HeadSlice head_slice(int lane, int head_dim, int rotary_dim) {
  if constexpr (kInterleaved) return {lane * 8, head_dim / 2 + lane * 8, lane * 4, head_dim / 4 + lane * 4};
  const int half = rotary_dim / 2;
  const int behind = lane - half / 8;  // threads from here hold what does not turn
  if (behind < 0) return {lane * 8, half + lane * 8, lane * 8, lane * 8};
  return {rotary_dim + behind * 16, rotary_dim + behind * 16 + 8, half, half};
}

struct HeadVectors {
  Bytes16 near = {};
  Bytes16 far = {};
};
__device__ __forceinline__ HeadVectors load_head(const Bf16* head, const HeadSlice& slice) {
  HeadVectors loaded;
  loaded.near = *reinterpret_cast<const Bytes16*>(head + slice.near);
  loaded.far = *reinterpret_cast<const Bytes16*>(head + slice.far);
  return loaded;
}

__device__ __forceinline__ void rotate_pair(float& a, float& b, float cos, float sin) {
  const float rotated = a * cos - b * sin;
  b = b * cos + a * sin;
  a = rotated;
}
// The turns are read two at a time: the first pair of a vector is even.
template <bool kInterleaved>
__device__ __forceinline__ void rotate_slice(float (&near)[8], float (&far)[8], const HeadSlice& slice,
                                             const float2* turns) {
  const auto* near_turns = reinterpret_cast<const float4*>(turns + slice.near_pair);
  if constexpr (kInterleaved) {
    const auto* far_turns = reinterpret_cast<const float4*>(turns + slice.far_pair);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 n = near_turns[i], f = far_turns[i];
      rotate_pair(near[4 * i], near[4 * i + 1], n.x, n.y);
      rotate_pair(near[4 * i + 2], near[4 * i + 3], n.z, n.w);
      rotate_pair(far[4 * i], far[4 * i + 1], f.x, f.y);
      rotate_pair(far[4 * i + 2], far[4 * i + 3], f.z, f.w);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 t = near_turns[i];
      rotate_pair(near[2 * i], far[2 * i], t.x, t.y);
      rotate_pair(near[2 * i + 1], far[2 * i + 1], t.z, t.w);
    }
  }
}

// 1 / rms of a head whose squares sum to `squares`; NaN when that is not finite.
__device__ __forceinline__ float norm_scale(float squares, int count, float eps) {
  if (!(squares < __int_as_float(0x7f800000))) return __int_as_float(0x7fc00000);
  return rsqrtf(squares / static_cast<float>(count) + eps);
}

// Eight elements into a page; FP8 has no infinity: x * 0 + x keeps every number and makes an infinity NaN.
__device__ __forceinline__ void store_kv8(const DeviceKvLayer& kv, int64_t index, float (&v)[8]) {
  if (kv.format == DeviceKvFormat::kBF16) return store_bf16x8(static_cast<Bf16*>(kv.pages) + index, v);
#pragma unroll
  for (int e = 0; e < 8; ++e) v[e] = fmaf(v[e], 0.0f, v[e]);
  store_f8x8(static_cast<F8E4M3*>(kv.pages) + index, v, 1.0f);
}

}  // namespace vayu::ops
