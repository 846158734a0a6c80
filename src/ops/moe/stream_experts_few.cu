// Experts for one or two tokens, where the tiles of stream_experts.cu are too few and too large: one row of sarvam-30b
// has 56 gate-up tiles of 1 MB for 132 SMs, and an SM reads 1 MB in 17 us.
//
// The weights of each projection are a line of stages: 64 rows by 256 bytes of depth, 16 KB. A tile is 64 rows over the
// whole depth (gate-up 16 stages in FP8, down 4). A block, one an SM, has a run of whole down tiles and a run of
// gate-up stages that makes its bytes equal to all others'. A run is longer than a tile, so at most two blocks share a
// gate-up tile, and each writes its part of the sums.
//
//   warp 8      a ring of stages, each one copy; down weights follow gate-up weights without a stop
//   warps 0-7   two warpgroups, the first 128 bytes of each stage to one, the others to the other. Weights are the 64
//               rows of wgmma (m64n8), tokens the 8 columns, zeros where there is none: all tokens are multiplied with
//               every expert, what was not asked for is dropped, so nothing is gathered
//
// Gate and up sums go to global memory, a barrier of the whole grid stands between the lines, and each block makes h
// itself, of the one or two experts whose down rows it has: SwiGLU, scales of 128 columns, rounding (16 KB a row from
// the L2 cache), so that no block waits for another's scale.
//
// Time line, one token of sarvam-30b with the shared expert, FP8: 88 MB, 667 KB or 41 stages an SM, 24 to 29 of them
// gate-up, at the memory's 4.25 TB/s a stage in 0.51 us.
//   0    to 2     first copies arrive (1.2 us of latency), x and the routing are read beside them
//   2    to 16    gate-up; a stage takes a warpgroup 4 products of about 25 cycles and 100 of latency: 0.12 us
//   16   to 19.5  end of the last product, sums, barrier (1.5), h (1.2), while the ring fills with 8 stages: 4.1 us
//   19.5 to 22.7  the 12 to 16 down stages: half in the ring already, the rest at the memory's pace, which never
//   stopped 22.7 to 24    last product, both halves added, out
// SMs do not read equally fast, which a fixed share pays for: 5 to 10 % of 21 us. Hence 25 to 27 us, against 35.7 of
// the tiles. From four tokens on the tiles are even enough by themselves, and are dealt as they are asked for.
//
// The weights of the shared expert do not depend on the routing: they are called into the L2 cache before the router
// has ended. For that the block fits beside the router's: shared memory as kBesideRouter says, and registers: 80 x 12
// warps leave 136 for the router's 8.
//
// Tried and dropped: units of 16 rows with mma.sync (42.8 us in FP8: sm_90 widens E4M3 to half first, and the
// conversions were the bound; 49.9 in BF16).
#include "ops/moe/stream_experts_few.h"

#include "ops/cuda/launch.cuh"
#include "ops/cuda/num_sms.h"
#include "ops/cuda/require.h"
#include "ops/cuda/stream_ring.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/vector.cuh"

