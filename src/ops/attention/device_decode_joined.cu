// Decode attention in one launch: pieces of the line of tiles (device_decode_line.cuh), then combination and
// quantisation by the same blocks.
//
// What bounds it is reading K and V once: 32 rows of 3,650 tokens with 4 kv heads of dimension 64 are 60 MB of FP8, 14
// us at 4.3 TB/s. The rest is a chain of latencies, 8 to 12 us at any number of rows when a second kernel combined:
// its launch waited for the first to end and drain, then read statistics, then pieces.
//
// One block an SM, eight warps that take turns at the tiles of the block's range, each with a ring of its own in shared
// memory filled by cp.async (16 KiB under way a warp, 128 KiB an SM; at 4.3 TB/s and a latency of 1 us an SM needs 33
// KiB), which runs on over the pieces of the range. Copies of slots behind kv_len are zeros: 0 * NaN of a stale value
// would be NaN. All that does not depend on the kernel before is done while that one runs: the plan and, where the
// caller vouches that all keys of a row but its last were written by earlier steps, the copies of a warp's first tiles;
// a row's last tile is called into the second-level cache.
//
// Then a block combines some heads of a row (as many rows and slices as there are blocks; the last blocks first, which
// have no tiles when contexts are short). Between blocks words go through global memory and say themselves whether they
// are there: a float is stored as the complement of its bits, never 0, and 0 is an empty place. So the reader asks for
// the pieces until they have come and no fence, counter or second trip stands between (a fence alone costs 700 cycles,
// as much as a trip to the second-level cache). Every word has one reader, or one block of them that has passed a
// barrier since, and it puts the 0 back: the scratch is all zeros between launches. The largest magnitude of a row,
// for its FP8 scale, goes from every slice to every slice in the same manner.
//
// Blocks wait for others of the same launch, so all must run at once: one an SM, which every SM can hold by itself once
// it is free. No other kernel that waits so may run beside it.
#include <algorithm>

#include "ops/attention/device_decode_line.cuh"
#include "ops/cuda/num_sms.h"
#include "ops/cuda/require.h"
#include "ops/norm/quantize_rows_math.cuh"

