// Experts for up to 8 tokens, where the tiles of stream_experts.cu are too few and too large: one row of sarvam-30b has
// 56 gate-up tiles of 1 MB for 132 SMs, and an SM reads 1 MB in 17 us.
//
// A unit is 16 weight rows over the whole depth (64 KB of gate and up, 16 KB of down in FP8). Every block, one an SM,
// has an equal share of the line of gate-up units, and a share of the line of down units that evens out the bytes: at
// one row 7 and 12 or 13 units, or 6 and 16 or 17; 656 KB at most, 652 on average. A block is one stream of weights:
//
//   warp 8      a ring of stages of 16 KB, each one copy: 16 rows by 8 blocks of 128 bytes of depth, block after block
//   warps 0-7   warp w multiplies block w of every stage with mma.sync (weights are the 16 rows, tokens the 8 columns;
//               all tokens are multiplied with every expert, what was not asked for is dropped, so nothing is
//               gathered), and the block adds its warps at the end of a unit: 256 threads, 5 KB, one barrier
//
// Gate and up sums go to global memory as they are. Between the lines stands a barrier of the whole grid; the ring is
// full of down weights by the time it opens (10 stages: 5 us of reading; the barrier and what follows take 3). A block
// then makes h itself, of the one or two experts whose down rows it has: SwiGLU, scales of 128 columns, rounding (1 to
// 8 rows of 8 KB from the L2 cache), so no block waits for another's scale.
//
// The weights of the shared expert do not depend on the routing: before the router has ended, its gate-up rows are in
// the ring and its down rows on their way to the L2 cache. For that the block fits beside the router's: shared memory
// as kBesideRouter says, and registers: 80 x 12 warps leave 136 for the router's 8.
#include "ops/cuda/launch.cuh"
#include "ops/cuda/num_sms.h"
#include "ops/cuda/require.h"
#include "ops/cuda/stream_ring.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/vector.cuh"
#include "ops/moe/stream_experts_few.h"

namespace vayu::ops {
namespace {

constexpr int kMaxTokens = 8;  // columns of mma
constexpr int kUnitRows = 16;
constexpr int kStageBlocks = 8;  // one a warp
constexpr int kBoxBytes = kUnitRows * 128;
constexpr int kStageBytes = kStageBlocks * kBoxBytes;
constexpr int kMaxStages = 12;
constexpr int kFewestStages = 6;  // 96 KB under way; 40 KB at 1.2 us are the bandwidth of an SM
constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 32;
constexpr int kWarpsAsDealt = 12;  // registers are dealt to four warps at a time
constexpr int kMaxExperts = kConsumers;
constexpr int kMaxGroups = 65;       // the shared expert and those that have rows
constexpr int kMaxScaleGroups = 32;  // of a row of h
constexpr int kPartialStride = 20;   // floats of a column: 16 rows, and no two lanes of a store in one bank
// Of 228 KB an SM, less the router's block at 16 rows (21.1 + 25 KB) and 1 KB of the system for each.
constexpr int64_t kBesideRouter = 184 * 1000;
constexpr int64_t kMostShared = 227 * 1024;

struct Fixed {
  float partials[2][kStageBlocks][kMaxTokens * kPartialStride];
  float h_scales[kMaxScaleGroups][kMaxTokens];
  float token_scales[kMaxTokens];
  int16_t row_of[kMaxGroups][kMaxTokens];  // of h and out, -1: not this expert's token. Group 0: the shared expert
  int16_t expert[kMaxGroups];              // group 0: 0, of matrices of its own
  int16_t sorted_tokens[kMaxGroups];
  int32_t warp_counts[kConsumers / 32];
  uint32_t arrived_before;  // the counter of the grid's barrier before this block came
  uint64_t full[kMaxStages], empty[kMaxStages];
};

struct Params {
  const uint8_t* x;
  const float* x_scales;
  float* sums;  // (num_pairs + num_tokens, 2 * ffn), in the order of the rows of gate-up
  Bf16* out;
  const float *gate_up_scales, *down_scales, *shared_gate_up_scales, *shared_down_scales;
  const uint8_t* shared_down;
  const int32_t* expert_indptr;
  const int32_t* sorted_tokens;
  uint32_t* arrived;
  int32_t num_tokens, num_pairs, num_experts, hidden, ffn, has_shared, stages;
};

// Dynamic shared memory: the ring, x, h, the rest. x (blocks of 128 bytes of depth, num_tokens, 128) in the 128-byte
// swizzle, h likewise.
struct Place {
  uint8_t* ring;
  uint8_t* x;
  uint8_t* h;
  Fixed* fixed;
};
template <int kElementBytes>
__device__ __forceinline__ Place place_of(const Params& p, uint8_t* raw) {
  Place place;
  place.ring = raw + (1024 - shared_address(raw) % 1024) % 1024;  // no integer: the compiler must see shared memory
  place.x = place.ring + p.stages * kStageBytes;
  place.h = place.x + p.num_tokens * p.hidden * kElementBytes;
  place.fixed = reinterpret_cast<Fixed*>(place.h + p.num_tokens * p.ffn * kElementBytes);
  return place;
}

// This block's units of one projection, the shared expert's first. These are dealt before the routing is known; the
// routed ones make all of it equal to one unit. (A whole number of experts has a cut wherever one expert has, so no
// block has more of the shared units than of all.)
struct Walk {
  int group, unit;  // the next
  int left, shared_left;
  int per_expert, next_group, next_unit;  // where the routed ones begin

