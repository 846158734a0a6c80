// A persistent kernel, one block an SM, bound by reading weights. A tile is 256 weight rows of one group of rows (an
// expert and up to 32 of the rows that chose it) over the whole depth: 128 outputs of gate and up, or 256 of down. All
// gate-up tiles come first in one list, then all down tiles; blocks take tiles from a global counter (the first is
// that of the block's number), so the tail is one down tile long (256 KB of weights, 1 to 3 % of a block's share).
//
//   warp 8      takes tiles, streams weights: boxes of 256 rows x 128 bytes into a ring of 6 stages (192 KB in flight)
//   warp 9      gathers the rows of activations beside them (cp.async, up to 32 x 128 bytes a stage); for a down tile
//               it waits until all gate-up tiles of the group are done (counters in global memory)
//   warps 0-7   two warpgroups; weights are the M side of wgmma, so rows need no padding to 64: N is 8, 16 or 32. A
//               group of more rows is cut; its weights are then read again, at about the same time, out of the L2
//               cache
//
// With half_tiles, for few tokens, gate-up tiles are half as high: 64 outputs, for one of the two warpgroups. An SM
// reads some 43 GB/s whatever the others do, so that the 56 whole tiles of one token of sarvam-30b take as long as 100.
//
// The two projections of a group are ordered by the counters alone, so there is no drain between them. Between launches
// there is none either: two sets of counters take turns, a launch clears those of the next.
//
// The shared expert's gate-up rows are called into the L2 cache before the router has ended.
//
// Tried and dropped: the depth of gate-up tiles cut in 2 to 8 parts where there are fewer tiles than SMs, sums through
// global memory. 50 us in place of 44 at one row of six experts: the fence and the counter of a part cost a block more
// than the 128 KB it saves. Two kernels for few rows in which every block reads as many bytes as any other: 43
// (mma.sync) and 41 us (wgmma, a barrier of the grid between the projections) in place of 36.
#include "ops/cuda/launch.cuh"
#include "ops/cuda/num_sms.h"
#include "ops/cuda/require.h"
#include "ops/cuda/stream_ring.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/vector.cuh"
#include "ops/moe/stream_experts.h"