namespace vayu::ops {
namespace {

constexpr int kMaxTokens = 8;  // columns of wgmma
constexpr int kTileRows = 64;
constexpr int kStageBlocks = 2;  // of 128 bytes of depth, one a warpgroup
constexpr int kBoxBytes = kTileRows * 128;
constexpr int kStageBytes = kStageBlocks * kBoxBytes;
constexpr int kRowsBytes = kMaxTokens * 128;  // of x or h in a block of depth
constexpr int kMaxStages = 12;
constexpr int kFewestStages = 6;  // 96 KB under way; 40 KB at 1.2 us are the bandwidth of an SM
constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 32;
constexpr int kWarpsAsDealt = 12;  // registers are dealt to four warps at a time
constexpr int kMaxExperts = kConsumers;
constexpr int kMaxGroups = 65;       // the shared expert and those that have rows
constexpr int kMaxScaleGroups = 32;  // of a row of h
// Of 228 KB an SM, less the router's block at 16 rows (21.1 + 25 KB) and 1 KB of the system for each.
constexpr int64_t kBesideRouter = 184 * 1000;
constexpr int64_t kMostShared = 227 * 1024;

struct Fixed {
  float exchange[2][4][128];  // sums of the second warpgroup; tiles take turns
  float h_scales[kMaxScaleGroups][kMaxTokens];
  float token_scales[kMaxTokens];
  int16_t row_of[kMaxGroups][kMaxTokens];  // of h and out, -1: not this expert's token. Group 0: the shared expert
  int16_t expert[kMaxGroups];              // group 0: 0, of matrices of its own
  int16_t sorted_tokens[kMaxGroups];
  int32_t warp_counts[kConsumers / 32];
  uint64_t full[kMaxStages], empty[kMaxStages];
};

struct Params {
  const uint8_t* x;
  const float* x_scales;
  float* sums;  // (2 parts, num_pairs + num_tokens, 2 * ffn), in the order of the rows of gate-up
  Bf16* out;
  const float *gate_up_scales, *down_scales, *shared_gate_up_scales, *shared_down_scales;
  const uint8_t *shared_gate_up, *shared_down;
  const int32_t* expert_indptr;
  const int32_t* sorted_tokens;
  uint32_t* arrived;
  int64_t part_floats;  // of one part of sums
  int64_t shared_up_bytes, shared_down_bytes;
  int32_t num_tokens, num_pairs, num_experts, hidden, ffn, has_shared, stages;
};

// Dynamic shared memory: the ring, x, h, the rest. x and h: (blocks of 128 bytes of depth, 8 tokens, 128) in the
// 128-byte swizzle.
struct Place {
  uint8_t* ring;
  uint8_t* x;
  uint8_t* h;
  Fixed* fixed;
};
template <int kElementBytes>
__device__ __forceinline__ int blocks_of(int depth) {
  return depth * kElementBytes / 128;
}
template <int kElementBytes>
__device__ __forceinline__ Place place_of(const Params& p, uint8_t* raw) {
  Place place;
  place.ring = raw + (1024 - shared_address(raw) % 1024) % 1024;  // no integer: the compiler must see shared memory
  place.x = place.ring + p.stages * kStageBytes;
  place.h = place.x + blocks_of<kElementBytes>(p.hidden) * kRowsBytes;
  place.fixed = reinterpret_cast<Fixed*>(place.h + blocks_of<kElementBytes>(p.ffn) * kRowsBytes);
  return place;
}

// The lines of both projections, and where they are cut.
struct Lines {
  int up_tiles, up_stages;  // tiles, and stages of one
  int down_tiles, down_stages;
  bool even;   // bytes are made equal
  bool whole;  // fewer gate-up tiles than blocks: no tile is cut

  __device__ __forceinline__ int share(int count, int block) const {
    return static_cast<int>(static_cast<uint32_t>(block) * static_cast<uint32_t>(count) / gridDim.x);
  }
  __device__ __forceinline__ int down_cut(int block) const { return share(down_tiles, block) * down_stages; }
  __device__ __forceinline__ int up_cut(int block) const {
    if (even) return share(up_tiles * up_stages + down_tiles * down_stages, block) - down_cut(block);
    return whole ? share(up_tiles, block) * up_stages : share(up_tiles * up_stages, block);
  }
};
template <int kElementBytes>
__device__ __forceinline__ Lines lines_of(const Params& p, int routed) {
  const int experts = routed + p.has_shared, grid = static_cast<int>(gridDim.x);
  Lines l;
  l.up_tiles = experts * (2 * p.ffn / kTileRows);
  l.up_stages = (blocks_of<kElementBytes>(p.hidden) + kStageBlocks - 1) / kStageBlocks;
  l.down_tiles = experts * (p.hidden / kTileRows);
  l.down_stages = (blocks_of<kElementBytes>(p.ffn) + kStageBlocks - 1) / kStageBlocks;
  // No run of gate-up stages is shorter than a tile: the shortest share less the longest of down tiles.
  const int shortest = (l.up_tiles * l.up_stages + l.down_tiles * l.down_stages) / grid -
                       (l.down_tiles + grid - 1) / grid * l.down_stages;
  l.even = shortest >= l.up_stages;
  l.whole = l.up_tiles < grid;
  return l;
}

// This block's stages of one projection, tile by tile.
struct Walk {
  int group, tile;  // tile of the group
  int first;        // stage of the tile
  int left;         // stages
  int per_expert, stages;