namespace vayu::ops {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kMinKeys = 256;   // of a block: a tile of 32 keys a warp
constexpr int kMaxSlices = 32;  // of a row: a lane for the peak of each
constexpr int kTogether = 4;    // pieces a thread asks for at once

// --- words that say whether they are there

__device__ __forceinline__ uint32_t to_word(float v) { return max(~__float_as_uint(v), 1u); }  // NaN stays NaN
__device__ __forceinline__ float from_word(uint32_t word) { return __uint_as_float(~word); }

__device__ __forceinline__ uint4 load_words4(const void* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
__device__ __forceinline__ uint2 load_words2(const void* p) {
  uint2 v;
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_word(const void* p) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void store_words4(void* p, uint4 v) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_words2(void* p, uint2 v) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_word(void* p, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
// A word that never comes is an error of this file: a fault in place of a hang, after some seconds.
struct Patience {
  int left = 1 << 23;
  __device__ __forceinline__ void spend() {
    if (--left == 0) __trap();
  }
};
__device__ __forceinline__ bool there(uint4 v) { return v.x != 0 && v.y != 0 && v.z != 0 && v.w != 0; }
__device__ __forceinline__ bool there(uint2 v) { return v.x != 0 && v.y != 0; }

// --- the block

// Behind it the ring: (stages, kWarps, tile); when the tiles are done, the values of a slice and Partial of every
// thread. Then the plan of the rows.
template <class Tile>
struct JoinedShared {
  static constexpr int kStages = Tile::kTileBytes > 4096 ? 2 : Tile::kHeadDim == 128 ? 4 : 5;
  WarpResults<Tile, kWarps> results;
  int warp_sums[kWarps];
  uint32_t reduction[32];
  uint32_t row_peak;
};
template <class Tile>
constexpr int kFixedBytes = (sizeof(JoinedShared<Tile>) + 127) / 128 * 128;

// Some of the pieces of four columns of one head.
struct Partial {
  float4 out;
  float max, sum;
};

template <class Tile>
__device__ __forceinline__ void store_piece(const DecodeParams& p, JoinedShared<Tile>& shared, DecodeState<Tile>& state,
                                            int piece, bool live) {
  __syncthreads();  // the piece before has been read
  shared.results.put(state);
  __syncthreads();
  constexpr int kVectors = Tile::kHeadDim / 4;
  const int group = p.num_q_heads / p.num_kv_heads;
#pragma unroll 1
  for (int i = threadIdx.x; i < group * kVectors; i += kThreads) {
    const int head = i / kVectors, vector = i % kVectors;
    float2 total;
    const float4 out = shared.results.add(head, vector, total);
    const int64_t row = int64_t{piece} * kDecodeHeads + head;
    if (!live) continue;
    store_words4(p.partials + row * Tile::kHeadDim + 4 * vector,
                 make_uint4(to_word(out.x), to_word(out.y), to_word(out.z), to_word(out.w)));
    if (vector == 0) store_words2(p.stats + row, make_uint2(to_word(total.x), to_word(total.y)));
  }
}

template <class Tile>
__device__ __forceinline__ void prefetch_tile(const DecodeParams& p, const Feed<Tile>& feed, int from) {
  const int lane = threadIdx.x % 32, valid = __shfl_sync(0xffffffffu, feed.valid, from);
#pragma unroll
  for (int i = 0; i < Tile::kPages; ++i) {
    const uint8_t* run = p.pages + int64_t{__shfl_sync(0xffffffffu, feed.run[i], from)} * Tile::kRunBytes;
    if (valid <= 16 * i) break;
#pragma unroll
    for (int line = 0; line < Tile::kRunBytes; line += 32 * 128) {
      if (line + lane * 128 < Tile::kRunBytes) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(run + line + lane * 128) : "memory");
      }
    }
  }
}

// The tiles of a range. A dry pass only fetches the code.
template <class Tile>
struct Splitter {
  static constexpr int kStages = JoinedShared<Tile>::kStages;
  const DecodeParams& p;
  JoinedShared<Tile>& shared;
  const char* ring;
  const RowPlan* rows;
  int first, last;
  Feed<Tile> feed;
  int fed = 0;  // tiles of this warp whose copies have been started

  __device__ __forceinline__ const char* stage_at(int stage) const {
    return ring + (stage * kWarps + threadIdx.x / 32) * Tile::kTileBytes;
  }

  // Before the kernel ahead has ended only tiles that it does not write: a tile behind them belongs to the same row.
  __device__ __forceinline__ void start(bool live) {
#pragma unroll 1
    for (; fed < kStages - 1; ++fed) {
      if (!live && !(p.keys_settled && __shfl_sync(0xffffffffu, feed.valid, fed) > Tile::kKeys)) {
        prefetch_tile<Tile>(p, feed, fed);
        break;
      }
      start_copy<Tile>(p, shared_address(stage_at(fed)), feed, fed);
    }
  }

  __device__ __forceinline__ void run(bool live) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int group = p.num_q_heads / p.num_kv_heads;
    int mine = first + warp;  // this warp's tile, in stage `stage`
    int stage = 0;
    DecodeState<Tile> state;
    Cursor piece;
#pragma unroll 1
    for (piece.flat = first; piece.flat < last;) {
      piece.seek(p, rows);
      const int end = min(last, piece.unit_end());
      const RowPlan& row = rows[piece.row];
      state.load_queries(p.q + row.token * p.q_stride + piece.head * group * Tile::kHeadDim, live ? group : 0,
                         p.scale_log2, lane);
      state.reset();
#pragma unroll 1
      for (; mine < end; mine += kWarps) {
        if (live) {
          copy_async_wait<kStages - 2>();
          __syncwarp();  // the tile of all lanes has landed, and all have read the one before: its stage is free
          const int free_stage = stage == 0 ? kStages - 1 : stage - 1;
          if (fed % 32 == 0) feed.fill(p, rows, first + warp + kWarps * (fed + lane), last);
          start_copy<Tile>(p, shared_address(stage_at(free_stage)), feed, fed % 32);
          ++fed;
        }
        const int valid = row.kv_len - (piece.tile + mine - piece.flat) * Tile::kKeys;
        state.attend(stage_at(stage), valid, lane);
        if (!live) break;
        stage = stage + 1 == kStages ? 0 : stage + 1;
      }
      store_piece<Tile>(p, shared, state, blockIdx.x + piece.row * p.num_kv_heads + piece.head, live);
      if (!live) break;
      piece.flat = end;
    }
  }
};

// --- combination

// The pieces of one kv head of a row.
struct Pieces {
  int64_t first;  // row of `partials` and `stats` of the head
  int count;

