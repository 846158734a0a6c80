// What the small and the large router kernel share: operands of the tensor cores, the choice of a token's experts by
// one warp, and the prefix over the experts' counts.
#pragma once

#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/sm90.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/moe/device_route.h"

namespace vayu::ops {

constexpr int kRouteThreads = 256;  // that choose and place; 8 warps
constexpr int kRouteSmallTokens = 128;
constexpr uint32_t kAllLanes = 0xffffffffu;

// Counters in front of the scratch, zero between launches except the generation.
struct RouteCounters {
  uint32_t arrived;      // blocks at the barrier of the large kernel
  uint32_t generation;   // counts its barriers
  uint32_t partials_in;  // blocks of the small kernel whose partial logits are stored
};
constexpr int64_t kRouteCounterBytes = 256;

void launch_route_small(CudaStream stream, const DeviceRouteArgs& args);
void launch_route_large(CudaStream stream, const DeviceRouteArgs& args);
bool route_small_fits(const DeviceRouteArgs& args);

// --- memory order between blocks

__device__ __forceinline__ uint32_t load_acquire(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void store_release(uint32_t* p, uint32_t v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ uint32_t add_acquire_release(uint32_t* p, uint32_t v) {
  uint32_t old;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}

// --- operands

// Bytes from global to shared memory by the copy engine; both 16-byte aligned.
__device__ __forceinline__ void copy_bulk(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// Four 8 x 8 matrices of 16-bit elements: lanes 8 i .. 8 i + 7 give the rows of matrix i; lane l gets elements
// 2 (l % 4) and the next of row l / 4 of each.
__device__ __forceinline__ void load_matrices(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}

// Exact up to 65,504 and from 2^-17; infinite beyond.
__device__ __forceinline__ uint32_t half_from_bf16(uint32_t pair) {
  const float2 v = unpack_bf16x2(pair);
  const __half2 h = __floats2half2_rn(v.x, v.y);
  return reinterpret_cast<const uint32_t&>(h);
}

// Rows 16 and columns 16 (16-byte pieces 2 step and 2 step + 1) of a swizzled tile of BF16 rows, as the A operand.
__device__ __forceinline__ void load_rows_as_half(uint32_t (&a)[4], uint32_t tile, int first_row, int step, int lane) {
  load_matrices(a, tile + swizzled_offset(first_row + lane % 16, 2 * step + lane / 16));
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = half_from_bf16(a[i]);
}

// --- choice: a warp a token. Lane l holds the experts 4 l .. 4 l + 3, and with 256 experts 128 more of each.

__device__ __forceinline__ int lane_expert(int lane, int i) { return (i / 4) * 128 + lane * 4 + i % 4; }

template <int kPerLane>
__device__ __forceinline__ void load_per_expert(float (&v)[kPerLane], const float* values, int count, int lane) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane_expert(lane, i);
    v[i] = values != nullptr && expert < count ? values[expert] : 0.0f;
  }
}

// Unsigned order is the order of the floats; 0 is below all of them. No choice value is -0 (a score of 0 is +0).
__device__ __forceinline__ uint32_t order_key(float v) {
  const uint32_t bits = __float_as_uint(v);
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

template <int kPerLane>
__device__ __forceinline__ void score_logits(const RouterShape& shape, float (&v)[kPerLane], int lane) {
  if (shape.score == RouterScore::kSigmoid) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) v[i] = 1.0f / (1.0f + expf(-v[i]));
    return;
  }
  float peak = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane_expert(lane, i) < shape.num_experts) peak = fmaxf(peak, v[i]);
  }
  peak = warp_max_keep_nan(peak);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    v[i] = lane_expert(lane, i) < shape.num_experts ? expf(v[i] - peak) : 0.0f;
    sum += v[i];
  }
  sum = warp_sum(sum);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) v[i] /= sum;
}

// A bit for every group that stays. row: the choice values; lane g looks at group g.
__device__ __forceinline__ uint32_t kept_groups(const RouterShape& shape, const float* row, int lane) {
  const int size = shape.num_experts / shape.num_groups;
  float first = -INFINITY, second = -INFINITY;
  if (lane < shape.num_groups) {
    for (int i = 0; i < size; ++i) {
      const float v = row[lane * size + i];
      if (v > first) {
        second = first;
        first = v;
      } else {
        second = fmaxf(second, v);
      }
    }
  }
  const float score = size > 1 ? first + second : first;
  int better = 0;
  for (int other = 0; other < shape.num_groups; ++other) {
    const float rival = __shfl_sync(kAllLanes, score, other);
    better += rival > score || (rival == score && other < lane);
  }
  return __ballot_sync(kAllLanes, lane < shape.num_groups && better < shape.groups_kept);
}

