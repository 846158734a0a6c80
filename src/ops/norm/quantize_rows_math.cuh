// What the kernels that write ActRows share: magnitudes, their maximum over a block, and loads and stores of eight
// elements.
#pragma once

#include "ops/cuda/vector.cuh"

namespace vayu::ops {

// Without the sign, the bit patterns of floats order like their values, infinity above every number and NaN above
// infinity: an integer maximum cannot lose a NaN, and a warp takes it in one instruction (redux.sync).
__device__ __forceinline__ uint32_t magnitude_bits(float v) { return __float_as_uint(v) & 0x7fffffffu; }
__device__ __forceinline__ uint32_t peak_bits(const float* v, uint32_t peak) {  // of eight and `peak`
#pragma unroll
  for (int i = 0; i < 8; ++i) peak = max(peak, magnitude_bits(v[i]));
  return peak;
}

// Maximum over a block of whole warps, with one barrier: `shared` (32) may not be written again before another one.
__device__ __forceinline__ uint32_t block_peak_bits(uint32_t peak, uint32_t* shared) {
  peak = __reduce_max_sync(0xffffffffu, peak);
  const unsigned lane = threadIdx.x % 32;
  if (lane == 0) shared[threadIdx.x / 32] = peak;
  __syncthreads();
  return __reduce_max_sync(0xffffffffu, lane < blockDim.x / 32 ? shared[lane] : 0u);
}

__device__ __forceinline__ void store_f8x8(F8E4M3* p, const float* v, float factor) {  // p 8-byte aligned
  uint2 out;
  out.x = pack_f8x4(v[0] * factor, v[1] * factor, v[2] * factor, v[3] * factor);
  out.y = pack_f8x4(v[4] * factor, v[5] * factor, v[6] * factor, v[7] * factor);
  *reinterpret_cast<uint2*>(p) = out;
}

__device__ __forceinline__ void unpack_bf16x8(const Bytes16& packed, float* out) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack_bf16x2(packed.word[i]);
    out[2 * i] = pair.x;
    out[2 * i + 1] = pair.y;
  }
}

__device__ __forceinline__ void load_float8(const float* p, float* out) {  // p 16-byte aligned
  const float4 low = reinterpret_cast<const float4*>(p)[0];
  const float4 high = reinterpret_cast<const float4*>(p)[1];
  out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
  out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
}

// A row over a block: thread t holds vectors of eight elements t, t + threads, ... ; at most 512 threads, so that four
// rows are in flight on a multiprocessor, and at most four vectors a thread (16,384 columns).
struct RowThreads {
  int per_thread;
  unsigned threads;
};
inline RowThreads row_threads(int64_t cols) {
  const int64_t vectors = cols / 8;
  const int per_thread = vectors <= 512 ? 1 : vectors <= 1024 ? 2 : 4;
  return {per_thread, static_cast<unsigned>((vectors + per_thread * 32 - 1) / (per_thread * 32) * 32)};
}

}  // namespace vayu::ops
