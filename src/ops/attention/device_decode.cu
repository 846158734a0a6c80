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
// The second kernel has a block a row: it adds the pieces up, finds the largest magnitude and writes FP8 or BF16. A
// piece is at least 512 keys, so it reads about 8 pieces of a 3.6k context. The alternative, a last arriving block that
// combines, saves no trip to memory (fence and counter take as long as the hand-over of a dependent launch) and would
// keep the streaming blocks' registers.
#include <algorithm>

#include "ops/attention/device_decode.h"
#include "ops/attention/device_decode_tile.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/require.h"

namespace vayu::ops {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kMaxBlocks = 2 * 132;  // two on each SM of an H200; on other chips less balanced, still right
constexpr int kMinKeys = 512;        // of a block
constexpr int kHeads = 16;           // rows of a product
constexpr int kCombineThreads = 512;
constexpr int kMaxCols = 8192;  // of an output row: 32 KiB of shared memory

struct DecodeParams {
  DeviceBatch batch;
  const int32_t* decode_rows;
  int32_t num_decode_rows;
  const Bf16* q;
  int64_t q_stride;
  int32_t num_q_heads, num_kv_heads, head_dim;
  float scale_log2;
  const uint8_t* pages;
  ActRows out;
  // Scratch. Piece b + u is what block b has seen of unit u = decode row * num_kv_heads + kv head: a new block or a new
  // unit begins a new piece, so no two are the same.
  float* partials;     // (num pieces, kHeads, head_dim), relative to the piece's maximum
  float2* stats;       // (num pieces, kHeads): maximum, sum
  int32_t* tile_ends;  // (num_decode_rows): tiles of one head of the rows up to and with this one
  int32_t blocks, min_tiles;
};

struct RowPlan {
  int32_t tile_end, kv_len, kv_begin, token;
};

__device__ __forceinline__ int tiles_of_block(const DecodeParams& p, int total) {
  return max((total + p.blocks - 1) / p.blocks, p.min_tiles);
}

template <int kKeys>
__device__ __forceinline__ void plan_rows(const DecodeParams& p, RowPlan* rows, int* warp_sums) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int done = 0;
#pragma unroll 1
  for (int first = 0; first < p.num_decode_rows; first += kThreads) {
    const int i = first + threadIdx.x;
    RowPlan plan = {};
    const int row = i < p.num_decode_rows ? p.decode_rows[i] : -1;
    if (row >= 0) plan = {0, p.batch.kv_lens[row], p.batch.kv_indptr[row], p.batch.qo_indptr[row]};
    int end = (plan.kv_len + kKeys - 1) / kKeys;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, end, offset);
      if (lane >= offset) end += before;
    }
    if (lane == 31) warp_sums[warp] = end;
    __syncthreads();
    int all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp) end += all;
      all += warp_sums[w];
    }
    plan.tile_end = done + end;
    if (i < p.num_decode_rows) rows[i] = plan;
    done += all;
    __syncthreads();
  }
}

// A tile by its number on the line.
struct Cursor {
  int flat, row, head, tile, tiles;  // tile `tile` of `tiles` of this row and head

  __device__ __forceinline__ void seek(const DecodeParams& p, const RowPlan* rows) {
    int low = 0, high = p.num_decode_rows - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (rows[middle].tile_end * p.num_kv_heads > flat) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    const int begin = low > 0 ? rows[low - 1].tile_end : 0;
    row = low;
    tiles = rows[low].tile_end - begin;
    const int offset = flat - begin * p.num_kv_heads;
    head = offset / tiles;
    tile = offset - head * tiles;
  }
  __device__ __forceinline__ int unit_end() const { return flat + tiles - tile; }
};

// The next 32 tiles of one warp, one in each lane, so that neither the search for a tile nor the page table costs
// anything on the way from tile to tile.
template <class Tile>
struct Feed {
  int run[Tile::kPages];  // page * num_kv_heads + head
  int valid;              // keys; <= 0: no tile

  __device__ __forceinline__ void fill(const DecodeParams& p, const RowPlan* rows, int flat, int last) {
    valid = 0;
#pragma unroll
    for (int i = 0; i < Tile::kPages; ++i) run[i] = 0;
    Cursor cursor;
    cursor.flat = flat;
    if (flat >= last) return;
    cursor.seek(p, rows);
    const RowPlan& row = rows[cursor.row];
    valid = row.kv_len - cursor.tile * Tile::kKeys;
    const int32_t* table = p.batch.page_table + row.kv_begin + cursor.tile * Tile::kPages;
#pragma unroll
    for (int i = 0; i < Tile::kPages; ++i) {
      if (valid > 16 * i) run[i] = table[i] * p.num_kv_heads + cursor.head;
    }
  }
};

