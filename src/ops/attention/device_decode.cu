// Decode attention, two launches: splits of the keys, then combination and quantisation.
//
// What bounds it is reading K and V once: 32 rows of 3,650 tokens with 4 kv heads of dimension 64 are 60 MB of FP8, 14
// us at 4.3 TB/s. Two blocks an SM stream equal shares of all pages of all rows: the tiles (16 or 32 keys of one kv
// head) of every row and head are numbered in one line, cut into as many ranges as there are blocks. A range may begin
// and end inside a row's head and may hold several; each piece leaves a partial result. So lengths that differ cost
// nothing, and a launch fixed by a CUDA graph fits any lengths. The blocks derive the ranges from kv_lens themselves.
//
// Within a block the four warps take turns at the tiles, each with a ring of its own in shared memory filled by
// cp.async (16 KiB in flight a warp, 128 KiB an SM; at 4.3 TB/s and a latency of 1 us an SM needs 33 KiB), which runs
// on over the pieces of the range, so nothing waits between warps but the merge at the end of a piece. Copies of slots
// behind kv_len are zeros: 0 * NaN of a stale value would be NaN.
//
// What is left is latency: at 3,650 tokens, 13 to 16 us whatever the number of rows when everything came one after the
// other. So all that does not depend on the kernel before is done while that one runs: the plan and, where the caller
// vouches that all keys of a row but its last were written by earlier steps, the copies of a warp's first tiles, all of
// what the ring holds (17 MB on the chip, a quarter of 32 rows).
//
// The second kernel adds the pieces up, finds the largest magnitude of a row and writes FP8 or BF16. A row of few is
// spread over a cluster, since one SM reads no more than 100 GB/s: 15 pieces of 16 KiB would take it 2.3 us. It makes
// its plan, and goes through all its code once, before it waits: between two layers other kernels have streamed through
// all caches, and a line of code not yet fetched costs as much as a trip to memory. A last arriving block that combines
// would save no trip (fence and counter take as long as the hand-over of a dependent launch).
#include <algorithm>

#include "ops/attention/device_decode_line.cuh"
#include "ops/cuda/require.h"

namespace vayu::ops {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kMaxBlocks = 2 * 132;  // two on each SM of an H200; on other chips less balanced, still right
constexpr int kMinKeys = 256;        // of a block: two tiles a warp
constexpr int kMaxCombineThreads = 512;
constexpr int kMaxSlices = 8;     // blocks of the second kernel to a row: a cluster that every chip can place
constexpr int kCombineWidth = 8;  // pieces a thread asks for at once
static_assert(kDecodeMaxWidth <= 8192, "an output row is 32 KiB of shared memory");
static_assert(kDecodeMaxGroup == kDecodeHeads);

template <class Tile>
struct DecodeShared {
  static constexpr int kStages = Tile::kTileBytes <= 4096 ? 5 : 2;
  char ring[kWarps][kStages][Tile::kTileBytes];
  WarpResults<Tile, kWarps> results;
  int warp_sums[kWarps];
  RowPlan rows[1];  // num_decode_rows

  static size_t bytes(int num_rows) { return sizeof(DecodeShared) + sizeof(RowPlan) * num_rows; }
};

// The warps' results of a piece added up and written. All threads of the block.
template <class Tile>
__device__ __forceinline__ void store_piece(const DecodeParams& p, DecodeShared<Tile>& shared, DecodeState<Tile>& state,
                                            int piece) {
  __syncthreads();  // the piece before has been read
  shared.results.put(state);
  __syncthreads();
  constexpr int kVectors = Tile::kHeadDim / 4;
  const int group = p.num_q_heads / p.num_kv_heads;
  for (int i = threadIdx.x; i < group * kVectors; i += kThreads) {
    const int head = i / kVectors, vector = i % kVectors;
    float2 total;
    const float4 out = shared.results.add(head, vector, total);
    const int64_t row = int64_t{piece} * kDecodeHeads + head;
    *reinterpret_cast<float4*>(p.partials + row * Tile::kHeadDim + 4 * vector) = out;
    if (vector == 0) p.stats[row] = total;
  }
}

template <class Tile>
__global__ void __launch_bounds__(kThreads, 2) split_kernel(const DecodeParams p) {
  extern __shared__ __align__(128) char memory[];
  auto& shared = *reinterpret_cast<DecodeShared<Tile>*>(memory);
  constexpr int kStages = DecodeShared<Tile>::kStages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  RowPlan* rows = shared.rows;
  plan_rows<Tile::kKeys, kWarps>(p, rows, shared.warp_sums);
  const int total = rows[p.num_decode_rows - 1].tile_end * p.num_kv_heads;
  const int share = tiles_of_block(p, total);
  const int first = blockIdx.x * share, last = min(first + share, total);

  // Loops that run once are kept rolled: between two layers other kernels have streamed through all caches, and every
  // line of code is fetched again.
  const uint32_t ring = shared_address(shared.ring[warp]);
  Feed<Tile> feed;
  int fed = 0;  // tiles of this warp whose copies have been started
  feed.fill(p, rows, first + warp + kWarps * lane, last);
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    if (turn == 1) {
      wait_for_inputs();
      let_next_start();
      if (first >= last) return;
    }
#pragma unroll 1
    for (; fed < kStages - 1; ++fed) {
      // More than a tile left: not the tile with the row's last key.
      if (turn == 0 && !(p.keys_settled && __shfl_sync(0xffffffffu, feed.valid, fed) > Tile::kKeys)) break;
      start_copy<Tile>(p, ring + fed * Tile::kTileBytes, feed, fed);
    }
  }