  __device__ __forceinline__ void advance() {
    --left;
    ++unit;
    if (group == 0) {
      if (--shared_left == 0) enter_routed();
    } else if (unit == per_expert) {
      ++group;
      unit = 0;
    }
  }
  __device__ __forceinline__ void enter_routed() {
    group = next_group;
    unit = next_unit;
  }
};
__device__ __forceinline__ int cut(uint32_t units, uint32_t block) {
  return static_cast<int>(block * units / gridDim.x);
}
// The cut of the line of down units that evens out the stages of both projections.
__device__ __forceinline__ int even_cut(int up_units, int up_stages, int down_units, int down_stages, uint32_t block) {
  return (cut(up_units * up_stages + down_units * down_stages, block) - cut(up_units, block) * up_stages) / down_stages;
}
template <int kElementBytes>
__device__ __forceinline__ int blocks_of(int depth) {
  return depth * kElementBytes / 128;
}
template <int kElementBytes>
__device__ __forceinline__ int stages_of(int depth) {
  return (blocks_of<kElementBytes>(depth) + kStageBlocks - 1) / kStageBlocks;
}

template <int kElementBytes>
__device__ __forceinline__ Walk walk_of(const Params& p, bool down, int routed) {
  const int block = static_cast<int>(blockIdx.x), experts = routed + p.has_shared;
  Walk walk;
  walk.per_expert = (down ? p.hidden : 2 * p.ffn) / kUnitRows;
  const int shared_first = cut(p.has_shared * walk.per_expert, block);
  const int shared_last = cut(p.has_shared * walk.per_expert, block + 1);
  const int all = experts * walk.per_expert;
  int first = cut(all, block), last = cut(all, block + 1);
  const int up_stages = stages_of<kElementBytes>(p.hidden), down_stages = stages_of<kElementBytes>(p.ffn);
  // Where every block has so many routed units that it can have a gate-up unit's worth less, and rounding.
  if (down &&
      routed * walk.per_expert * down_stages >= static_cast<int>(gridDim.x) * (up_stages + 2 * down_stages + 1)) {
    const int up_units = experts * (2 * p.ffn / kUnitRows);
    first = even_cut(up_units, up_stages, all, down_stages, block);
    last = even_cut(up_units, up_stages, all, down_stages, block + 1);
  }
  walk.left = last - first;
  walk.shared_left = shared_last - shared_first;
  walk.next_group = 1 + (first - shared_first) / walk.per_expert;
  walk.next_unit = (first - shared_first) % walk.per_expert;
  walk.group = 0;
  walk.unit = shared_first;
  if (walk.shared_left == 0) walk.enter_routed();
  return walk;
}

__device__ __forceinline__ uint32_t load_acquire(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void add_release(uint32_t* p, uint32_t v) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void consumer_barrier() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

__device__ __forceinline__ void prefetch_l2(const void* global, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_blocks(const CUtensorMap* map, uint64_t* barrier, void* shared, int row,
                                            int block) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, "
      "%5}], [%2], %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(0), "r"(row), "r"(block), "l"(kEvictFirst)
      : "memory");
}

// --- the stream of weights, by one thread

struct Stream {
  uint8_t* ring;
  Fixed* fixed;
  int stages;
  Ring at;