template <int kPerLane>
__device__ __forceinline__ void choice_keys(const RouterShape& shape, const float (&score)[kPerLane],
                                            const float (&bias)[kPerLane], float* row, int lane,
                                            uint32_t (&key)[kPerLane]) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    key[i] = lane_expert(lane, i) < shape.num_experts ? order_key(score[i] + bias[i]) : 0;
  }
  if (shape.num_groups == 1) return;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) row[lane_expert(lane, i)] = score[i] + bias[i];
  __syncwarp();
  const uint32_t kept = kept_groups(shape, row, lane);
  const int size = shape.num_experts / shape.num_groups;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane_expert(lane, i);
    if (expert < shape.num_experts && !((kept >> (expert / size)) & 1)) key[i] = order_key(-INFINITY);
  }
  __syncwarp();
}

struct Chosen {  // lane j < top_k: the j-th expert of the token
  int32_t id;
  float weight;
};

// What a lane has to offer, best first.
struct Candidate {
  uint32_t key;
  int32_t expert;
  float score;
};
__device__ __forceinline__ void put_better_first(Candidate& a, Candidate& b) {
  if (b.key > a.key || (b.key == a.key && b.expert < a.expert)) {
    const Candidate other = a;
    a = b;
    b = other;
  }
}

// Rounds of one warp reduction, the largest key, and one vote: lanes hold ascending runs of experts, so that the lowest
// lane that has the key has the lowest expert. What a round waits for is the key alone.
__device__ __forceinline__ Chosen take_best(const RouterShape& shape, const float (&v)[4], const uint32_t (&key)[4],
                                            int lane, float& sum) {
  Candidate mine[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) mine[i] = {key[i], lane_expert(lane, i), v[i]};
  put_better_first(mine[0], mine[1]);
  put_better_first(mine[2], mine[3]);
  put_better_first(mine[0], mine[2]);
  put_better_first(mine[1], mine[3]);
  put_better_first(mine[1], mine[2]);
  Chosen chosen = {0, 0.0f};
#pragma unroll 1
  for (int j = 0; j < shape.top_k; ++j) {
    const uint32_t top = __reduce_max_sync(kAllLanes, mine[0].key);
    const int winner = __ffs(static_cast<int>(__ballot_sync(kAllLanes, mine[0].key == top))) - 1;
    const int32_t expert = __shfl_sync(kAllLanes, mine[0].expert, winner);
    const float score = __shfl_sync(kAllLanes, mine[0].score, winner);
    sum += score;
    if (lane == j) chosen = {expert, score};
    if (lane == winner) {
      mine[0] = mine[1], mine[1] = mine[2], mine[2] = mine[3];
      mine[3].key = 0;
    }
  }
  return chosen;
}

// Lanes hold two runs: rounds of two warp reductions, the largest key, then the lowest expert that has it.
__device__ __forceinline__ Chosen take_best(const RouterShape& shape, const float (&v)[8], uint32_t (&key)[8], int lane,
                                            float& sum) {
  Chosen chosen = {0, 0.0f};
#pragma unroll 1
  for (int j = 0; j < shape.top_k; ++j) {
    uint32_t best = key[0];
    float best_score = v[0];
    uint32_t best_expert = lane_expert(lane, 0);
#pragma unroll
    for (int i = 1; i < 8; ++i) {
      if (key[i] > best) {
        best = key[i];
        best_score = v[i];
        best_expert = lane_expert(lane, i);
      }
    }
    const uint32_t top = __reduce_max_sync(kAllLanes, best);
    const uint32_t expert = __reduce_min_sync(kAllLanes, best == top ? best_expert : 0xffffffffu);
    const float score = __shfl_sync(kAllLanes, best_score, (expert % 128) / 4);
    sum += score;
    if (lane == j) chosen = {static_cast<int32_t>(expert), score};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (lane_expert(lane, i) == static_cast<int>(expert)) key[i] = 0;
    }
  }
  return chosen;
}

// Finite logits in v.
template <int kPerLane>
__device__ __forceinline__ Chosen choose(const RouterShape& shape, float (&v)[kPerLane], const float (&bias)[kPerLane],
                                         float* row, int lane) {
  score_logits(shape, v, lane);
  uint32_t key[kPerLane];
  choice_keys(shape, v, bias, row, lane, key);
  float sum = 0;
  Chosen mine = take_best(shape, v, key, lane, sum);
  if (shape.normalize && shape.top_k > 1) mine.weight /= sum + 1e-20f;
  mine.weight *= shape.scale;
  return mine;
}

