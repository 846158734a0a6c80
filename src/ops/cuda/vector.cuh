// 16-byte vectors of the device formats, conversions, and reductions over warps and blocks.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "ops/cuda/types.h"

namespace vayu::ops {

__device__ __forceinline__ float to_float(Bf16 v) { return __uint_as_float(uint32_t{v.bits} << 16); }
__device__ __forceinline__ Bf16 to_bf16(float v) { return {__bfloat16_as_ushort(__float2bfloat16_rn(v))}; }
__device__ __forceinline__ float to_float(F8E4M3 v) {
  const __half_raw h = __nv_cvt_fp8_to_halfraw(v.bits, __NV_E4M3);
  return __half2float(__half(h));
}
// Rounds to nearest even and saturates at 448; NaN stays NaN.
__device__ __forceinline__ F8E4M3 to_f8(float v) { return {__nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3)}; }
__device__ __forceinline__ uint32_t pack_f8x4(float a, float b, float c, float d) {
  const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
  const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
  return low | (high << 16);
}
__device__ __forceinline__ float2 unpack_bf16x2(uint32_t v) {
  return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}
__device__ __forceinline__ uint32_t pack_bf16x2(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(v);
}

struct __align__(16) Bytes16 {
  uint32_t word[4];
};
__device__ __forceinline__ void load_bf16x8(const Bf16* p, float* out) {  // p 16-byte aligned
  const Bytes16 v = *reinterpret_cast<const Bytes16*>(p);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack_bf16x2(v.word[i]);
    out[2 * i] = pair.x;
    out[2 * i + 1] = pair.y;
  }
}
__device__ __forceinline__ void store_bf16x8(Bf16* p, const float* v) {
  Bytes16 out;
#pragma unroll
  for (int i = 0; i < 4; ++i) out.word[i] = pack_bf16x2(v[2 * i], v[2 * i + 1]);
  *reinterpret_cast<Bytes16*>(p) = out;
}

// 2^v to 2 units in the last place; results below the normal range are 0.
__device__ __forceinline__ float exp2_approx(float v) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
  return out;
}

// Largest magnitude, kept so that NaN wins: fmaxf drops it.
__device__ __forceinline__ float max_keep_nan(float a, float b) { return (a > b || a != a) ? a : b; }

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}
__device__ __forceinline__ float warp_max_keep_nan(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v = max_keep_nan(v, __shfl_xor_sync(0xffffffffu, v, offset));
  return v;
}

// Over a block of whole warps (at most 32); every thread gets the result. `shared`: 32 floats, not in use by others.
__device__ __forceinline__ float block_sum(float v, float* shared) {
  v = warp_sum(v);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  if (lane == 0) shared[warp] = v;
  __syncthreads();
  v = warp_sum(lane < warps ? shared[lane] : 0.0f);
  __syncthreads();
  return v;
}
__device__ __forceinline__ float block_max_keep_nan(float v, float* shared) {
  v = warp_max_keep_nan(v);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  if (lane == 0) shared[warp] = v;
  __syncthreads();
  v = warp_max_keep_nan(lane < warps ? shared[lane] : 0.0f);
  __syncthreads();
  return v;
}

// The scale rule of ActRows, from the largest magnitude.
__device__ __forceinline__ float f8_scale(float peak) {
  if (!(peak < __int_as_float(0x7f800000))) return __int_as_float(0x7fc00000);
  return peak < kF8TinyPeak ? 1.0f : peak * (1.0f / kF8Max);
}

}  // namespace vayu::ops