  __device__ __forceinline__ void fetch(const CUtensorMap* map, int row, int block) {
    barrier_wait(&fixed->empty[at.stage], at.phase ^ 1);
    barrier_arrive_expect(&fixed->full[at.stage], kStageBytes);
    copy_blocks(map, &fixed->full[at.stage], ring + at.stage * kStageBytes, row, block);
    at.advance(stages);
  }
};

// What can be asked for before the routing is known, as far as the ring goes. Returns how many stages that is.
template <int kElementBytes>
__device__ int stream_ahead(const Params& p, Stream& s, const CUtensorMap* shared_gate_up) {
  if (!p.has_shared) return 0;
  const Walk up = walk_of<kElementBytes>(p, false, 0), down = walk_of<kElementBytes>(p, true, 0);
  const int blocks = blocks_of<kElementBytes>(p.hidden);
  int ahead = 0;
#pragma unroll 1
  for (int unit = up.unit; unit < up.unit + up.left; ++unit) {
#pragma unroll 1
    for (int block = 0; block < blocks && ahead < p.stages; block += kStageBlocks, ++ahead) {
      s.fetch(shared_gate_up, unit * kUnitRows, block);
    }
  }
  const int unit_bytes = kUnitRows * p.ffn * kElementBytes;
  if (down.left > 0) {
    prefetch_l2(p.shared_down + int64_t{down.unit} * unit_bytes, static_cast<uint32_t>(down.left * unit_bytes));
  }
  return ahead;
}

template <int kElementBytes>
__device__ void stream_rest(const Params& p, Stream& s, int groups, int ahead, const CUtensorMap* gate_up,
                            const CUtensorMap* down, const CUtensorMap* shared_gate_up,
                            const CUtensorMap* shared_down) {
#pragma unroll 1
  for (int projection = 0; projection < 2; ++projection) {
    const int rows = projection ? p.hidden : 2 * p.ffn;
    const int blocks = blocks_of<kElementBytes>(projection ? p.ffn : p.hidden);
    const CUtensorMap* routed = projection ? down : gate_up;
    const CUtensorMap* shared = projection ? shared_down : shared_gate_up;
#pragma unroll 1
    for (Walk walk = walk_of<kElementBytes>(p, projection == 1, groups); walk.left > 0; walk.advance()) {
      const int row = s.fixed->expert[walk.group] * rows + walk.unit * kUnitRows;
#pragma unroll 1
      for (int block = 0; block < blocks; block += kStageBlocks) {
        if (--ahead < 0) s.fetch(walk.group == 0 ? shared : routed, row, block);
      }
    }
  }
}

// --- the products

struct Consumer {
  int thread, warp, lane;
  int turn;  // which half of the warps adds the next unit
  Ring at;
  uint32_t a, b;  // offsets of this lane's rows for ldmatrix, in a box and in a block of x or h
};

__device__ __forceinline__ void load_matrices(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}

// 16 rows of weights by 8 tokens over 32 bytes of depth. ptxas makes two HMMA of an e4m3 product on sm_90, operands
// widened to half: exact, with full sums.
template <int kElementBytes>
__device__ __forceinline__ void multiply_step(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kElementBytes == 1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// d = this warp's blocks of the next unit times `rows` (x or h). Lane (g, t) = (lane / 4, lane % 4) gets rows g and
// g + 8 of the unit at tokens 2 t and 2 t + 1. The chunks of a step differ in bits of their own, so that the swizzle is
// an exclusive or: 32 bytes a step of a, 64 of two steps of b.
template <int kElementBytes>
__device__ __forceinline__ void multiply_unit(const Params& p, const Place& place, Consumer& c, bool down,
                                              float (&d)[4]) {
  Fixed& f = *place.fixed;
  const int blocks = blocks_of<kElementBytes>(down ? p.ffn : p.hidden);
  const uint8_t* rows = down ? place.h : place.x;
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] = 0;
#pragma unroll 1
  for (int first = 0; first < blocks; first += kStageBlocks) {
    const int block = first + c.warp;
    barrier_wait(&f.full[c.at.stage], c.at.phase);
    if (block < blocks) {
      const uint32_t a = shared_address(place.ring) + c.at.stage * kStageBytes + c.warp * kBoxBytes;
      const uint32_t b = shared_address(rows) + block * p.num_tokens * 128;
      float part[2][4] = {};
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        uint32_t tokens[4];
        load_matrices(tokens, b + (c.b ^ (pair << 6)));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint32_t weights[4];
          load_matrices(weights, a + (c.a ^ ((2 * pair + i) << 5)));
          multiply_step<kElementBytes>(part[i], weights, tokens[2 * i], tokens[2 * i + 1]);
        }
      }
      float scale[2] = {1, 1};
      if (kElementBytes == 1 && down) {
        scale[0] = f.h_scales[block][2 * (c.lane % 4)];
        scale[1] = f.h_scales[block][2 * (c.lane % 4) + 1];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) d[i] += (part[0][i] + part[1][i]) * scale[i % 2];
    }
    __syncwarp();
    if (c.lane == 0) barrier_arrive(&f.empty[c.at.stage]);
    c.at.advance(p.stages);
  }
}