namespace vayu::ops {
namespace {

constexpr int kStages = 6;
constexpr int kTileRows = 256;
constexpr int kMaxRows = kStreamExpertsPassRows;  // of activations under one pass of the weights
constexpr int kWeightStageBytes = kTileRows * 128;
constexpr int kRowStageBytes = kMaxRows * 128;
constexpr int kTileSlots = 4;
constexpr int kThreads = 384;  // warps 10 and 11 only fill the warpgroup, so that registers can move to the consumers
constexpr int kMaxGroups = kStreamExpertsMaxGroups;
constexpr int kHalvesTokens = kStreamExpertsHalvesTokens;

struct Group {
  int16_t expert;  // num_experts: the shared one
  int16_t rows;    // 1 .. kMaxRows
  int32_t first;   // row of h and out
};

struct Tile {
  int32_t group;  // -1: no more
  int32_t block;
  int32_t down;
};

struct Shared {
  uint8_t weights[kStages][kWeightStageBytes];
  uint8_t rows[kStages][kRowStageBytes];
  // Of one block of 128 inputs of h. Behind half tiles: of its first 64 inputs, and kHalvesTokens on of the others.
  float row_scales[kStages][kMaxRows];
  float token_scales[kMaxRows];  // of x
  float peaks[8][kMaxRows];      // largest magnitude a warp saw of each row
  Group groups[kMaxGroups];
  Tile tiles[kTileSlots];
  int32_t warp_counts[kThreads / 32];
  uint64_t full[kStages], empty[kStages], tile_full[kTileSlots], tile_empty[kTileSlots];
  int32_t num_groups;
  int32_t turn;  // which set of counters is this launch's
};

struct Params {
  const uint8_t* x;
  const float* x_scales;
  uint8_t* h;
  float* h_scales;
  Bf16* out;
  const float *gate_up_scales, *down_scales, *shared_gate_up_scales, *shared_down_scales;
  const int32_t* expert_indptr;
  const int32_t* sorted_tokens;
  const uint8_t* shared_gate_up;
  int64_t shared_gate_up_bytes;
  // Each kernel leaves the first two zero, and the third as 1 less what it was.
  int32_t* next_tile;    // workspace[0]
  int32_t* blocks_done;  // workspace[1]: those that have found no more tiles
  int32_t* turn;         // workspace[2]
  int32_t* done;         // workspace[64 ..]: finished gate-up tiles of each group, two sets
  int32_t num_tokens, num_pairs, num_experts, hidden, ffn, has_shared;
  int32_t block_scales;  // of FP8 weights: by blocks, not by rows
  int32_t halves;        // 1: gate-up tiles are half as high
  int32_t up_blocks;     // gate-up tiles of a group
};

__device__ int32_t load_acquire(const int32_t* p) {
  int32_t v;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

// The groups in order: the shared expert's (it has the most rows), then each expert that has rows. By the whole block,
// an expert a thread: one trip to the L2 cache (a warp with four experts a lane took four, 2 us).
__device__ void list_groups(const Params& p, Shared& s) {
  const int shared_groups = p.has_shared ? (p.num_tokens + kMaxRows - 1) / kMaxRows : 0;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int g = threadIdx.x; g < shared_groups; g += kThreads) {
    s.groups[g] = {static_cast<int16_t>(p.num_experts),
                   static_cast<int16_t>(min(kMaxRows, p.num_tokens - g * kMaxRows)), p.num_pairs + g * kMaxRows};
  }
  int count = shared_groups;
  for (int base = 0; base < p.num_experts; base += kThreads) {
    const int e = base + static_cast<int>(threadIdx.x);
    int first = 0, rows = 0;
    if (e < p.num_experts) {
      first = __ldcg(&p.expert_indptr[e]);
      rows = __ldcg(&p.expert_indptr[e + 1]) - first;
    }
    const int mine = (rows + kMaxRows - 1) / kMaxRows;
    int upto = mine;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, upto, offset);
      if (lane >= offset) upto += other;
    }
    if (lane == 31) s.warp_counts[warp] = upto;
    __syncthreads();
    int at = count + upto - mine;
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) at += s.warp_counts[w];
      count += s.warp_counts[w];
    }
    for (int i = 0; i < mine && at + i < kMaxGroups; ++i) {
      s.groups[at + i] = {static_cast<int16_t>(e), static_cast<int16_t>(min(kMaxRows, rows - i * kMaxRows)),
                          first + i * kMaxRows};
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) s.num_groups = min(count, kMaxGroups);
}

// This block's share of the shared expert's gate-up rows on their way to the L2 cache. (Its down rows too: no gain.)
__device__ __forceinline__ void call_shared_weights(const Params& p) {
  constexpr int64_t kLine = 128;
  const int64_t lines = p.shared_gate_up_bytes / kLine;
  const int64_t first = blockIdx.x * lines / gridDim.x, last = (blockIdx.x + 1) * lines / gridDim.x;
  if (first == last) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p.shared_gate_up + first * kLine),
               "r"(static_cast<uint32_t>((last - first) * kLine))
               : "memory");
}

// No block takes tiles any more, and all have read whose turn it is.
__device__ __forceinline__ void end_turn(const Params& p, int turn) {
  if (atomicAdd(p.blocks_done, 1) != static_cast<int>(gridDim.x) - 1) return;
  *p.next_tile = 0;
  *p.blocks_done = 0;
  *p.turn = 1 - turn;
}