  const int group = p.num_q_heads / p.num_kv_heads;
  int mine = first + warp;  // this warp's tile, in stage `stage`
  int stage = 0;
  DecodeState<Tile> state;
  Cursor piece;
  for (piece.flat = first; piece.flat < last;) {
    piece.seek(p, rows);
    const int end = min(last, piece.unit_end());
    const RowPlan& row = rows[piece.row];
    state.load_queries(p.q + row.token * p.q_stride + piece.head * group * Tile::kHeadDim, group, p.scale_log2, lane);
    state.reset();
    for (; mine < end; mine += kWarps) {
      copy_async_wait<kStages - 2>();
      __syncwarp();  // the tile of all lanes has landed, and all have read the one before, whose stage is filled again
      const int free_stage = stage == 0 ? kStages - 1 : stage - 1;
      if (fed % 32 == 0) feed.fill(p, rows, first + warp + kWarps * (fed + lane), last);
      start_copy<Tile>(p, ring + free_stage * Tile::kTileBytes, feed, fed % 32);
      ++fed;
      const int valid = row.kv_len - (piece.tile + mine - piece.flat) * Tile::kKeys;
      state.attend(shared.ring[warp][stage], valid, lane);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    store_piece<Tile>(p, shared, state, blockIdx.x + piece.row * p.num_kv_heads + piece.head);
    piece.flat = end;
  }
}

// Neither cached near the SM nor moved: the first turn of combine_kernel reads what is not written yet.
__device__ __forceinline__ float4 load_far(const float4* p) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ float2 load_far(const float2* p) {
  float2 v;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p));
  return v;
}

// Where a row's tiles lie on the line.
struct CombinePlan {
  int begin, tiles, share;
};

__device__ __forceinline__ CombinePlan plan_combine(const DecodeParams& p, int decode_row, int row,
                                                    int (&sums)[2][kMaxCombineThreads / 32]) {
  int before = 0, total = 0;
  for (int i = threadIdx.x; i < p.num_decode_rows; i += blockDim.x) {
    const int other = p.decode_rows[i];
    const int tiles = other < 0 ? 0 : (p.batch.kv_lens[other] + p.tile_keys - 1) / p.tile_keys;
    total += tiles;
    if (i < decode_row) before += tiles;
  }
  before = __reduce_add_sync(0xffffffffu, before);
  total = __reduce_add_sync(0xffffffffu, total);
  sums[0][threadIdx.x / 32] = before;
  sums[1][threadIdx.x / 32] = total;
  __syncthreads();
  before = total = 0;
  for (int w = 0; w < blockDim.x / 32; ++w) {
    before += sums[0][w];
    total += sums[1][w];
  }
  const int tiles = (p.batch.kv_lens[row] + p.tile_keys - 1) / p.tile_keys;
  return {before, tiles, tiles_of_block(p, total * p.num_kv_heads)};
}