// The sum over the warps, for thread % 128 = 16 * token + row of the half whose turn it is. The halves take turns, and
// each has a buffer: what a half reads is written again after the next barrier, to which it comes when it has read.
__device__ __forceinline__ float add_warps(Fixed& f, Consumer& c, const float (&d)[4]) {
  float* mine = f.partials[c.turn][c.warp] + c.lane % 4 * 2 * kPartialStride + c.lane / 4;
  mine[0] = d[0];
  mine[kPartialStride] = d[1];
  mine[8] = d[2];
  mine[kPartialStride + 8] = d[3];
  consumer_barrier();
  float sum = 0;
  if (c.warp / 4 == c.turn) {
    const int at = c.thread % 128 / 16 * kPartialStride + c.thread % 16;
#pragma unroll
    for (int w = 0; w < kStageBlocks; ++w) sum += f.partials[c.turn][w][at];
  }
  c.turn ^= 1;
  return sum;
}

template <int kElementBytes>
__device__ __forceinline__ void run_unit(const Params& p, const Place& place, Consumer& c, bool down, int group,
                                         int unit) {
  Fixed& f = *place.fixed;
  const bool adds = c.warp / 4 == c.turn;
  const int rows = down ? p.hidden : 2 * p.ffn;
  const int row = unit * kUnitRows + c.thread % 16, token = c.thread % 128 / 16, to = f.row_of[group][token];
  float scale = 1;
  if (kElementBytes == 1 && adds) {  // asked for before the weights are waited for
    const float* scales = group == 0 ? (down ? p.shared_down_scales : p.shared_gate_up_scales)
                                     : (down ? p.down_scales : p.gate_up_scales);
    scale = __ldg(&scales[int64_t{f.expert[group]} * rows + row]);
    if (!down) scale *= f.token_scales[token];
  }
  float d[4];
  multiply_unit<kElementBytes>(p, place, c, down, d);
  const float sum = add_warps(f, c, d);
  if (!adds || to < 0) return;
  if (down) {
    p.out[int64_t{to} * rows + row] = to_bf16(sum * scale);
  } else {
    p.sums[int64_t{to} * rows + row] = sum * scale;
  }
}