template <int kElementBytes>
__device__ void stream_weights(const Params& p, Shared& s, const CUtensorMap* gate_up, const CUtensorMap* down,
                               const CUtensorMap* shared_gate_up, const CUtensorMap* shared_down) {
  const int up_blocks = p.up_blocks, down_blocks = (p.hidden + kTileRows - 1) / kTileRows;
  const int up_tiles = s.num_groups * up_blocks, all_tiles = up_tiles + s.num_groups * down_blocks;
  Ring ring, slot;
  for (bool first = true;; first = false) {
    const int index = first ? static_cast<int>(blockIdx.x) : static_cast<int>(gridDim.x) + atomicAdd(p.next_tile, 1);
    Tile tile{-1, 0, 0};
    if (index < up_tiles) {
      tile = {index / up_blocks, index % up_blocks, 0};
    } else if (index < all_tiles) {
      tile = {(index - up_tiles) / down_blocks, (index - up_tiles) % down_blocks, 1};
    }
    barrier_wait(&s.tile_empty[slot.stage], slot.phase ^ 1);
    s.tiles[slot.stage] = tile;
    barrier_arrive(&s.tile_full[slot.stage]);
    slot.advance(kTileSlots);
    if (tile.group < 0) {
      end_turn(p, s.turn);
      return;
    }
    const int expert = s.groups[tile.group].expert;
    const bool shared_expert = expert == p.num_experts;
    const CUtensorMap* map =
        tile.down ? (shared_expert ? shared_down : down) : (shared_expert ? shared_gate_up : gate_up);
    const int per_expert = tile.down ? p.hidden : 2 * p.ffn;
    const int halves = tile.down ? 0 : p.halves;
    const int row = (shared_expert ? 0 : expert) * per_expert + tile.block * (kTileRows >> halves);
    const int depth = (tile.down ? p.ffn : p.hidden) * kElementBytes;
    for (int column = 0; column < depth; column += 128) {
      barrier_wait(&s.empty[ring.stage], ring.phase ^ 1);
      barrier_arrive_expect(&s.full[ring.stage], kWeightStageBytes >> halves);
      copy_tile(map, &s.full[ring.stage], s.weights[ring.stage], column, row, kEvictFirst);
      ring.advance(kStages);
    }
  }
}

// Rows of activations beside the weights, zero behind the group's rows up to the width of the product.
template <int kElementBytes>
__device__ void gather_rows(const Params& p, Shared& s, int lane) {
  Ring ring, slot;
  for (;;) {
    barrier_wait(&s.tile_full[slot.stage], slot.phase);
    const Tile tile = s.tiles[slot.stage];
    __syncwarp();
    if (lane == 0) barrier_arrive(&s.tile_empty[slot.stage]);
    slot.advance(kTileSlots);
    if (tile.group < 0) return;
    const Group group = s.groups[tile.group];
    const int width = group.rows <= 8 ? 8 : group.rows <= 16 ? 16 : 32;
    const int64_t depth = int64_t{tile.down ? p.ffn : p.hidden} * kElementBytes;
    if (tile.down) {
      while (load_acquire(&p.done[s.turn * kMaxGroups + tile.group]) < p.up_blocks) __nanosleep(64);
      __syncwarp();
    }
    // Lane l copies chunk l % 8 of rows l / 8 + 4 i.
    const uint8_t* base = (tile.down ? p.h : p.x) + (lane % 8) * 16;
    uint32_t offset[kMaxRows / 4];
#pragma unroll
    for (int i = 0; i < kMaxRows / 4; ++i) {
      const int r = min(lane / 8 + 4 * i, group.rows - 1);
      int64_t row = group.first + r;
      if (!tile.down) row = group.expert == p.num_experts ? row - p.num_pairs : p.sorted_tokens[row];
      offset[i] = static_cast<uint32_t>(row * (depth / 16));
    }
    const int groups_of_h = p.ffn / 128;
    int block = 0;
    for (int64_t column = 0; column < depth; column += 128, ++block) {
      barrier_wait(&s.empty[ring.stage], ring.phase ^ 1);
      const uint32_t rows = shared_address(s.rows[ring.stage]);
#pragma unroll
      for (int i = 0; i < kMaxRows / 4; ++i) {
        const int r = lane / 8 + 4 * i;
        if (r >= width) break;
        const bool there = r < group.rows && column + (lane % 8) * 16 < depth;
        copy_async16(rows + swizzled_offset(r, lane % 8), there ? base + int64_t{offset[i]} * 16 + column : p.x,
                     there ? 16 : 0);
      }
      if (kElementBytes == 1 && tile.down) {
        if (p.halves) {
          static_assert(2 * kHalvesTokens <= 32);
          const int r = lane % kHalvesTokens, half = lane / kHalvesTokens;
          if (half < 2 && r < group.rows) {
            s.row_scales[ring.stage][lane] =
                __ldcg(&p.h_scales[2 * (int64_t{group.first + r} * groups_of_h + block) + half]);
          }
        }
        for (int r = lane; !p.halves && r < group.rows; r += 32) {
          s.row_scales[ring.stage][r] = __ldcg(&p.h_scales[int64_t{group.first + r} * groups_of_h + block]);
        }
        __syncwarp();
      }
      barrier_arrive_on_copies(&s.full[ring.stage]);
      if (lane == 0) barrier_arrive(&s.full[ring.stage]);
      ring.advance(kStages);
    }
  }
}