  __device__ __forceinline__ Pieces(const DecodeParams& p, const RowPlan* rows, int decode_row, int head, int share) {
    const int begin = decode_row > 0 ? rows[decode_row - 1].tile_end : 0, tiles = rows[decode_row].tile_end - begin;
    const int group = p.num_q_heads / p.num_kv_heads, kv_head = head / group;
    const int first_tile = begin * p.num_kv_heads + kv_head * tiles, first_block = first_tile / share;
    first = int64_t{first_block + decode_row * p.num_kv_heads + kv_head} * kDecodeHeads + head % group;
    count = tiles > 0 ? (first_tile + tiles - 1) / share - first_block + 1 : 0;
  }
};

// Every step-th piece from `begin` on.
template <int kHeadDim>
__device__ __forceinline__ Partial take_pieces(const DecodeParams& p, const Pieces& pieces, int begin, int step,
                                               int vector) {
  constexpr float kNone = -__builtin_huge_valf();
  Partial all = {make_float4(0, 0, 0, 0), kNone, 0};
#pragma unroll 1
  for (int base = begin; base < pieces.count; base += step * kTogether) {
    uint4 out[kTogether];
    uint2 stats[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const bool exists = base + i * step < pieces.count;
      out[i] = exists ? make_uint4(0, 0, 0, 0) : make_uint4(~0u, ~0u, ~0u, ~0u);
      stats[i] = exists ? make_uint2(0, 0) : make_uint2(to_word(kNone), ~0u);
    }
    bool waits;
    Patience patience;
    do {
      patience.spend();
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (there(out[i]) && there(stats[i])) continue;
        const int64_t row = pieces.first + (base + i * step) * kDecodeHeads;
        out[i] = load_words4(p.partials + row * kHeadDim + 4 * vector);
        stats[i] = load_words2(p.stats + row);
      }
      waits = false;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) waits = waits || !there(out[i]) || !there(stats[i]);
    } while (waits);
    float max = all.max;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) max = fmaxf(max, from_word(stats[i].x));
    const float old = base == begin ? 0.0f : exp2_fast(all.max - max);
    all.max = max;
    all.sum *= old;
    all.out.x *= old, all.out.y *= old, all.out.z *= old, all.out.w *= old;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const float weight = exp2_fast(from_word(stats[i].x) - max);
      all.sum += weight * from_word(stats[i].y);
      all.out.x += weight * from_word(out[i].x), all.out.y += weight * from_word(out[i].y);
      all.out.z += weight * from_word(out[i].z), all.out.w += weight * from_word(out[i].w);
    }
  }
  return all;
}

template <int kHeadDim>
__device__ __forceinline__ void clear_pieces(const DecodeParams& p, const Pieces& pieces, int begin, int step,
                                             int vector) {
#pragma unroll 1
  for (int piece = begin; piece < pieces.count; piece += step) {
    const int64_t row = pieces.first + piece * kDecodeHeads;
    store_words4(p.partials + row * kHeadDim + 4 * vector, make_uint4(0, 0, 0, 0));
    if (vector == 0) store_words2(p.stats + row, make_uint2(0, 0));
  }
}