// h of a group's tokens, a warp for 128 columns, two rows at once. Nobody reads h or its scales now: the barrier
// of the last unit came after the last reads.
template <int kElementBytes>
__device__ __forceinline__ void make_h(const Params& p, const Place& place, const Consumer& c, int group) {
  constexpr int kAtOnce = 2;
  Fixed& f = *place.fixed;
#pragma unroll 1
  for (int i = c.warp; i < p.ffn / 128 * (kMaxTokens / kAtOnce); i += 8) {
    const int part = i / (kMaxTokens / kAtOnce), first = i % (kMaxTokens / kAtOnce) * kAtOnce;
    float4 gate[kAtOnce], up[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int row = f.row_of[group][first + j];
      if (row < 0) continue;
      // Outputs 128 part + 4 lane: gate and up in runs of 64.
      const float* sums = p.sums + int64_t{row} * 2 * p.ffn + part * 256 + c.lane / 16 * 128 + c.lane % 16 * 4;
      gate[j] = __ldcg(reinterpret_cast<const float4*>(sums));
      up[j] = __ldcg(reinterpret_cast<const float4*>(sums + kGateUpInterleave));
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int token = first + j;
      if (f.row_of[group][token] < 0) continue;
      const float g[4] = {gate[j].x, gate[j].y, gate[j].z, gate[j].w};
      const float u[4] = {up[j].x, up[j].y, up[j].z, up[j].w};
      float h[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) h[k] = __fdividef(g[k], 1.0f + __expf(-g[k])) * u[k];
      if constexpr (kElementBytes == 1) {
        const float peak = warp_max_keep_nan(
            max_keep_nan(max_keep_nan(fabsf(h[0]), fabsf(h[1])), max_keep_nan(fabsf(h[2]), fabsf(h[3]))));
        const float scale = f8_scale(peak), inverse = 1.0f / scale;
        if (c.lane == 0) f.h_scales[part][token] = scale;
        uint8_t* row = place.h + (part * p.num_tokens + token) * 128;
        *reinterpret_cast<uint32_t*>(row + ((c.lane / 4) ^ token) * 16 + c.lane % 4 * 4) =
            pack_f8x4(h[0] * inverse, h[1] * inverse, h[2] * inverse, h[3] * inverse);
      } else {
        uint8_t* row = place.h + ((2 * part + c.lane / 16) * p.num_tokens + token) * 128;
        *reinterpret_cast<uint2*>(row + ((c.lane % 16 / 2) ^ token) * 16 + c.lane % 2 * 8) =
            make_uint2(pack_bf16x2(h[0], h[1]), pack_bf16x2(h[2], h[3]));
      }
    }
  }
  consumer_barrier();
}

// All blocks' sums are in memory. Block 0 brings the counter's top bit, the others one each, so the bit flips when the
// last has come, and the counter needs no reset. The blocks of a launch are all resident: they are as many as there are
// SMs, and those of the launch before them end without them.
__device__ __forceinline__ void wait_for_grid(const Params& p, const Fixed& f, const Consumer& c) {
  consumer_barrier();
  if (c.thread == 0) {
    const uint32_t before = f.arrived_before;
    add_release(p.arrived, blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u);
    while (((load_acquire(p.arrived) ^ before) & 0x80000000u) == 0) {
    }
  }
  consumer_barrier();
}

template <int kElementBytes>
__device__ void consume(const Params& p, const Place& place, Consumer& c, int groups) {
#pragma unroll 1
  for (int projection = 0; projection < 2; ++projection) {
    const bool down = projection == 1;
    if (down) wait_for_grid(p, *place.fixed, c);
    int current = -1;
#pragma unroll 1
    for (Walk walk = walk_of<kElementBytes>(p, down, groups); walk.left > 0; walk.advance()) {
      if (down && walk.group != current) make_h<kElementBytes>(p, place, c, walk.group);
      current = walk.group;
      run_unit<kElementBytes>(p, place, c, down, walk.group, walk.unit);
    }
  }
}

// --- beginning

