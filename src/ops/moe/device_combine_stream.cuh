// combine_add_norm for many tokens, as a stream of rows through shared memory.
//
// At hidden 4096, top 6 and 3,584 tokens it moves 279 MB, 66 us at 4.25 TB/s; blocks that take a row each reach 84 % of
// that, since between asking, adding, norming and storing two of them leave the memory idle. Here one block an SM keeps
// asking: a warp copies the rows of whole tokens (64 KiB: experts', shared expert's, residual) into a ring of stages
// with the bulk copy engine, 128 KiB or more under way at any time (33 KiB would do at a latency of 1 us), and eight
// warps add and norm the token that has landed, sixteen columns a thread. They take about 1,300 of the 4,100 cycles in
// which an SM's share of the memory delivers a token. 3,584 tokens are 27.2 an SM: 28 at most, 3 % of imbalance.
#pragma once

#include "ops/cuda/num_sms.h"
#include "ops/cuda/sm90.cuh"
#include "ops/norm/add_norm_kernel.cuh"

namespace vayu::ops {

constexpr int kCombineThreads = 256;  // that add
constexpr int kCombineVectors = 2;    // of eight columns a thread
constexpr int kCombineMaxStages = 4;
constexpr int64_t kCombineRingBytes = 216 * 1024;

struct CombineShared {
  LanePair pairs[kCombineMaxStages][32];
  float2 partial[2][kCombineThreads / 32];
  uint64_t full[kCombineMaxStages], empty[kCombineMaxStages];
};

// One row, completing on `barrier`; read once and never again.
__device__ __forceinline__ void copy_row(void* shared, const Bf16* row, uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
      "%4;" ::"r"(shared_address(shared)),
      "l"(row), "r"(bytes), "r"(shared_address(barrier)), "l"(kEvictFirst)
      : "memory");
}

__device__ __forceinline__ void named_barrier() { asm volatile("bar.sync 1, %0;" ::"n"(kCombineThreads) : "memory"); }

// One warp. A stage: rows of the pairs, residual, shared expert's row; lane i starts the copy of row i.
__device__ __forceinline__ void fetch_tokens(const AddNormArgs& args, const ExpertRows& experts, CombineShared& s,
                                             uint8_t* ring, int stages) {
  const int lane = threadIdx.x % 32;
  const auto bytes = static_cast<uint32_t>(args.hidden * sizeof(Bf16));
  LanePair next = load_pair(experts, blockIdx.x);
  int stage = 0;
  uint32_t phase = 1;  // a fresh stage is empty
  for (int64_t token = blockIdx.x; token < args.num_rows; token += gridDim.x) {
    const LanePair pair = next;
    const int64_t following = token + gridDim.x;
    next = load_pair(experts, following < args.num_rows ? following : -1);
    const Bf16* row = nullptr;
    if (pair.row >= 0) row = experts.rows + pair.row * args.hidden;
    if (lane == experts.top_k) row = args.residual + token * args.hidden;
    if (lane == experts.top_k + 1 && args.delta) row = args.delta + token * args.hidden;
    const int rows = __popc(__ballot_sync(0xffffffffu, row != nullptr));
    barrier_wait(&s.empty[stage], phase);
    s.pairs[stage][lane] = pair;
    __syncwarp();
    if (lane == 0) barrier_arrive_expect(&s.full[stage], rows * bytes);
    __syncwarp();
    uint8_t* to = ring + (int64_t{stage} * (experts.top_k + 2) + lane) * bytes;
    if (row != nullptr) copy_row(to, row, bytes, &s.full[stage]);
    if (++stage == stages) stage = 0, phase ^= 1;
  }
}

// s of eight columns from a stage, as add_row in add_norm_kernel.cuh.
__device__ __forceinline__ Bytes16 add_columns(const uint8_t* rows, int64_t bytes, const LanePair* pairs, int top_k,
                                               bool has_delta, int column, float (&s)[8]) {
  float sum[8] = {}, delta[8] = {};
  const auto load = [&](int row) { return *reinterpret_cast<const Bytes16*>(rows + row * bytes + column * 2); };
#pragma unroll 2
  for (int j = 0; j < top_k; ++j) {
    const LanePair pair = pairs[j];
    if (pair.row < 0) continue;
    float v[8];
    unpack_bf16x8(load(j), v);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum[e] = fmaf(pair.weight, v[e], sum[e]);
  }
  unpack_bf16x8(load(top_k), s);
  if (has_delta) unpack_bf16x8(load(top_k + 1), delta);
  Bytes16 packed;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    packed.word[i] =
        pack_bf16x2(s[2 * i] + (sum[2 * i] + delta[2 * i]), s[2 * i + 1] + (sum[2 * i + 1] + delta[2 * i + 1]));
  }
  unpack_bf16x8(packed, s);
  return packed;
}

__device__ __forceinline__ SumAndPeak sum_and_peak_of_row(float sum, uint32_t peak, float2* partial) {
  sum = warp_sum(sum);
  peak = __reduce_max_sync(0xffffffffu, peak);
  const unsigned lane = threadIdx.x % 32;
  if (lane == 0) partial[threadIdx.x / 32] = make_float2(sum, __uint_as_float(peak));
  named_barrier();
  const float2 mine = lane < kCombineThreads / 32 ? partial[lane] : make_float2(0.0f, 0.0f);
  return {warp_sum(mine.x), __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(mine.y)))};
}