// d0, d1 (+)= the two 64-row halves of this warpgroup's 128 weight rows times the stage's activations, of whose 128
// bytes of depth those from 32 kFirst to 32 kLast.
template <int kElementBytes, int kWidth, int kFirst = 0, int kLast = 4>
__device__ __forceinline__ void multiply_stage(const Shared& s, int stage, int warpgroup, float (&d0)[kWidth / 2],
                                               float (&d1)[kWidth / 2], bool fresh) {
  const uint64_t a = swizzled_descriptor(s.weights[stage] + warpgroup * 128 * 128);
  const uint64_t b = swizzled_descriptor(s.rows[stage]);
  wgmma_pin(d0);
  wgmma_pin(d1);
  wgmma_fence();
#pragma unroll
  for (int k = kFirst; k < kLast; ++k) {
    const int accumulate = !(fresh && k == kFirst);
    multiply<kElementBytes, kWidth>(d0, a + k * kDescriptorStep, b + k * kDescriptorStep, accumulate);
    multiply<kElementBytes, kWidth>(d1, a + (64 * 128 >> 4) + k * kDescriptorStep, b + k * kDescriptorStep, accumulate);
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin(d0);
  wgmma_pin(d1);
}

struct Consumer {
  int thread;  // 0 .. 255
  int warp;    // 0 .. 7
  int lane;
  int warpgroup;  // 0, 1
  int row;        // of d[...] with h = 0, in the 64-row half
  Ring ring;
};

__device__ __forceinline__ void consumer_barrier() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// Every stage's writes by cp.async are ordinary writes: each reader makes them visible to the tensor cores itself.
__device__ __forceinline__ void wait_stage(Shared& s, const Ring& ring) {
  barrier_wait(&s.full[ring.stage], ring.phase);
  fence_shared_for_async();
}

__device__ __forceinline__ void release_stage(Shared& s, Consumer& c) {
  if (c.lane == 0) barrier_arrive(&s.empty[c.ring.stage]);
  c.ring.advance(kStages);
}

// The scales of a warpgroup's two halves of 64 rows along the depth, 32 blocks at hand: a lane has those of one.
struct BlockScales {
  const float* low;   // of the first half: (depth_blocks); null: all are 1
  const float* high;  // of the second
  float mine[2] = {1, 1};

  // `scales`: the expert's, (rows, depth_blocks), or null; `row`: that of the first half. The last tile may end behind.
  __device__ __forceinline__ BlockScales(const float* scales, int row, int rows, int depth_blocks)
      : low(scales == nullptr ? nullptr : scales + min(row, rows - 1) * depth_blocks),
        high(scales == nullptr ? nullptr : scales + min(row + 1, rows - 1) * depth_blocks) {}
  __device__ __forceinline__ float2 at(int block, int depth_blocks, int lane) {
    if (block % 32 == 0 && low != nullptr && block + lane < depth_blocks) {
      mine[0] = low[block + lane];
      mine[1] = high[block + lane];
    }
    return make_float2(__shfl_sync(0xffffffffu, mine[0], block % 32), __shfl_sync(0xffffffffu, mine[1], block % 32));
  }
};

// sum += part times the weights' scales and, kGrouped, the rows' (from `rows` on).
template <int kWidth, bool kGrouped>
__device__ __forceinline__ void add_scaled(const Consumer& c, const float* rows, float2 weight,
                                           const float (&part)[2][kWidth / 2], float (&sum)[2][kWidth / 2]) {
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float row = kGrouped ? rows[8 * j + 2 * (c.lane % 4) + i % 2] : 1.0f;
      sum[0][4 * j + i] += part[0][4 * j + i] * (row * weight.x);
      sum[1][4 * j + i] += part[1][4 * j + i] * (row * weight.y);
    }
  }
}