  __device__ __forceinline__ int count() const { return min(left, stages - first); }
  __device__ __forceinline__ void advance() {
    left -= count();
    first = 0;
    if (++tile == per_expert) {
      tile = 0;
      ++group;
    }
  }
};
__device__ __forceinline__ Walk walk_of(const Params& p, const Lines& l, bool down) {
  const int block = static_cast<int>(blockIdx.x);
  const int begin = down ? l.down_cut(block) : l.up_cut(block);
  Walk walk;
  walk.stages = down ? l.down_stages : l.up_stages;
  walk.per_expert = (down ? p.hidden : 2 * p.ffn) / kTileRows;
  walk.left = (down ? l.down_cut(block + 1) : l.up_cut(block + 1)) - begin;
  const int tile = begin / walk.stages;
  walk.first = begin % walk.stages;
  walk.group = 1 - p.has_shared + tile / walk.per_expert;
  walk.tile = tile % walk.per_expert;
  return walk;
}

__device__ __forceinline__ uint32_t load_acquire(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t add_release(uint32_t* p, uint32_t v) {
  uint32_t before;
  asm volatile("atom.release.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory");
  return before;
}
__device__ __forceinline__ void consumer_barrier() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

__device__ __forceinline__ void copy_blocks(const CUtensorMap* map, uint64_t* barrier, void* shared, int row,
                                            int block) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, "
      "%5}], [%2], %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(0), "r"(row), "r"(block), "l"(kEvictFirst)
      : "memory");
}

// This block's share of a shared matrix on its way to the L2 cache.
__device__ __forceinline__ void call_into_l2(const uint8_t* matrix, int64_t bytes) {
  constexpr int64_t kLine = 128;
  const int64_t lines = bytes / kLine;
  const int64_t first = blockIdx.x * lines / gridDim.x, last = (blockIdx.x + 1) * lines / gridDim.x;
  if (first == last) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(matrix + first * kLine),
               "r"(static_cast<uint32_t>((last - first) * kLine))
               : "memory");
}

// --- the stream of weights, by one thread

template <int kElementBytes>
__device__ void stream_weights(const Params& p, const Place& place, const Lines& lines, const CUtensorMap* gate_up,
                               const CUtensorMap* down, const CUtensorMap* shared_gate_up,
                               const CUtensorMap* shared_down) {
  Fixed& f = *place.fixed;
  Ring at;
#pragma unroll 1
  for (int projection = 0; projection < 2; ++projection) {
    const int rows = projection ? p.hidden : 2 * p.ffn;
    const CUtensorMap* routed = projection ? down : gate_up;
    const CUtensorMap* shared = projection ? shared_down : shared_gate_up;
#pragma unroll 1
    for (Walk walk = walk_of(p, lines, projection == 1); walk.left > 0; walk.advance()) {
      const int row = f.expert[walk.group] * rows + walk.tile * kTileRows;
      const CUtensorMap* map = walk.group == 0 ? shared : routed;
      const int last = walk.first + walk.count();
#pragma unroll 1
      for (int stage = walk.first; stage < last; ++stage) {
        barrier_wait(&f.empty[at.stage], at.phase ^ 1);
        barrier_arrive_expect(&f.full[at.stage], kStageBytes);
        copy_blocks(map, &f.full[at.stage], place.ring + at.stage * kStageBytes, row, stage * kStageBlocks);
        at.advance(p.stages);
      }
    }
  }
}

// --- the products

struct Consumer {
  int thread, warp, lane;
  int warpgroup;
  int row;     // of the tile, of the first of this thread's two
  int column;  // token of the first of two
  int turn;    // of the exchange
  Ring at;
};