template <class Tile>
__device__ __forceinline__ void start_copy(const DecodeParams& p, uint32_t stage, const Feed<Tile>& feed, int from) {
  const int lane = threadIdx.x % 32;
  const int tile_valid = __shfl_sync(0xffffffffu, feed.valid, from);
  if (tile_valid > 0) {
#pragma unroll
    for (int i = 0; i < Tile::kPages; ++i) {
      const uint8_t* run = p.pages + int64_t{__shfl_sync(0xffffffffu, feed.run[i], from)} * Tile::kRunBytes;
      const int valid = tile_valid - 16 * i;
#pragma unroll
      for (int first = 0; first < Tile::kRunBytes / 16; first += 32) {
        const int chunk = first + lane, in_part = chunk % (Tile::kPartBytes / 16), key = in_part / Tile::kKeyChunks;
        const int to = i * Tile::kRunBytes + chunk / (Tile::kPartBytes / 16) * Tile::kPartBytes +
                       16 * Tile::chunk_at(key, in_part % Tile::kKeyChunks);
        copy_async16(stage + to, run + chunk * 16, key < valid ? 16 : 0);
      }
    }
  }
  copy_async_commit();
}

template <class Tile>
struct DecodeShared {
  static constexpr int kStages = Tile::kTileBytes <= 4096 ? 5 : 2;
  static constexpr int kRow = Tile::kHeadDim + 4;  // padded against bank conflicts
  char ring[kWarps][kStages][Tile::kTileBytes];
  float out[kWarps][kHeads][kRow];
  float2 stats[kWarps][kHeads];
  int warp_sums[kWarps];
  RowPlan rows[1];  // num_decode_rows

  static size_t bytes(int num_rows) { return sizeof(DecodeShared) + sizeof(RowPlan) * num_rows; }
};

// The warps' results of a piece added up and written. All threads of the block.
template <class Tile>
__device__ __forceinline__ void store_piece(const DecodeParams& p, DecodeShared<Tile>& shared, DecodeState<Tile>& state,
                                            int piece) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, c = lane & 3;
  __syncthreads();  // the piece before has been read
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    state.sum[r] += __shfl_xor_sync(0xffffffffu, state.sum[r], 1);
    state.sum[r] += __shfl_xor_sync(0xffffffffu, state.sum[r], 2);
    if (c == 0) shared.stats[warp][g + 8 * r] = make_float2(state.max[r], state.sum[r]);
#pragma unroll
    for (int b = 0; b < Tile::kBlocks; ++b) {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        float* to = &shared.out[warp][g + 8 * r][b * Tile::kSpan + Tile::kN * (2 * c + u)];
#pragma unroll
        for (int j = 0; j < Tile::kN; j += 4) {
          *reinterpret_cast<float4*>(to + j) =
              make_float4(state.out[b][j][2 * r + u], state.out[b][j + 1][2 * r + u], state.out[b][j + 2][2 * r + u],
                          state.out[b][j + 3][2 * r + u]);
        }
      }
    }
  }
  __syncthreads();
  constexpr int kVectors = Tile::kHeadDim / 4;
  const int group = p.num_q_heads / p.num_kv_heads;
  for (int i = threadIdx.x; i < group * kVectors; i += kThreads) {
    const int head = i / kVectors, vector = i % kVectors;
    float max = -__int_as_float(0x7f800000);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) max = fmaxf(max, shared.stats[w][head].x);
    float sum = 0;
    float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      // A warp without a tile has seen -infinity; NaN in its sum must survive, so it is multiplied and not skipped.
      const float2 stats = shared.stats[w][head];
      const float weight = stats.x == -__int_as_float(0x7f800000) ? 0.0f : exp2_fast(stats.x - max);
      const float4 v = *reinterpret_cast<const float4*>(&shared.out[w][head][4 * vector]);
      sum += weight * stats.y;
      out.x += weight * v.x, out.y += weight * v.y, out.z += weight * v.z, out.w += weight * v.w;
    }
    const int64_t row = int64_t{piece} * kHeads + head;
    *reinterpret_cast<float4*>(p.partials + row * Tile::kHeadDim + 4 * vector) = out;
    if (vector == 0) p.stats[row] = make_float2(max, sum);
  }
}