// The sum of what `groups` threads have, n apart. A thread without a piece, or whose pieces are NaN, has seen
// -infinity.
__device__ __forceinline__ Partial add_groups(const Partial* parts, int n, int groups) {
  float max = parts[0].max;
  for (int g = 1; g < groups; ++g) max = fmaxf(max, parts[g * n].max);
  Partial all = {make_float4(0, 0, 0, 0), max, 0};
#pragma unroll 1
  for (int g = 0; g < groups; ++g) {
    const Partial part = parts[g * n];
    const float weight = part.max == -__int_as_float(0x7f800000) ? 0.0f : exp2_fast(part.max - max);
    all.sum += weight * part.sum;
    all.out.x += weight * part.out.x, all.out.y += weight * part.out.y;
    all.out.z += weight * part.out.z, all.out.w += weight * part.out.w;
  }
  return all;
}

// The largest magnitudes of a row's slices, from every slice to every slice: boxes (reader, writer), one warp.
constexpr uint32_t kThere = 0x80000000u;
__device__ __forceinline__ void send_peak(uint32_t* boxes, int slices, int slice, uint32_t peak) {
  const int lane = threadIdx.x % 32;
  if (lane < slices) store_word(boxes + lane * slices + slice, peak | kThere);
}
__device__ __forceinline__ uint32_t receive_peaks(uint32_t* boxes, int slices, int slice) {
  const int lane = threadIdx.x % 32;
  uint32_t word = 0;
  if (lane < slices) {
    uint32_t* mine = boxes + slice * slices + lane;
    Patience patience;
    while ((word = load_word(mine)) == 0) patience.spend();
    store_word(mine, 0);
  }
  __syncwarp();
  return __reduce_max_sync(0xffffffffu, word & ~kThere);
}

__device__ __forceinline__ uint32_t peak_of(float4 v, uint32_t peak) {
  return max(max(peak, max(magnitude_bits(v.x), magnitude_bits(v.y))), max(magnitude_bits(v.z), magnitude_bits(v.w)));
}
__device__ __forceinline__ float4 quotient(const Partial& all) {
  const float inverse = 1.0f / all.sum;
  return make_float4(all.out.x * inverse, all.out.y * inverse, all.out.z * inverse, all.out.w * inverse);
}

// One slice of a row: whole heads, n vectors of four columns. Where they are fewer than the threads, the pieces of each
// are shared out between groups of n threads.
template <class Tile>
struct Combiner {
  static constexpr int kVectors = Tile::kHeadDim / 4;
  const DecodeParams& p;
  JoinedShared<Tile>& shared;
  const RowPlan* rows;
  int share, decode_row, slice;
  Partial* parts;  // (kThreads)
  float4* values;  // (n): each thread reads what it wrote itself
  int begin, n, groups, group, stride;

  __device__ __forceinline__ Combiner(const DecodeParams& params, JoinedShared<Tile>& s, char* memory,
                                      const RowPlan* plan, int tiles, int task)
      : p(params), shared(s), rows(plan), share(tiles), decode_row(task / params.slices), slice(task % params.slices) {
    parts = reinterpret_cast<Partial*>(memory);
    values = reinterpret_cast<float4*>(parts + kThreads);
    begin = slice * p.slice_vectors;
    n = min(p.slice_vectors, p.num_q_heads * kVectors - begin);
    groups = max(1, kThreads / n);
    group = threadIdx.x / (groups > 1 ? n : kThreads);
    stride = groups > 1 ? n : kThreads;
  }
  __device__ __forceinline__ int first_of(int thread) const { return thread - group * stride; }
  __device__ __forceinline__ Pieces pieces_of(int i) const {
    return Pieces(p, rows, decode_row, (begin + i) / kVectors, share);
  }