// The pieces of four columns of one head added up and divided by the sum of weights. The threads of a head (head_dim /
// 4, a part of a warp) take a piece's statistics each.
__device__ __forceinline__ float4 combine(const DecodeParams& p, const CombinePlan& plan, int decode_row, int vector) {
  const int lanes = p.head_dim / 4, lane = vector % lanes;
  const int head = min(vector / lanes, p.num_q_heads - 1), group = p.num_q_heads / p.num_kv_heads;
  const int kv_head = head / group;
  const int first = plan.begin * p.num_kv_heads + kv_head * plan.tiles;
  const int first_block = first / plan.share;
  const int pieces = (first + plan.tiles - 1) / plan.share - first_block + 1;
  const int64_t unit = int64_t{decode_row} * p.num_kv_heads + kv_head;
  const int64_t row = (first_block + unit) * kDecodeHeads + head % group;
  float max = -__int_as_float(0x7f800000), sum = 0;
  float4 out = make_float4(0, 0, 0, 0);
  // All lanes of the warp go the same number of rounds: their heads may differ in pieces.
  const int most = __reduce_max_sync(0xffffffffu, pieces);
#pragma unroll 1
  for (int base = 0; base < most; base += lanes) {
    float2 stats = make_float2(-__int_as_float(0x7f800000), 0);
    if (base + lane < pieces) stats = load_far(p.stats + row + (base + lane) * kDecodeHeads);
    float new_max = stats.x;
    for (int offset = lanes / 2; offset > 0; offset /= 2) {
      new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, offset));
    }
    new_max = fmaxf(max, new_max);
    const float old_weight = base == 0 ? 0.0f : exp2_approx(max - new_max), weight = exp2_approx(stats.x - new_max);
    max = new_max;
    float added = weight * stats.y;
    for (int offset = lanes / 2; offset > 0; offset /= 2) added += __shfl_xor_sync(0xffffffffu, added, offset);
    sum = sum * old_weight + added;
    out.x *= old_weight, out.y *= old_weight, out.z *= old_weight, out.w *= old_weight;
    const int end = min(most - base, lanes);
#pragma unroll 1
    for (int j = 0; j < end; j += kCombineWidth) {
      float4 v[kCombineWidth];
#pragma unroll
      for (int i = 0; i < kCombineWidth; ++i) {
        v[i] = make_float4(0, 0, 0, 0);
        if (base + j + i < pieces) {
          v[i] = load_far(
              reinterpret_cast<const float4*>(p.partials + (row + (base + j + i) * kDecodeHeads) * p.head_dim) + lane);
        }
      }
#pragma unroll
      for (int i = 0; i < kCombineWidth; ++i) {
        const float w = __shfl_sync(0xffffffffu, weight, j + i, lanes);
        out.x += w * v[i].x, out.y += w * v[i].y, out.z += w * v[i].z, out.w += w * v[i].w;
      }
    }
  }
  const float inverse = 1.0f / sum;
  return make_float4(out.x * inverse, out.y * inverse, out.z * inverse, out.w * inverse);
}

// The largest magnitude of the row from those of the blocks of the cluster.
__device__ __forceinline__ float peak_of_row(const DecodeParams& p, float peak, float* shared_peak) {
  if (p.slices == 1) return peak;
  if (threadIdx.x == 0) *shared_peak = peak;
  cluster_arrive();
  cluster_wait();
  float all = 0;
  for (int i = 0; i < p.slices; ++i) all = max_keep_nan(all, load_remote(remote_address(shared_peak, i)));
  cluster_arrive();  // nobody leaves, or writes anew, while others read
  cluster_wait();
  return all;
}

// 64 registers, so that blocks wait beside two of the first kernel (2 x 128 threads).
__global__ void __launch_bounds__(kMaxCombineThreads, 2) combine_kernel(const DecodeParams p) {
  __shared__ float reduction[32];
  __shared__ int sums[2][kMaxCombineThreads / 32];
  __shared__ float shared_peak;
  extern __shared__ __align__(16) float4 values[];  // the slice; each thread reads what it wrote itself
  const int decode_row = blockIdx.x / p.slices, slice = blockIdx.x % p.slices;
  const int row = p.decode_rows[decode_row];
  const int64_t token = row < 0 ? p.batch.num_tokens : p.batch.qo_indptr[row];
  if (token >= p.batch.num_tokens) {
    wait_for_inputs();
    let_next_start();
    return;
  }
  const CombinePlan plan = plan_combine(p, decode_row, row, sums);
  const int begin = slice * p.slice_vectors, vectors = static_cast<int>(p.out.cols / 4);
  const bool f8 = p.out.scales != nullptr;
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {  // the first fetches the code and stores nothing
    if (turn == 1) {
      wait_for_inputs();
      let_next_start();
    }
    float peak = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < p.slice_vectors; i += blockDim.x) {
      float4 out = make_float4(0, 0, 0, 0);
      if (plan.tiles > 0) out = combine(p, plan, decode_row, begin + i);
      if (begin + i < vectors) {
        peak = max_keep_nan(max_keep_nan(peak, fabsf(out.x)), fabsf(out.y));
        peak = max_keep_nan(max_keep_nan(peak, fabsf(out.z)), fabsf(out.w));
      }
      values[i] = out;
    }
    float inverse = 1;
    if (f8) {
      const float scale = f8_scale(peak_of_row(p, block_max_keep_nan(peak, reduction), &shared_peak));
      inverse = 1.0f / scale;
      if (turn == 1 && slice == 0 && threadIdx.x == 0) p.out.scales[token] = scale;
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < p.slice_vectors; i += blockDim.x) {
      if (turn == 0 || begin + i >= vectors) continue;
      const int64_t at = token * vectors + begin + i;
      const float4 v = values[i];
      if (f8) {
        static_cast<uint32_t*>(p.out.data)[at] = pack_f8x4(v.x * inverse, v.y * inverse, v.z * inverse, v.w * inverse);
      } else {
        static_cast<uint2*>(p.out.data)[at] = make_uint2(pack_bf16x2(v.x, v.y), pack_bf16x2(v.z, v.w));
      }
    }
  }
}