template <class Tile>
__global__ void __launch_bounds__(kThreads, 2) split_kernel(const DecodeParams p) {
  extern __shared__ __align__(128) char memory[];
  auto& shared = *reinterpret_cast<DecodeShared<Tile>*>(memory);
  constexpr int kStages = DecodeShared<Tile>::kStages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  wait_for_inputs();
  let_next_start();
  RowPlan* rows = shared.rows;
  plan_rows<Tile::kKeys>(p, rows, shared.warp_sums);
  if (blockIdx.x == 0) {
    for (int i = threadIdx.x; i < p.num_decode_rows; i += kThreads) p.tile_ends[i] = rows[i].tile_end;
  }
  const int total = rows[p.num_decode_rows - 1].tile_end * p.num_kv_heads;
  const int share = tiles_of_block(p, total);
  const int first = blockIdx.x * share, last = min(first + share, total);
  if (first >= last) return;

  // Loops that run once are kept rolled: between two layers other kernels have streamed through all caches, and every
  // line of code is fetched again.
  const uint32_t ring = shared_address(shared.ring[warp]);
  Feed<Tile> feed;
  int fed = 0;  // tiles of this warp whose copies have been started
  feed.fill(p, rows, first + warp + kWarps * lane, last);
#pragma unroll 1
  for (; fed < kStages - 1; ++fed) start_copy<Tile>(p, ring + fed * Tile::kTileBytes, feed, fed);

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

// The pieces of eight values of one head added up and divided by the sum of weights.
__device__ __forceinline__ void combine(const DecodeParams& p, int value, int decode_row, int begin, int tiles,
                                        int share, float (&out)[8]) {
  const int head = value / p.head_dim, dim = value % p.head_dim, group = p.num_q_heads / p.num_kv_heads;
  const int kv_head = head / group;
  const int first = begin * p.num_kv_heads + kv_head * tiles;
  const int first_block = first / share, last_block = (first + tiles - 1) / share;
  const int64_t unit = int64_t{decode_row} * p.num_kv_heads + kv_head;
  int64_t row = (first_block + unit) * kHeads + head % group;
  float max = -__int_as_float(0x7f800000), sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] = 0;
#pragma unroll 4
  for (int block = first_block; block <= last_block; ++block, row += kHeads) {
    const float2 stats = p.stats[row];
    const float* from = p.partials + row * p.head_dim + dim;
    const float4 v0 = *reinterpret_cast<const float4*>(from), v1 = *reinterpret_cast<const float4*>(from + 4);
    const float v[8] = {v0.x, v0.y, v0.z, v0.w, v1.x, v1.y, v1.z, v1.w};
    const float new_max = fmaxf(max, stats.x);
    const float old_weight = exp2_fast(max - new_max), weight = exp2_fast(stats.x - new_max);
    max = new_max;
    sum = sum * old_weight + stats.y * weight;
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = out[i] * old_weight + v[i] * weight;
  }
  const float inverse = 1.0f / sum;
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] *= inverse;
}