  // In a dry pass the memory still belongs to the ring.
  __device__ __forceinline__ uint32_t keep(int i, const Partial& all, uint32_t peak, bool live) {
    const float4 v = rows[decode_row].kv_len > 0 ? quotient(all) : make_float4(0, 0, 0, 0);
    if (live) values[i] = v;
    return peak_of(v, peak);
  }

  __device__ __forceinline__ void run(bool live) {
    const int from = first_of(threadIdx.x), end = group < groups ? n : 0;
    uint32_t peak = 0;
#pragma unroll 1
    for (int i = from; i < end; i += stride) {
      Pieces pieces = pieces_of(i);
      if (!live) pieces.count = 0;
      const Partial all = take_pieces<Tile::kHeadDim>(p, pieces, group, groups, (begin + i) % kVectors);
      if (groups == 1) {
        peak = keep(i, all, peak, live);
      } else if (live) {
        parts[threadIdx.x] = all;
      }
    }
    if (groups > 1) {
      __syncthreads();
      if (group == 0) peak = keep(from, add_groups(parts + from, n, groups), peak, live);
    }
    peak = block_peak_bits(peak, shared.reduction);  // a barrier: all have read their pieces
    const bool f8 = p.out.scales != nullptr, exchanges = live && f8 && p.slices > 1;
    uint32_t* boxes = p.peaks + decode_row * p.slices * p.slices;
    if (exchanges && threadIdx.x < 32) send_peak(boxes, p.slices, slice, peak);
#pragma unroll 1
    for (int i = from; live && i < end; i += stride) {
      clear_pieces<Tile::kHeadDim>(p, pieces_of(i), group, groups, (begin + i) % kVectors);
    }
    if (exchanges) {
      if (threadIdx.x < 32) shared.row_peak = receive_peaks(boxes, p.slices, slice);
      __syncthreads();
      peak = shared.row_peak;
    }
    write(from, group == 0 ? n : 0, f8 ? f8_scale(__uint_as_float(peak)) : 1.0f, live);
  }

  __device__ __forceinline__ void write(int from, int end, float scale, bool live) {
    const int64_t token = rows[decode_row].token;
    const bool f8 = p.out.scales != nullptr;
    const float inverse = 1.0f / scale;
    if (live && f8 && slice == 0 && threadIdx.x == 0) p.out.scales[token] = scale;
#pragma unroll 1
    for (int i = from; i < end; i += stride) {
      const float4 v = values[i];
      const int64_t at = token * (p.out.cols / 4) + begin + i;
      if (!live) continue;
      if (f8) {
        static_cast<uint32_t*>(p.out.data)[at] = pack_f8x4(v.x * inverse, v.y * inverse, v.z * inverse, v.w * inverse);
      } else {
        static_cast<uint2*>(p.out.data)[at] = make_uint2(pack_bf16x2(v.x, v.y), pack_bf16x2(v.z, v.w));
      }
    }
  }
};

template <class Tile>
__global__ void __launch_bounds__(kThreads, 1) joined_kernel(const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(128) char memory[];
  auto& shared = *reinterpret_cast<JoinedShared<Tile>*>(memory);
  char* const ring = memory + kFixedBytes<Tile>;
  auto* const rows = reinterpret_cast<RowPlan*>(ring + p.ring_bytes);
  let_next_start();
  plan_rows<Tile::kKeys, kWarps>(p, rows, shared.warp_sums);
  const int total = rows[p.num_decode_rows - 1].tile_end * p.num_kv_heads;
  const int share = tiles_of_block(p, total);
  const int first = min(static_cast<int>(blockIdx.x) * share, total), last = min(first + share, total);
  Splitter<Tile> splitter = {p, shared, ring, rows, first, last};
  splitter.feed.fill(p, rows, first + threadIdx.x / 32 + kWarps * (threadIdx.x % 32), last);

  // The loops that run once are kept rolled, and a dry turn goes through all of them while the kernel ahead runs:
  // between two layers other kernels have streamed through all caches, and every line of code is fetched again.
#pragma unroll 1
  for (int turn = p.warm ? 0 : 1; turn < 2; ++turn) {
    const bool live = turn == 1;
    if (turn == (p.warm ? 0 : 1)) splitter.start(false);
    if (live) {
      wait_for_inputs();
      splitter.start(true);
    }
    splitter.run(live);
    const int tasks = p.num_decode_rows * p.slices;
#pragma unroll 1
    for (int task = gridDim.x - 1 - blockIdx.x; task < tasks; task += gridDim.x) {
      const int token = rows[task / p.slices].token;
      __syncthreads();  // all are done with the tiles, or the slice before
      if (token >= 0 && token < p.batch.num_tokens) Combiner<Tile>(p, shared, ring, rows, share, task).run(live);
      if (!live) break;
    }
  }
}