// As many blocks to a row as leave one an SM.
void shape_combine(DecodeParams& p) {
  const int32_t vectors = static_cast<int32_t>(p.out.cols / 4);
  p.slices = kMaxSlices;
  while (p.slices > 1 && p.slices * p.num_decode_rows > kMaxBlocks / 2) p.slices /= 2;
  p.slice_vectors = ((vectors + p.slices - 1) / p.slices + 31) / 32 * 32;
}

template <class Tile>
void launch(CudaStream stream, const DecodeAttentionArgs& args, DecodeParams p) {
  const int64_t tiles_of_row = (int64_t{args.max_context} + Tile::kKeys - 1) / Tile::kKeys;
  const int64_t most_tiles = std::max<int64_t>(1, tiles_of_row * args.num_decode_rows * p.num_kv_heads);
  p.tile_keys = Tile::kKeys;
  p.min_tiles = kMinKeys / Tile::kKeys;
  p.blocks = static_cast<int32_t>(std::min<int64_t>(kMaxBlocks, (most_tiles + p.min_tiles - 1) / p.min_tiles));
  const LaunchShape shape = {
      .grid = dim3(p.blocks), .block = dim3(kThreads), .shared_bytes = DecodeShared<Tile>::bytes(args.num_decode_rows)};
  launch_overlapped(split_kernel<Tile>, shape, stream, p);
  const LaunchShape combine_shape = {.grid = dim3(args.num_decode_rows * p.slices),
                                     .block = dim3(std::min(p.slice_vectors, kMaxCombineThreads)),
                                     .shared_bytes = p.slice_vectors * sizeof(float4),
                                     .cluster = static_cast<unsigned>(p.slices)};
  launch_overlapped(combine_kernel, combine_shape, stream, p);
}

int64_t num_pieces(const DeviceKvLayer& kv, int32_t rows) { return kMaxBlocks + int64_t{rows} * kv.num_kv_heads; }

}  // namespace

int64_t decode_attention_scratch_bytes(const DeviceKvLayer& kv, int32_t max_rows) {
  const int64_t piece = kDecodeHeads * (kv.head_dim * sizeof(float) + sizeof(float2));
  return num_pieces(kv, max_rows) * piece;
}

void decode_attention_cuda(CudaStream stream, const DecodeAttentionArgs& args) {
  const DeviceKvLayer& kv = args.kv;
  if (args.num_decode_rows == 0) return;
  VAYU_REQUIRE(args.num_decode_rows <= kDecodeMaxRows, "more decode rows than one launch plans");
  VAYU_REQUIRE(kv.latent_dim == 0 && kv.page_size == 16, "pages of 16 tokens with K and V");
  VAYU_REQUIRE(args.num_q_heads % kv.num_kv_heads == 0 && args.num_q_heads <= kDecodeMaxGroup * kv.num_kv_heads,
               "1 to 16 query heads a kv head");
  VAYU_REQUIRE(args.out.cols == int64_t{args.num_q_heads} * kv.head_dim && args.out.scale_group == 0,
               "output rows of all heads, one scale a row");
  VAYU_REQUIRE(args.out.cols <= kDecodeMaxWidth, "output row too wide");
  VAYU_REQUIRE(args.q_stride % 8 == 0 && args.scale > 0, "aligned queries, positive scale");
  DecodeParams p = {};
  p.batch = args.batch;
  p.decode_rows = args.decode_rows;
  p.num_decode_rows = args.num_decode_rows;
  p.q = args.q;
  p.q_stride = args.q_stride;
  p.num_q_heads = args.num_q_heads;
  p.num_kv_heads = kv.num_kv_heads;
  p.head_dim = kv.head_dim;
  p.scale_log2 = args.scale * 1.44269504f;  // log2(e)
  p.pages = static_cast<const uint8_t*>(kv.pages);
  p.out = args.out;
  p.keys_settled = args.keys_settled;
  const int64_t pieces = num_pieces(kv, args.num_decode_rows);
  p.partials = static_cast<float*>(args.scratch);
  p.stats = reinterpret_cast<float2*>(p.partials + pieces * kDecodeHeads * kv.head_dim);
  shape_combine(p);
  const bool f8 = kv.format == DeviceKvFormat::kF8E4M3;
  switch (kv.head_dim) {
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