// Logits of one row in float arithmetic, by one warp, into `row`: for elements that FP16 cannot hold. A row that is not
// finite gets NaN at once. Lane l multiplies piece l % 8 of every fourth tile.
static __device__ __noinline__ void plain_logits(const Bf16* x, const uint8_t* weight, int hidden, int num_experts,
                                                 int padded, int lane, float* row) {
  const int chunks = hidden / kRouteChunk;
  bool finite = true;
  for (int k = lane; k < hidden; k += 32) finite = finite && fabsf(to_float(x[k])) < INFINITY;
  finite = __all_sync(kAllLanes, finite);
  const auto* scales = reinterpret_cast<const float*>(weight + int64_t{chunks} * 2 * padded * 128);
  for (int expert = 0; expert < num_experts; ++expert) {
    float sum = finite ? 0.0f : NAN;
    for (int chunk = lane / 8; finite && chunk < chunks; chunk += 4) {
      float rows[8];
      load_bf16x8(x + chunk * kRouteChunk + lane % 8 * 8, rows);
      const uint8_t* tile = weight + int64_t{chunk} * 2 * padded * 128 + swizzled_offset(expert, lane % 8);
      const auto* upper = reinterpret_cast<const __half*>(tile);
      const auto* lower = reinterpret_cast<const __half*>(tile + padded * 128);
      for (int i = 0; i < 8; ++i) {
        sum = fmaf(rows[i], (__half2float(upper[i]) + __half2float(lower[i])) * scales[expert], sum);
      }
    }
    sum = warp_sum(sum);
    if (lane == 0) row[expert] = sum;
  }
  __syncwarp();
}

template <int kPerLane>
__device__ __forceinline__ bool all_finite(const float (&v)[kPerLane], int num_experts, int lane) {
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    finite = finite && (lane_expert(lane, i) >= num_experts || fabsf(v[i]) < INFINITY);
  }
  return __all_sync(kAllLanes, finite);
}

// Chooses for one token and stores its ids and weights. v: its logits; row: padded_experts floats of this warp.
// Returns, in lane j < top_k, the j-th expert, or -1 where the token is padding.
template <int kPerLane>
__device__ __forceinline__ int32_t route_token(const DeviceRouteArgs& args, int token, bool is_padding,
                                               float (&v)[kPerLane], const float (&bias)[kPerLane], float* row,
                                               int lane) {
  const RouterShape& shape = args.shape;
  Chosen mine = {-1, 0.0f};
  if (!is_padding) {
    bool finite = all_finite(v, shape.num_experts, lane);
    if (!finite) {
      const int hidden = static_cast<int>(shape.hidden);
      plain_logits(args.x + int64_t{token} * hidden, static_cast<const uint8_t*>(args.weight), hidden,
                   shape.num_experts, 32 * kPerLane, lane, row);
      load_per_expert(v, row, shape.num_experts, lane);
      __syncwarp();
      finite = all_finite(v, shape.num_experts, lane);
    }
    mine = finite ? choose(shape, v, bias, row, lane) : Chosen{lane, NAN};
  }
  if (lane < shape.top_k) {
    const int64_t pair = int64_t{token} * shape.top_k + lane;
    args.expert_ids[pair] = mine.id;
    args.expert_weights[pair] = mine.weight;
  }
  return mine.id;
}

__device__ __forceinline__ int valid_tokens(const DeviceRouteArgs& args) {
  if (args.num_valid_tokens == nullptr) return args.num_tokens;
  return min(args.num_tokens, *reinterpret_cast<const volatile int32_t*>(args.num_valid_tokens));
}

// --- placement

// Sum of the counts of the experts below this thread's; 256 threads, one an expert. warp_totals: 8 words.
__device__ __forceinline__ int prefix_over_experts(int count, int* warp_totals) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int inclusive = count;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int below = __shfl_up_sync(kAllLanes, inclusive, offset);
    if (lane >= offset) inclusive += below;
  }
  if (lane == 31) warp_totals[warp] = inclusive;
  __syncthreads();
  int base = 0;
  for (int w = 0; w < warp; ++w) base += warp_totals[w];
  return base + inclusive - count;
}

// By the thread of every expert.
__device__ __forceinline__ void store_indptr(const DeviceRouteArgs& args, int expert, int first, int count) {
  if (expert < args.shape.num_experts) args.expert_indptr[expert] = first;
  if (expert == args.shape.num_experts - 1) args.expert_indptr[expert + 1] = first + count;
}

// A row that belongs to no expert: rows of padding lie behind all others, in the order of the tokens.
__device__ __forceinline__ void place_padding(const DeviceRouteArgs& args, int64_t pair) {
  args.sorted_tokens[pair] = 0;
  args.pair_position[pair] = 0;
}
__device__ __forceinline__ void place_row(const DeviceRouteArgs& args, int64_t pair, int token, int row) {
  args.sorted_tokens[row] = token;
  args.pair_position[pair] = row;
}

}  // namespace vayu::ops
