// A row of logits on the device: loads, the order of candidates, weights, and what the blocks of a cluster share.
#pragma once

#include <cfloat>
#include <cmath>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/sm90.cuh"
#include "ops/sampling/device_sample.h"

namespace vayu::ops {

constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr float kInfinity = INFINITY;

// --- clusters: every block of a cluster works on the same row

__device__ __forceinline__ int cluster_blocks() {
  uint32_t blocks;
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  return static_cast<int>(blocks);
}
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
// The same variable in the shared memory of another block.
template <class T>
__device__ __forceinline__ T* peer(T* shared, int rank) {
  uint64_t address;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(reinterpret_cast<uint64_t>(shared)), "r"(rank));
  return reinterpret_cast<T*>(address);
}

// --- order: descending keys are (logit descending, id ascending), as candidate_key of sample_passes.h

__device__ __forceinline__ uint32_t ordered_bits(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 and 0 are a tie
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ uint64_t key_of(float logit, int32_t id) {
  return (uint64_t{ordered_bits(logit)} << 32) | (0xffffffffu - static_cast<uint32_t>(id));
}
__device__ __forceinline__ int32_t id_of(uint64_t key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}
__device__ __forceinline__ float logit_of(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(ordered & 0x80000000u ? ordered ^ 0x80000000u : ~ordered);
}

// --- loads

// Four logits from column i on; those at `end` and past it are -inf, which every user passes over.
__device__ __forceinline__ float4 load_logits(const float* row, int32_t i, int32_t end, bool aligned) {
  if (aligned && i + 4 <= end) return *reinterpret_cast<const float4*>(row + i);
  float4 v;
  v.x = i < end ? row[i] : -kInfinity;
  v.y = i + 1 < end ? row[i + 1] : -kInfinity;
  v.z = i + 2 < end ? row[i + 2] : -kInfinity;
  v.w = i + 3 < end ? row[i + 3] : -kInfinity;
  return v;
}
__device__ __forceinline__ bool rows_aligned(const float* logits, int64_t stride) {
  return reinterpret_cast<uint64_t>(logits) % 16 == 0 && stride % 4 == 0;
}

// Columns of this block: a multiple of 4 each, the last blocks may have fewer or none (begin >= end).
struct Slice {
  int32_t begin;
  int32_t end;
};
__device__ __forceinline__ Slice slice_of(int32_t vocab_size, int rank, int blocks) {
  const int32_t columns = ((vocab_size + 3) / 4 + blocks - 1) / blocks * 4;
  return {rank * columns, min(vocab_size, (rank + 1) * columns)};
}

// --- results

__device__ __forceinline__ void write_result(const DeviceSampleArgs& args, int32_t row, int32_t token, float logprob,
                                             int32_t num_top, bool finite) {
  *reinterpret_cast<int4*>(args.results + row) = make_int4(token, __float_as_int(logprob), num_top, finite ? 1 : 0);
  args.next_tokens[row] = token < 0 ? 0 : token;
}
__device__ __forceinline__ bool is_for_draw(const DeviceSampleTask& task) {
  return task.num_top > 0 || (task.fixed_token < 0 && (task.flags & (kSampleDraw | kSampleEdits)) != 0);
}

}  // namespace vayu::ops