// sum = the halves' products over the depth, each 128 of it times the weights' scales and, kGrouped, the rows', which
// `halves` are of 64 inputs each.
template <int kWidth, bool kGrouped>
__device__ __forceinline__ void multiply_scaled(Shared& s, Consumer& c, int blocks, BlockScales scales, bool halves,
                                                float (&sum)[2][kWidth / 2]) {
  float part[2][kWidth / 2];
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) sum[0][i] = sum[1][i] = 0;
  for (int block = 0; block < blocks; ++block) {
    const float2 weight = scales.at(block, blocks, c.lane);
    wait_stage(s, c.ring);
    const float* rows = s.row_scales[c.ring.stage];
    if (kGrouped && kWidth == kHalvesTokens && halves) {
      multiply_stage<1, kWidth, 0, 2>(s, c.ring.stage, c.warpgroup, part[0], part[1], true);
      add_scaled<kWidth, kGrouped>(c, rows, weight, part, sum);
      multiply_stage<1, kWidth, 2, 4>(s, c.ring.stage, c.warpgroup, part[0], part[1], true);
      add_scaled<kWidth, kGrouped>(c, rows + kHalvesTokens, weight, part, sum);
    } else {
      multiply_stage<1, kWidth>(s, c.ring.stage, c.warpgroup, part[0], part[1], true);
      add_scaled<kWidth, kGrouped>(c, rows, weight, part, sum);
    }
    __syncwarp();
    release_stage(s, c);
  }
}

// The same of unscaled weights, or of weights whose rows are scaled afterwards.
template <int kElementBytes, int kWidth>
__device__ __forceinline__ void multiply_plain(Shared& s, Consumer& c, int blocks, float (&sum)[2][kWidth / 2]) {
  for (int block = 0; block < blocks; ++block) {
    wait_stage(s, c.ring);
    multiply_stage<kElementBytes, kWidth>(s, c.ring.stage, c.warpgroup, sum[0], sum[1], block == 0);
    release_stage(s, c);
  }
}

// The stages of half a tile go by the second warpgroup.
__device__ __forceinline__ void pass_stages(Shared& s, Consumer& c, int blocks) {
  for (int block = 0; block < blocks; ++block) {
    barrier_wait(&s.full[c.ring.stage], c.ring.phase);
    __syncwarp();
    release_stage(s, c);
  }
}