// d = this warpgroup's half of a run of stages of a tile, times x or h. A block behind the depth is zeros in the ring.
template <int kElementBytes>
__device__ __forceinline__ void multiply_run(const Params& p, const Place& place, Consumer& c, bool down, int first,
                                             int count, float (&d)[4]) {
  Fixed& f = *place.fixed;
  const int last_block = blocks_of<kElementBytes>(down ? p.ffn : p.hidden) - 1;
  const uint8_t* rows = down ? place.h : place.x;
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] = 0;
#pragma unroll 1
  for (int stage = first; stage < first + count; ++stage) {
    const int block = min(stage * kStageBlocks + c.warpgroup, last_block);
    const uint64_t a = swizzled_descriptor(place.ring + c.at.stage * kStageBytes + c.warpgroup * kBoxBytes);
    const uint64_t b = swizzled_descriptor(rows + block * kRowsBytes);
    float scale[2] = {1, 1};
    if (kElementBytes == 1 && down) {
      scale[0] = f.h_scales[block][c.column];
      scale[1] = f.h_scales[block][c.column + 1];
    }
    float part[4];
    barrier_wait(&f.full[c.at.stage], c.at.phase);
    wgmma_pin(part);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      multiply<kElementBytes, 8>(part, a + k * kDescriptorStep, b + k * kDescriptorStep, k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(part);
    if (c.lane == 0) barrier_arrive(&f.empty[c.at.stage]);
    c.at.advance(p.stages);
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] += part[i] * scale[i % 2];
  }
}

// The sums of both warpgroups, in the first. A buffer is written again two barriers later; by then the first has come
// to the one between, and has read it.
__device__ __forceinline__ void add_halves(Fixed& f, Consumer& c, float (&d)[4]) {
  float(&buffer)[4][128] = f.exchange[c.turn];
  c.turn ^= 1;
  if (c.warpgroup == 1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) buffer[i][c.thread % 128] = d[i];
  }
  consumer_barrier();
  if (c.warpgroup == 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] += buffer[i][c.thread];
  }
}

template <int kElementBytes>
__device__ __forceinline__ void run_tile(const Params& p, const Place& place, Consumer& c, bool down,
                                         const Walk& walk) {
  Fixed& f = *place.fixed;
  const int rows = down ? p.hidden : 2 * p.ffn, row = walk.tile * kTileRows + c.row;
  const bool starts = walk.first == 0, whole = walk.count() == walk.stages;
  float scale[2] = {1, 1};
  if (kElementBytes == 1 && c.warpgroup == 0) {  // asked for before the weights are waited for
    const float* scales = walk.group == 0 ? (down ? p.shared_down_scales : p.shared_gate_up_scales)
                                          : (down ? p.down_scales : p.gate_up_scales);
    scales += int64_t{f.expert[walk.group]} * rows + row;
    scale[0] = scales[0];
    scale[1] = scales[8];
  }
  float d[4];
  multiply_run<kElementBytes>(p, place, c, down, walk.first, walk.count(), d);
  add_halves(f, c, d);
  if (c.warpgroup != 0) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = c.column + i % 2, to = f.row_of[walk.group][token];
    if (to < 0) continue;
    const float v = d[i] * scale[i / 2];
    const int64_t place_of_sum = int64_t{to} * rows + row + 8 * (i / 2);
    if (down) {
      p.out[place_of_sum] = to_bf16(v);
    } else {
      float* sum = p.sums + place_of_sum;
      sum[starts ? 0 : p.part_floats] = v * f.token_scales[token];
      if (whole) sum[p.part_floats] = 0;  // nobody else has a part
    }
  }
}