// Slices are as many to a row as there are blocks, and hold whole heads.
template <class Tile>
LaunchShape shape_of(const DecodeAttentionArgs& args, DecodeParams& p) {
  const int sms = std::min(num_sms(), kDecodeJoinedBlocks);
  const int64_t tiles_of_row = (int64_t{args.max_context} + Tile::kKeys - 1) / Tile::kKeys;
  const int64_t most_tiles = std::max<int64_t>(1, tiles_of_row * args.num_decode_rows * p.num_kv_heads);
  p.tile_keys = Tile::kKeys;
  p.min_tiles = kMinKeys / Tile::kKeys;
  p.blocks = static_cast<int32_t>(std::min<int64_t>(sms, (most_tiles + p.min_tiles - 1) / p.min_tiles));
  const int most_slices = std::clamp(sms / p.num_decode_rows, 1, std::min(kMaxSlices, p.num_q_heads));
  const int heads = (p.num_q_heads + most_slices - 1) / most_slices;
  p.slices = (p.num_q_heads + heads - 1) / heads;
  p.slice_vectors = heads * Tile::kHeadDim / 4;

  const int64_t share = std::max<int64_t>((most_tiles + p.blocks - 1) / p.blocks, p.min_tiles);
  const int64_t stages = std::min<int64_t>(JoinedShared<Tile>::kStages, (share + kWarps - 1) / kWarps);
  const auto combining = kThreads * sizeof(Partial) + p.slice_vectors * sizeof(float4);
  p.ring_bytes = static_cast<int32_t>(std::max<size_t>(stages * kWarps * Tile::kTileBytes, combining));
  const int tasks = args.num_decode_rows * p.slices;
  return {.grid = dim3(std::max(p.blocks, std::min(tasks, sms))),
          .block = dim3(kThreads),
          .shared_bytes = kFixedBytes<Tile> + p.ring_bytes + sizeof(RowPlan) * args.num_decode_rows};
}

template <class Tile>
void launch(CudaStream stream, const DecodeAttentionArgs& args, DecodeParams p) {
  const LaunchShape shape = shape_of<Tile>(args, p);
  launch_overlapped(joined_kernel<Tile>, shape, stream, p);
}

}  // namespace

void launch_decode_joined(CudaStream stream, const DecodeAttentionArgs& args, DecodeParams p) {
  const bool f8 = args.kv.format == DeviceKvFormat::kF8E4M3;
  switch (args.kv.head_dim) {
    case 32:
      return f8 ? launch<DecodeTile<true, 32>>(stream, args, p) : launch<DecodeTile<false, 32>>(stream, args, p);
    case 64:
      return f8 ? launch<DecodeTile<true, 64>>(stream, args, p) : launch<DecodeTile<false, 64>>(stream, args, p);
    case 128:
      return f8 ? launch<DecodeTile<true, 128>>(stream, args, p) : launch<DecodeTile<false, 128>>(stream, args, p);
    default:
      VAYU_REQUIRE(false, "head dim 32, 64 or 128");
  }
}

}  // namespace vayu::ops