template <int kElementBytes>
__device__ __forceinline__ void fetch_x(const Params& p, const Place& place) {
  const int chunks = p.hidden * kElementBytes / 16;
#pragma unroll 1
  for (int token = 0; token < p.num_tokens; ++token) {
#pragma unroll 1
    for (int chunk = threadIdx.x; chunk < chunks; chunk += kConsumers) {
      copy_async16(shared_address(place.x) + (chunk / 8 * p.num_tokens + token) * 128 + ((chunk % 8 ^ token) << 4),
                   p.x + (int64_t{token} * chunks + chunk) * 16);
    }
  }
  copy_async_commit();
  if (kElementBytes == 1 && static_cast<int>(threadIdx.x) < p.num_tokens) {
    place.fixed->token_scales[threadIdx.x] = __ldcg(&p.x_scales[threadIdx.x]);
  }
}

// By the whole block: group 1 + i is the i-th expert that has rows. Returns their number.
__device__ int list_groups(const Params& p, Fixed& f) {
  const int expert = static_cast<int>(threadIdx.x), warp = expert / 32;
  int first = 0, rows = 0;
  if (expert < p.num_experts) {
    first = __ldcg(&p.expert_indptr[expert]);
    rows = __ldcg(&p.expert_indptr[expert + 1]) - first;
  }
  if (expert < p.num_pairs) f.sorted_tokens[expert] = static_cast<int16_t>(__ldcg(&p.sorted_tokens[expert]));
  const uint32_t touched = __ballot_sync(0xffffffffu, rows > 0);
  if (warp < kConsumers / 32 && expert % 32 == 0) f.warp_counts[warp] = __popc(touched);
  copy_async_wait<0>();
  __syncthreads();
  int before = 0, all = 0;
#pragma unroll
  for (int w = 0; w < kConsumers / 32; ++w) {
    const int count = f.warp_counts[w];
    if (w < warp) before += count;
    all += count;
  }
  if (rows > 0) {
    const int group = 1 + before + __popc(touched & ((1u << (expert % 32)) - 1));
    f.expert[group] = static_cast<int16_t>(expert);
    for (int i = 0; i < rows; ++i) f.row_of[group][f.sorted_tokens[first + i]] = static_cast<int16_t>(first + i);
  }
  __syncthreads();
  return all;
}

template <int kElementBytes>
__global__ void __launch_bounds__(kWarpsAsDealt * 32, 2)  // at most 80 registers
    stream_experts_few_kernel(const __grid_constant__ CUtensorMap gate_up, const __grid_constant__ CUtensorMap down,
                              const __grid_constant__ CUtensorMap shared_gate_up,
                              const __grid_constant__ CUtensorMap shared_down, const Params p) {
  extern __shared__ uint8_t raw[];
  const Place place = place_of<kElementBytes>(p, raw);
  Fixed& f = *place.fixed;
  const bool streams = threadIdx.x == kConsumers;
  Stream stream{place.ring, place.fixed, p.stages, {}};
  int ahead = 0;
  if (streams) {
#pragma unroll 1
    for (int i = 0; i < p.stages; ++i) {
      barrier_init(&f.full[i], 1);
      barrier_init(&f.empty[i], kStageBlocks);
    }
    barrier_init_fence();
    ahead = stream_ahead<kElementBytes>(p, stream, &shared_gate_up);
    prefetch_map(&gate_up);
    prefetch_map(&down);
  }
  for (int i = threadIdx.x; i < kMaxGroups * kMaxTokens; i += kThreads) {
    f.row_of[i / kMaxTokens][i % kMaxTokens] =
        static_cast<int16_t>(i < p.num_tokens ? p.num_pairs + i : -1);  // of group 0, and none
  }
  if (threadIdx.x == 0) f.expert[0] = 0;
  wait_for_inputs();
  if (threadIdx.x == 0) f.arrived_before = load_acquire(p.arrived);
  if (threadIdx.x < kConsumers) fetch_x<kElementBytes>(p, place);
  const int groups = list_groups(p, f);
  let_next_start();
  if (threadIdx.x < kConsumers) {
    const int lane = static_cast<int>(threadIdx.x) % 32, token = lane % 8 < p.num_tokens ? lane % 8 : 0;
    Consumer c{.thread = static_cast<int>(threadIdx.x),
               .warp = static_cast<int>(threadIdx.x) / 32,
               .lane = lane,
               .turn = 0,
               .at = {},
               .a = swizzled_offset(lane % 16, lane / 16),
               .b = swizzled_offset(token, lane / 8)};
    consume<kElementBytes>(p, place, c, groups);
  } else if (streams) {
    stream_rest<kElementBytes>(p, stream, groups, ahead, &gate_up, &down, &shared_gate_up, &shared_down);
  }
}