__device__ __forceinline__ float4 load_both(const float* sums, int64_t part_floats) {
  const float4 a = __ldcg(reinterpret_cast<const float4*>(sums));
  const float4 b = __ldcg(reinterpret_cast<const float4*>(sums + part_floats));
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// h of a group's tokens, zeros for the others, a warp for 128 columns of two tokens. Nobody reads h or its scales now:
// all products of the last tile ended before its barrier.
template <int kElementBytes>
__device__ __forceinline__ void make_h(const Params& p, const Place& place, const Consumer& c, int group) {
  constexpr int kAtOnce = 2;
  Fixed& f = *place.fixed;
#pragma unroll 1
  for (int i = c.warp; i < p.ffn / 128 * (kMaxTokens / kAtOnce); i += kConsumers / 32) {
    const int part = i % (p.ffn / 128), first = i / (p.ffn / 128) * kAtOnce;
    float4 gate[kAtOnce], up[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int row = f.row_of[group][first + j];
      gate[j] = up[j] = make_float4(0, 0, 0, 0);
      if (row < 0) continue;
      // Outputs 128 part + 4 lane: gate and up in runs of 64.
      const float* sums = p.sums + int64_t{row} * 2 * p.ffn + part * 256 + c.lane / 16 * 128 + c.lane % 16 * 4;
      gate[j] = load_both(sums, p.part_floats);
      up[j] = load_both(sums + kGateUpInterleave, p.part_floats);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int token = first + j;
      const float g[4] = {gate[j].x, gate[j].y, gate[j].z, gate[j].w};
      const float u[4] = {up[j].x, up[j].y, up[j].z, up[j].w};
      float h[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) h[k] = g[k] / (1.0f + __expf(-g[k])) * u[k];
      if constexpr (kElementBytes == 1) {
        const float peak = warp_max_keep_nan(
            max_keep_nan(max_keep_nan(fabsf(h[0]), fabsf(h[1])), max_keep_nan(fabsf(h[2]), fabsf(h[3]))));
        const float scale = f8_scale(peak), inverse = 1.0f / scale;
        if (c.lane == 0) f.h_scales[part][token] = scale;
        *reinterpret_cast<uint32_t*>(place.h + part * kRowsBytes + swizzled_offset(token, c.lane / 4) +
                                     c.lane % 4 * 4) =
            pack_f8x4(h[0] * inverse, h[1] * inverse, h[2] * inverse, h[3] * inverse);
      } else {
        *reinterpret_cast<uint2*>(place.h + (2 * part + c.lane / 16) * kRowsBytes +
                                  swizzled_offset(token, c.lane % 16 / 2) + c.lane % 2 * 8) =
            make_uint2(pack_bf16x2(h[0], h[1]), pack_bf16x2(h[2], h[3]));
      }
    }
  }
  fence_shared_for_async();
  consumer_barrier();
}

// All blocks' sums are in memory. Block 0 brings the counter's top bit, the others one each, so the bit flips when the
// last has come, the bits below are 0 again, and the counter needs no reset. Before the last has come nobody can see it
// flip, so the value that a block finds when it comes itself has the old bit. The blocks of a launch are all resident:
// they are as many as there are SMs, and those of the launch before them end without them.
__device__ __forceinline__ void wait_for_grid(const Params& p, const Consumer& c) {
  consumer_barrier();
  if (c.thread == 0) {
    const uint32_t before = add_release(p.arrived, blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u);
    while (((load_acquire(p.arrived) ^ before) & 0x80000000u) == 0) {
    }
  }
  consumer_barrier();
}

template <int kElementBytes>
__device__ void consume(const Params& p, const Place& place, Consumer& c, const Lines& lines) {
#pragma unroll 1
  for (int projection = 0; projection < 2; ++projection) {
    const bool down = projection == 1;
    if (down) wait_for_grid(p, c);
    int current = -1;
#pragma unroll 1
    for (Walk walk = walk_of(p, lines, down); walk.left > 0; walk.advance()) {
      if (down && walk.group != current) make_h<kElementBytes>(p, place, c, walk.group);
      current = walk.group;
      run_tile<kElementBytes>(p, place, c, down, walk);
    }
  }
}

// --- beginning

// Tokens [first, last) of x, zeros where there is no token.
template <int kElementBytes>
__device__ __forceinline__ void fetch_x(const Params& p, const Place& place, int first, int last) {
  const int chunks = p.hidden * kElementBytes / 16;
#pragma unroll 1
  for (int token = first; token < last; ++token) {
    const bool exists = token < p.num_tokens;
    const uint8_t* from = p.x + (exists ? int64_t{token} * chunks * 16 : 0);
#pragma unroll 1
    for (int chunk = threadIdx.x; chunk < chunks; chunk += kConsumers) {
      copy_async16(shared_address(place.x) + chunk / 8 * kRowsBytes + swizzled_offset(token, chunk % 8),
                   from + chunk * 16, exists ? 16 : 0);
    }
  }
  copy_async_commit();
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
  fence_shared_for_async();
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
  const bool consumes = threadIdx.x < kConsumers;
  if (threadIdx.x == kConsumers) {
    call_into_l2(p.shared_gate_up, p.shared_up_bytes);
    call_into_l2(p.shared_down, p.shared_down_bytes);
#pragma unroll 1
    for (int i = 0; i < p.stages; ++i) {
      barrier_init(&f.full[i], 1);
      barrier_init(&f.empty[i], kConsumers / 32);
    }
    barrier_init_fence();
    prefetch_map(&gate_up);
    prefetch_map(&down);
    prefetch_map(&shared_gate_up);
    prefetch_map(&shared_down);
  }
  for (int i = threadIdx.x; i < kMaxGroups * kMaxTokens; i += kThreads) {
    f.row_of[i / kMaxTokens][i % kMaxTokens] =
        static_cast<int16_t>(i < p.num_tokens ? p.num_pairs + i : -1);  // of group 0, and none
  }
  if (threadIdx.x == 0) f.expert[0] = 0;
  if (consumes) fetch_x<kElementBytes>(p, place, p.num_tokens, kMaxTokens);
  wait_for_inputs();
  if (consumes) fetch_x<kElementBytes>(p, place, 0, p.num_tokens);
  if (threadIdx.x < kMaxTokens) {
    const bool scaled = kElementBytes == 1 && static_cast<int>(threadIdx.x) < p.num_tokens;
    f.token_scales[threadIdx.x] = scaled ? __ldcg(&p.x_scales[threadIdx.x]) : 1.0f;
  }
  const int groups = list_groups(p, f);
  let_next_start();
  const Lines lines = lines_of<kElementBytes>(p, groups);
  if (consumes) {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    Consumer c{.thread = thread,
               .warp = warp,
               .lane = lane,
               .warpgroup = warp / 4,
               .row = warp % 4 * 16 + lane / 4,
               .column = lane % 4 * 2,
               .turn = 0,
               .at = {}};
    consume<kElementBytes>(p, place, c, lines);
  } else if (threadIdx.x == kConsumers) {
    stream_weights<kElementBytes>(p, place, lines, &gate_up, &down, &shared_gate_up, &shared_down);
  }
}

int64_t bytes_beside_ring(const StreamExpertsArgs& a) {
  return (a.gate_up.row_bytes() + a.down.row_bytes()) * kMaxTokens + int64_t{sizeof(Fixed)} + 1024;
}

// As deep as fits beside the router's block, or, where x and h are large, as fits at all.
int ring_stages(const StreamExpertsArgs& a) {
  int64_t stages = (kBesideRouter - bytes_beside_ring(a)) / kStageBytes;
  if (stages < kFewestStages) stages = (kMostShared - bytes_beside_ring(a)) / kStageBytes;
  return static_cast<int>(stages < kMaxStages ? stages : kMaxStages);
}

CUtensorMap map_of(const DeviceMatrix& m) {
  return byte_blocks_map(m.data, m.rows, m.row_bytes(), kTileRows, kStageBlocks);
}

}  // namespace