template <int kElementBytes, int kWidth>
__device__ void gate_up_tile(const Params& p, Shared& s, Consumer& c, const Tile& tile, const Group& group) {
  const bool shared_expert = group.expert == p.num_experts;
  const int blocks = (p.hidden * kElementBytes + 127) / 128;
  const bool halves = kWidth == kHalvesTokens && p.halves, idle = halves && c.warpgroup == 1;
  float gate_scale[2] = {1, 1}, up_scale[2] = {1, 1};
  float sum[2][kWidth / 2];
  auto &gate = sum[0], &up = sum[1];
  if constexpr (kElementBytes == 1) {
    const int expert = shared_expert ? 0 : group.expert;
    const float* scales = shared_expert ? p.shared_gate_up_scales : p.gate_up_scales;
    const int row = tile.block * (kTileRows >> halves) + c.warpgroup * 128;
    if (c.thread < group.rows) {
      const int token = shared_expert ? group.first - p.num_pairs + c.thread : p.sorted_tokens[group.first + c.thread];
      s.token_scales[c.thread] = p.x_scales[token];
    }
    if (idle) {
      pass_stages(s, c, blocks);
    } else if (p.block_scales) {
      const int rows = 2 * p.ffn / kScaleBlockRows;
      multiply_scaled<kWidth, false>(
          s, c, blocks, {scales + int64_t{expert} * rows * blocks, row / kScaleBlockRows, rows, blocks}, false, sum);
    } else {
      scales += int64_t{expert} * 2 * p.ffn + row;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        gate_scale[half] = scales[c.row + 8 * half];
        up_scale[half] = scales[64 + c.row + 8 * half];
      }
      multiply_plain<kElementBytes, kWidth>(s, c, blocks, sum);
    }
  } else if (idle) {
    pass_stages(s, c, blocks);
  } else {
    multiply_plain<kElementBytes, kWidth>(s, c, blocks, sum);
  }
  consumer_barrier();  // token_scales
  if (idle) {
    if constexpr (kElementBytes == 1) consumer_barrier();  // peaks
    consumer_barrier();                                    // the end
    return;
  }
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 8 * j + 2 * (c.lane % 4) + i % 2;
      const float token_scale = kElementBytes == 1 && column < group.rows ? s.token_scales[column] : 1.0f;
      const float g = gate[4 * j + i] * gate_scale[i / 2] * token_scale;
      const float u = up[4 * j + i] * up_scale[i / 2] * token_scale;
      gate[4 * j + i] = g / (1.0f + __expf(-g)) * u;
    }
  }
  const int output = tile.block * (128 >> halves) + c.warpgroup * 64 + c.row;
  if constexpr (kElementBytes == 1) {
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float peak = max_keep_nan(fabsf(gate[4 * j + i]), fabsf(gate[4 * j + 2 + i]));
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) {
          peak = max_keep_nan(peak, __shfl_xor_sync(0xffffffffu, peak, offset));
        }
        if (c.lane < 4) s.peaks[c.warp][8 * j + 2 * c.lane + i] = peak;
      }
    }
    consumer_barrier();
  }
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = 8 * j + 2 * (c.lane % 4) + i;
      if (column >= group.rows) continue;
      const int64_t place = int64_t{group.first + column} * p.ffn + output;
      if constexpr (kElementBytes == 1) {
        float peak = s.peaks[0][column];
        for (int w = 1; w < (halves ? 4 : 8); ++w) peak = max_keep_nan(peak, s.peaks[w][column]);
        const float scale = f8_scale(peak), inverse = 1.0f / scale;
        p.h[place] = to_f8(gate[4 * j + i] * inverse).bits;
        p.h[place + 8] = to_f8(gate[4 * j + 2 + i] * inverse).bits;
        if (c.warp == 0 && c.lane < 4) p.h_scales[int64_t{group.first + column} * p.up_blocks + tile.block] = scale;
      } else {
        Bf16* h = reinterpret_cast<Bf16*>(p.h) + place;
        h[0] = to_bf16(gate[4 * j + i]);
        h[8] = to_bf16(gate[4 * j + 2 + i]);
      }
    }
  }
  __threadfence();
  consumer_barrier();  // also: peaks and token_scales are free again
  if (c.thread == 0) atomicAdd(&p.done[s.turn * kMaxGroups + tile.group], 1);
}