__device__ __forceinline__ void store_normed(const AddNormArgs& args, int64_t at, float (&y)[8], float factor,
                                             float rms) {
  if (args.y.scales) store_f8x8(static_cast<F8E4M3*>(args.y.data) + at, y, factor);
#pragma unroll
  for (int e = 0; e < 8; ++e) y[e] *= rms;
  if (!args.y.scales) store_bf16x8(static_cast<Bf16*>(args.y.data) + at, y);
  if (args.y_bf16) store_bf16x8(args.y_bf16 + at, y);
}

__device__ __forceinline__ void add_tokens(const AddNormArgs& args, const ExpertRows& experts, CombineShared& s,
                                           const uint8_t* ring, int stages, const float (&weight)[kCombineVectors][8]) {
  const int64_t bytes = args.hidden * int64_t{sizeof(Bf16)};
  const auto column = [](int i) { return static_cast<int>(threadIdx.x + i * kCombineThreads) * 8; };
  int stage = 0, turn = 0;
  uint32_t phase = 0;
  for (int64_t token = blockIdx.x; token < args.num_rows; token += gridDim.x, turn ^= 1) {
    barrier_wait(&s.full[stage], phase);
    const uint8_t* rows = ring + stage * (experts.top_k + 2) * bytes;
    float y[kCombineVectors][8] = {};
    float squares = 0;
    uint32_t peak = 0;
#pragma unroll
    for (int i = 0; i < kCombineVectors; ++i) {
      if (column(i) >= args.hidden) continue;
      float v[8];
      const Bytes16 packed =
          add_columns(rows, bytes, s.pairs[stage], experts.top_k, args.delta != nullptr, column(i), v);
      *reinterpret_cast<Bytes16*>(args.residual + token * args.hidden + column(i)) = packed;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        squares = fmaf(v[e], v[e], squares);
        y[i][e] = v[e] * weight[i][e];
      }
      peak = peak_bits(y[i], peak);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[stage]);
    if (++stage == stages) stage = 0, phase ^= 1;
    if (!args.weight) continue;

    // Two arrays in turn: whoever writes one again has passed the barrier of the token between.
    const SumAndPeak total = sum_and_peak_of_row(squares, peak, s.partial[turn]);
    const bool finite = total.sum < __int_as_float(0x7f800000);
    const float rms =
        finite ? rsqrtf(total.sum / static_cast<float>(args.hidden) + args.eps) : __int_as_float(0x7fc00000);
    const float scale = args.y.scales ? f8_scale(total.peak * rms) : 1.0f;
    if (threadIdx.x == 0 && args.y.scales) args.y.scales[token] = scale;
#pragma unroll
    for (int i = 0; i < kCombineVectors; ++i) {
      if (column(i) < args.hidden) store_normed(args, token * args.hidden + column(i), y[i], rms / scale, rms);
    }
  }
}

static __global__ void __launch_bounds__(kCombineThreads + 32, 1)
    combine_stream_kernel(const __grid_constant__ AddNormArgs args, const __grid_constant__ ExpertRows experts,
                          int stages) {
  extern __shared__ __align__(128) uint8_t ring[];
  __shared__ CombineShared s;
  let_next_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], kCombineThreads / 32);
    }
    barrier_init_fence();
  }
  float weight[kCombineVectors][8] = {};
  if (args.weight && threadIdx.x < kCombineThreads) {
#pragma unroll
    for (int i = 0; i < kCombineVectors; ++i) {
      const int column = static_cast<int>(threadIdx.x + i * kCombineThreads) * 8;
      if (column < args.hidden) load_float8(args.weight + column, weight[i]);
    }
  }
  __syncthreads();
  wait_for_inputs();
  if (threadIdx.x >= kCombineThreads) {
    fetch_tokens(args, experts, s, ring, stages);
  } else {
    add_tokens(args, experts, s, ring, stages, weight);
  }
}

inline int64_t combine_stage_bytes(const AddNormArgs& args, int32_t top_k) {
  return (int64_t{top_k} + 2) * args.hidden * int64_t{sizeof(Bf16)};
}

inline bool combine_streams(const AddNormArgs& args, int32_t top_k) {
  return !args.row_ids && args.hidden % 8 == 0 && args.hidden <= int64_t{kCombineThreads} * kCombineVectors * 8 &&
         top_k + 2 <= 32 && 2 * combine_stage_bytes(args, top_k) <= kCombineRingBytes;
}

inline void launch_combine_stream(CudaStream stream, const AddNormArgs& args, const ExpertRows& experts) {
  VAYU_REQUIRE(args.residual && (args.weight == nullptr || args.y.data), "null pointer");
  VAYU_REQUIRE(!args.weight || (args.y.cols == args.hidden && args.y.scale_group == 0), "y: rows of hidden, one scale");
  const int64_t stage_bytes = combine_stage_bytes(args, experts.top_k);
  const int64_t fit = kCombineRingBytes / stage_bytes;
  const int stages = static_cast<int>(fit < kCombineMaxStages ? fit : kCombineMaxStages);
  const int64_t blocks = args.num_rows < num_sms() ? args.num_rows : num_sms();
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(blocks)),
                          .block = dim3(kCombineThreads + 32),
                          .shared_bytes = static_cast<size_t>(stages * stage_bytes)};
  launch_overlapped(combine_stream_kernel, shape, stream, args, experts, stages);
}

}  // namespace vayu::ops