int64_t bytes_beside_ring(const StreamExpertsArgs& a) {
  return a.num_tokens * (a.gate_up.row_bytes() + a.down.row_bytes()) + int64_t{sizeof(Fixed)} + 1024;
}

// As deep as fits beside the router's block, or, where x and h are large, as fits at all.
int ring_stages(const StreamExpertsArgs& a) {
  int64_t stages = (kBesideRouter - bytes_beside_ring(a)) / kStageBytes;
  if (stages < kFewestStages) stages = (kMostShared - bytes_beside_ring(a)) / kStageBytes;
  return static_cast<int>(stages < kMaxStages ? stages : kMaxStages);
}

CUtensorMap map_of(const DeviceMatrix& m) {
  return byte_blocks_map(m.data, m.rows, m.row_bytes(), kUnitRows, kStageBlocks);
}

}  // namespace

bool stream_experts_few_fits(const StreamExpertsArgs& a) {
  const int64_t rows = int64_t{a.num_tokens} * (a.top_k + 1);
  return a.num_tokens <= kMaxTokens && a.num_experts <= kMaxExperts && a.num_tokens * a.top_k < kMaxGroups &&
         a.gate_up.cols % kUnitRows == 0 && a.gate_up.row_bytes() % 128 == 0 && a.ffn / 128 <= kMaxScaleGroups &&
         rows * 2 * a.ffn * int64_t{sizeof(float)} <= kStreamExpertsFewBytes && ring_stages(a) >= kFewestStages;
}

void launch_stream_experts_few(CudaStream stream, const StreamExpertsArgs& a) {
  const bool has_shared = a.shared_gate_up.rows > 0;
  auto* workspace = static_cast<uint32_t*>(a.workspace);
  const Params p{.x = static_cast<const uint8_t*>(a.x.data),
                 .x_scales = a.x.scales,
                 .sums = reinterpret_cast<float*>(workspace + 2 * kStreamExpertsMaxGroups + 64),
                 .out = a.out,
                 .gate_up_scales = a.gate_up.scales,
                 .down_scales = a.down.scales,
                 .shared_gate_up_scales = a.shared_gate_up.scales,
                 .shared_down_scales = a.shared_down.scales,
                 .shared_down = static_cast<const uint8_t*>(a.shared_down.data),
                 .expert_indptr = a.expert_indptr,
                 .sorted_tokens = a.sorted_tokens,
                 .arrived = workspace + 32,
                 .num_tokens = a.num_tokens,
                 .num_pairs = a.num_tokens * a.top_k,
                 .num_experts = a.num_experts,
                 .hidden = static_cast<int32_t>(a.gate_up.cols),
                 .ffn = a.ffn,
                 .has_shared = has_shared,
                 .stages = ring_stages(a)};
  const CUtensorMap gate_up = map_of(a.gate_up), down = map_of(a.down);
  const CUtensorMap shared_gate_up = has_shared ? map_of(a.shared_gate_up) : gate_up;
  const CUtensorMap shared_down = has_shared ? map_of(a.shared_down) : down;
  const LaunchShape shape{dim3(num_sms()), dim3(kThreads),
                          static_cast<size_t>(bytes_beside_ring(a) + int64_t{p.stages} * kStageBytes), 1};
  launch_overlapped(a.gate_up.is_f8() ? stream_experts_few_kernel<1> : stream_experts_few_kernel<2>, shape, stream,
                    gate_up, down, shared_gate_up, shared_down, p);
}

}  // namespace vayu::ops