template <int kElementBytes, int kWidth>
__device__ void down_tile(const Params& p, Shared& s, Consumer& c, const Tile& tile, const Group& group) {
  const bool shared_expert = group.expert == p.num_experts;
  const int blocks = (p.ffn * kElementBytes + 127) / 128;
  const float* scales = nullptr;  // of rows
  float sum[2][kWidth / 2];
  if constexpr (kElementBytes == 1) {  // each 128 inputs have their own scale a row
    const int expert = shared_expert ? 0 : group.expert;
    scales = shared_expert ? p.shared_down_scales : p.down_scales;
    const float* of_blocks = nullptr;
    const int rows = p.hidden / kScaleBlockRows;
    if (p.block_scales) {
      of_blocks = scales + int64_t{expert} * rows * blocks;
      scales = nullptr;
    } else {
      scales += int64_t{expert} * p.hidden;
    }
    const int row = (tile.block * kTileRows + c.warpgroup * 128) / kScaleBlockRows;
    multiply_scaled<kWidth, true>(s, c, blocks, {of_blocks, row, rows, blocks}, p.halves, sum);
  } else {
    multiply_plain<kElementBytes, kWidth>(s, c, blocks, sum);
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = tile.block * kTileRows + c.warpgroup * 128 + m * 64 + c.row + 8 * half;
      if (output >= p.hidden) continue;
      const float scale = scales != nullptr ? scales[output] : 1.0f;
#pragma unroll
      for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int column = 8 * j + 2 * (c.lane % 4) + i;
          if (column >= group.rows) continue;
          p.out[int64_t{group.first + column} * p.hidden + output] = to_bf16(sum[m][4 * j + 2 * half + i] * scale);
        }
      }
    }
  }
}

template <int kElementBytes, int kWidth>
__device__ __forceinline__ void run_tile(const Params& p, Shared& s, Consumer& c, const Tile& tile,
                                         const Group& group) {
  if (tile.down) {
    down_tile<kElementBytes, kWidth>(p, s, c, tile, group);
  } else {
    gate_up_tile<kElementBytes, kWidth>(p, s, c, tile, group);
  }
}

template <int kElementBytes>
__device__ void consume(const Params& p, Shared& s) {
  Consumer c;
  c.thread = static_cast<int>(threadIdx.x);
  c.warp = c.thread / 32;
  c.lane = c.thread % 32;
  c.warpgroup = c.warp / 4;
  c.row = 16 * (c.warp % 4) + c.lane / 4;
  Ring slot;
  for (;;) {
    barrier_wait(&s.tile_full[slot.stage], slot.phase);
    const Tile tile = s.tiles[slot.stage];
    __syncwarp();
    if (c.lane == 0) barrier_arrive(&s.tile_empty[slot.stage]);
    slot.advance(kTileSlots);
    if (tile.group < 0) return;
    const Group group = s.groups[tile.group];
    if (group.rows <= 8) {
      run_tile<kElementBytes, 8>(p, s, c, tile, group);
    } else if (group.rows <= 16) {
      run_tile<kElementBytes, 16>(p, s, c, tile, group);
    } else {
      run_tile<kElementBytes, 32>(p, s, c, tile, group);
    }
  }
}