// Two blocks an SM: 64 registers, so that a block waits beside two of the first kernel (2 x 128 threads).
__global__ void __launch_bounds__(kCombineThreads, 2) combine_kernel(const DecodeParams p) {
  __shared__ float reduction[32];
  extern __shared__ __align__(16) float values[];  // the row; each thread reads what it wrote itself
  wait_for_inputs();
  let_next_start();
  const int decode_row = blockIdx.x, row = p.decode_rows[decode_row];
  if (row < 0) return;
  const int64_t token = p.batch.qo_indptr[row];
  if (token >= p.batch.num_tokens) return;
  const int begin = decode_row > 0 ? p.tile_ends[decode_row - 1] : 0;
  const int tiles = p.tile_ends[decode_row] - begin;
  const int share = tiles_of_block(p, p.tile_ends[p.num_decode_rows - 1] * p.num_kv_heads);

  float peak = 0;
#pragma unroll 1
  for (int value = 8 * threadIdx.x; value < p.out.cols; value += 8 * kCombineThreads) {
    float out[8] = {};
    if (tiles > 0) combine(p, value, decode_row, begin, tiles, share, out);
#pragma unroll
    for (int i = 0; i < 8; ++i) peak = max_keep_nan(peak, fabsf(out[i]));
    *reinterpret_cast<float4*>(values + value) = make_float4(out[0], out[1], out[2], out[3]);
    *reinterpret_cast<float4*>(values + value + 4) = make_float4(out[4], out[5], out[6], out[7]);
  }
  float inverse = 1;
  const bool f8 = p.out.scales != nullptr;
  if (f8) {
    const float scale = f8_scale(block_max_keep_nan(peak, reduction));
    inverse = 1.0f / scale;
    if (threadIdx.x == 0) p.out.scales[token] = scale;
  }
#pragma unroll 1
  for (int value = 8 * threadIdx.x; value < p.out.cols; value += 8 * kCombineThreads) {
    const int64_t at = token * p.out.cols + value;
    const float4 a = *reinterpret_cast<const float4*>(values + value);
    const float4 b = *reinterpret_cast<const float4*>(values + value + 4);
    if (f8) {
      *reinterpret_cast<uint2*>(static_cast<uint8_t*>(p.out.data) + at) =
          make_uint2(pack_f8x4(a.x * inverse, a.y * inverse, a.z * inverse, a.w * inverse),
                     pack_f8x4(b.x * inverse, b.y * inverse, b.z * inverse, b.w * inverse));
    } else {
      *reinterpret_cast<uint4*>(static_cast<Bf16*>(p.out.data) + at) =
          make_uint4(pack_bf16x2(a.x, a.y), pack_bf16x2(a.z, a.w), pack_bf16x2(b.x, b.y), pack_bf16x2(b.z, b.w));
    }
  }
}

template <class Tile>
void launch(CudaStream stream, const DecodeAttentionArgs& args, DecodeParams p) {
  const int64_t tiles_of_row = (int64_t{args.max_context} + Tile::kKeys - 1) / Tile::kKeys;
  const int64_t most_tiles = std::max<int64_t>(1, tiles_of_row * args.num_decode_rows * p.num_kv_heads);
  p.min_tiles = kMinKeys / Tile::kKeys;
  p.blocks = static_cast<int32_t>(std::min<int64_t>(kMaxBlocks, (most_tiles + p.min_tiles - 1) / p.min_tiles));
  const LaunchShape shape = {
      .grid = dim3(p.blocks), .block = dim3(kThreads), .shared_bytes = DecodeShared<Tile>::bytes(args.num_decode_rows)};
  launch_overlapped(split_kernel<Tile>, shape, stream, p);
  const LaunchShape combine_shape = {.grid = dim3(args.num_decode_rows),
                                     .block = dim3(kCombineThreads),
                                     .shared_bytes = static_cast<size_t>(args.out.cols) * sizeof(float)};
  launch_overlapped(combine_kernel, combine_shape, stream, p);
}

int64_t num_pieces(const DeviceKvLayer& kv, int32_t rows) { return kMaxBlocks + int64_t{rows} * kv.num_kv_heads; }

}  // namespace

int64_t decode_attention_scratch_bytes(const DeviceKvLayer& kv, int32_t max_rows) {
  const int64_t piece = kHeads * (kv.head_dim * sizeof(float) + sizeof(float2));
  return num_pieces(kv, max_rows) * piece + max_rows * static_cast<int64_t>(sizeof(int32_t));
}

void decode_attention_cuda(CudaStream stream, const DecodeAttentionArgs& args) {
  const DeviceKvLayer& kv = args.kv;
  if (args.num_decode_rows == 0) return;
  VAYU_REQUIRE(args.num_decode_rows <= kDecodeMaxRows, "more decode rows than one launch plans");
  VAYU_REQUIRE(kv.latent_dim == 0 && kv.page_size == 16, "pages of 16 tokens with K and V");
  VAYU_REQUIRE(args.num_q_heads % kv.num_kv_heads == 0 && args.num_q_heads <= kHeads * kv.num_kv_heads,
               "1 to 16 query heads a kv head");
  VAYU_REQUIRE(args.out.cols == int64_t{args.num_q_heads} * kv.head_dim && args.out.scale_group == 0,
               "output rows of all heads, one scale a row");
  VAYU_REQUIRE(args.out.cols <= kMaxCols, "output row too wide");
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
  const int64_t pieces = num_pieces(kv, args.num_decode_rows);
  p.partials = static_cast<float*>(args.scratch);
  p.stats = reinterpret_cast<float2*>(p.partials + pieces * kHeads * kv.head_dim);
  p.tile_ends = reinterpret_cast<int32_t*>(p.stats + pieces * kHeads);
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