bool stream_experts_few_fits(const StreamExpertsArgs& a) {
  const int64_t rows = int64_t{a.num_tokens} * (a.top_k + 1);
  return a.num_tokens <= kMaxTokens && a.num_experts <= kMaxExperts && a.num_tokens * a.top_k < kMaxGroups &&
         a.gate_up.cols % kTileRows == 0 && a.gate_up.row_bytes() % 128 == 0 && a.ffn / 128 <= kMaxScaleGroups &&
         2 * rows * 2 * a.ffn * int64_t{sizeof(float)} <= kStreamExpertsFewBytes && ring_stages(a) >= kFewestStages;
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
                 .shared_gate_up = static_cast<const uint8_t*>(a.shared_gate_up.data),
                 .shared_down = static_cast<const uint8_t*>(a.shared_down.data),
                 .expert_indptr = a.expert_indptr,
                 .sorted_tokens = a.sorted_tokens,
                 .arrived = workspace + 32,
                 .part_floats = int64_t{a.num_tokens} * (a.top_k + 1) * 2 * a.ffn,
                 .shared_up_bytes = has_shared ? a.shared_gate_up.rows * a.shared_gate_up.row_bytes() : 0,
                 .shared_down_bytes = has_shared ? a.shared_down.rows * a.shared_down.row_bytes() : 0,
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