template <int kElementBytes>
__global__ void __launch_bounds__(kThreads, 1)
    stream_experts_kernel(const __grid_constant__ CUtensorMap gate_up, const __grid_constant__ CUtensorMap down,
                          const __grid_constant__ CUtensorMap shared_gate_up,
                          const __grid_constant__ CUtensorMap shared_down, const Params p) {
  extern __shared__ uint8_t raw[];
  Shared& s = *reinterpret_cast<Shared*>((reinterpret_cast<uintptr_t>(raw) + 1023) / 1024 * 1024);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&s.full[i], 1 + 32 + 1);  // the weights' thread, each gathering lane's copies, and its scales
      barrier_init(&s.empty[i], 8);
    }
    for (int i = 0; i < kTileSlots; ++i) {
      barrier_init(&s.tile_full[i], 1);
      barrier_init(&s.tile_empty[i], 8 + 1);
    }
    barrier_init_fence();
  }
  if (threadIdx.x == 32) call_shared_weights(p);
  wait_for_inputs();
  if (threadIdx.x == 0) s.turn = __ldcg(p.turn);
  list_groups(p, s);
  __syncthreads();
  if (blockIdx.x == 0) {  // what the launch before this one used
    for (int i = threadIdx.x; i < kMaxGroups; i += kThreads) p.done[(1 - s.turn) * kMaxGroups + i] = 0;
  }
  let_next_start();
  if (warp < 8) {
    take_registers<208>();
    consume<kElementBytes>(p, s);
  } else {
    give_registers<88>();
    if (warp == 9) {
      gather_rows<kElementBytes>(p, s, static_cast<int>(threadIdx.x) % 32);
    } else if (threadIdx.x == 8 * 32) {
      stream_weights<kElementBytes>(p, s, &gate_up, &down, &shared_gate_up, &shared_down);
    }
  }
}

CUtensorMap map_of(const DeviceMatrix& m, int halves = 0) {
  return byte_rows_map(m.data, m.rows, m.row_bytes(), kTileRows >> halves);
}

}  // namespace

void stream_experts_cuda(CudaStream stream, const StreamExpertsArgs& a) {
  VAYU_REQUIRE(stream_experts_fits(a), "shapes of the expert streamer");
  if (a.num_tokens == 0) return;
  const int32_t hidden = static_cast<int32_t>(a.gate_up.cols);
  const bool has_shared = a.shared_gate_up.rows > 0;
  const bool halves = a.half_tiles;
  auto* workspace = static_cast<int32_t*>(a.workspace);
  const Params p{.x = static_cast<const uint8_t*>(a.x.data),
                 .x_scales = a.x.scales,
                 .h = static_cast<uint8_t*>(a.h.data),
                 .h_scales = a.h.scales,
                 .out = a.out,
                 .gate_up_scales = a.gate_up.scales,
                 .down_scales = a.down.scales,
                 .shared_gate_up_scales = a.shared_gate_up.scales,
                 .shared_down_scales = a.shared_down.scales,
                 .expert_indptr = a.expert_indptr,
                 .sorted_tokens = a.sorted_tokens,
                 .shared_gate_up = static_cast<const uint8_t*>(a.shared_gate_up.data),
                 .shared_gate_up_bytes = has_shared ? a.shared_gate_up.rows * a.shared_gate_up.row_bytes() : 0,
                 .next_tile = workspace,
                 .blocks_done = workspace + 1,
                 .turn = workspace + 2,
                 .done = workspace + 64,
                 .num_tokens = a.num_tokens,
                 .num_pairs = a.num_tokens * a.top_k,
                 .num_experts = a.num_experts,
                 .hidden = hidden,
                 .ffn = a.ffn,
                 .has_shared = has_shared,
                 .block_scales = a.gate_up.scale == WeightScale::kBlock,
                 .halves = halves,
                 .up_blocks = a.ffn / 128 << halves};
  const CUtensorMap gate_up = map_of(a.gate_up, halves), down = map_of(a.down);
  const CUtensorMap shared_gate_up = has_shared ? map_of(a.shared_gate_up, halves) : gate_up;
  const CUtensorMap shared_down = has_shared ? map_of(a.shared_down) : down;
  const LaunchShape shape{dim3(num_sms()), dim3(kThreads), sizeof(Shared) + 1024, 1};
  launch_overlapped(a.gate_up.is_f8() ? stream_experts_kernel<1> : stream_experts_kernel<2>, shape, stream, gate_up,
                    down, shared_gate_up, shared_down, p);
}

}  // namespace vayu::ops
