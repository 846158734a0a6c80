// Latent attention: one block a token (and split of its keys), whose 64 heads are the 64 rows of a wgmma tile, so that
// decode rows and prefill chunks are the same to it.
//
// Two warpgroups work on a tile of 64 cache rows in shared memory (64 x 576 BF16 = 72 KiB, 128-byte swizzle, columns of
// 64 apart by 8 KiB). Scores: each takes 32 of the keys (64 x 32, 16 floats a thread). Output: each takes 256 of the
// 512 latent columns (64 x 256, 128 floats a thread) over all 64 keys, with the cache rows as the N-major operand: keys
// and values are the same bytes. Threads with the same place in both warpgroups hold the same heads, so the maxima and
// the weights cross by two short notes in shared memory from thread to thread, in the order of the wgmma operand.
// Queries (72 KiB) and two tiles fill 216 KiB; notes 10 KiB. 8 rows of 3,650 tokens: 33 MB BF16, 8 us; 4 GFLOP, 5 us.
//
// FP8 cache rows of a step with many tokens are widened once by a kernel before (device_widen.h). Of few tokens they
// land in two staging tiles of 36 KiB and become BF16 (exactly: E4M3 is a subset) in one full tile; each thread
// converts what it copied itself. Rows a token does not see are zeros: 0 * NaN of a stale value would be NaN.
//
// With few tokens the keys of one are split such that the blocks fill the chip once; splits leave a normalised BF16
// result with maximum and sum, which a second kernel weighs together. BF16 halves the 17 MB that FP32 would be for 128
// splits; the error is that of the output's own rounding. Lists, and keys of earlier steps, are read before the kernel
// ahead has ended: it writes the queries and the keys of this step's tokens.
#include <algorithm>

#include "ops/attention/device_decode_tile.cuh"
#include "ops/attention/device_mla.h"
#include "ops/attention/device_widen.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/require.h"
#include "ops/cuda/sm90.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/cuda/wgmma.cuh"

namespace vayu::ops {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMaxHeads = kMlaMaxHeads, kKeys = 64;
constexpr int kColumnBytes = 64 * 128;  // 64 rows of 64 BF16
constexpr int kColumns = kMlaMaxRowDim / 64;
constexpr int kTileBytes = kColumns * kColumnBytes;
constexpr int kSplitBlocks = 132;  // one on each SM of an H200
constexpr int kMaxSplits = 64;
constexpr float kNoKeys = -1;     // in place of a sum of weights
constexpr int kCombineHeads = 4;  // of a block, of few splits
constexpr int kFewSplits = 4;     // more of them are added up by several threads
constexpr int kCombineParts = 4;

struct MlaParams {
  DeviceBatch batch;
  int32_t num_heads, head_dim, latent_dim, num_splits;
  const Bf16* q;
  Bf16* out;
  float scale_log2;
  const uint8_t* pages;
  const int32_t* table;  // null: entry i is page i
  Bf16* partials;        // (num_tokens, num_splits, num_heads, latent_dim)
  float2* stats;         // (num_tokens, num_splits, num_heads): maximum, sum or kNoKeys
};

struct MlaShared {
  char q[kTileBytes];
  char tiles[2 * kTileBytes];  // BF16: two tiles. FP8: a tile, then two staging tiles of half the size.
  uint32_t weights[kThreads][8];
  float2 notes[kThreads];
  int row;
};

// The row a token belongs to, -1 for none.
__device__ __forceinline__ int find_row(const MlaParams& p, int token, int* shared_row) {
  if (threadIdx.x == 0) *shared_row = -1;
  __syncthreads();
  for (int row = threadIdx.x; row < p.batch.num_rows; row += kThreads) {
    if (p.batch.qo_indptr[row] <= token && token < p.batch.qo_indptr[row + 1]) *shared_row = row;
  }
  __syncthreads();
  return *shared_row;
}

// Pages of the tile of keys, 0 for those that hold nothing visible.
__device__ __forceinline__ void read_pages(const int32_t* table, int first, int tile, int visible, int (&pages)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int entry = first + tile * 4 + i;
    pages[i] = tile * kKeys + 16 * i >= visible ? 0 : table != nullptr ? table[entry] : entry;
  }
}

// Chunk j (16 bytes of BF16) of row `row` of a tile.
__device__ __forceinline__ uint32_t tile_offset(int row, int j) {
  return (j >> 3) * kColumnBytes + swizzled_offset(row, j & 7);
}

// Where chunk j of row `row` of a staging tile lies: any place, since only the thread that wrote it reads it.
__device__ __forceinline__ uint32_t staging_offset(int row, int j) { return (row * 36 + j) * 16; }

// Starts the copy of 64 cache rows; warp w takes rows w, w + 8, ...
template <bool kF8>
__device__ __forceinline__ void start_copy(const MlaParams& p, uint32_t to, int tile, int visible,
                                           const int (&pages)[4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row_bytes = p.head_dim * (kF8 ? 1 : 2), chunks = row_bytes / 16;
#pragma unroll
  for (int i = 0; i < kKeys / kWarps; ++i) {
    const int key = kWarps * i + warp;
    const uint8_t* from = p.pages + (int64_t{pages[i / 2]} * 16 + key % 16) * row_bytes;
    const uint32_t bytes = tile * kKeys + key < visible ? 16 : 0;
#pragma unroll
    for (int first = 0; first < (kF8 ? 36 : 72); first += 32) {
      const int j = first + lane;
      if (j < chunks) copy_async16(to + (kF8 ? staging_offset(key, j) : tile_offset(key, j)), from + j * 16, bytes);
    }
  }
}

__device__ __forceinline__ uint32_t f8x2_to_bf16x2(uint32_t low_half) {
  const uint32_t half = f8x2_to_f16x2(low_half);
  const float2 v = __half22float2(reinterpret_cast<const __half2&>(half));
  return pack_bf16x2(v.x, v.y);
}

__device__ __forceinline__ void convert(const MlaParams& p, const char* staging, char* tile) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, chunks = p.head_dim / 16;
#pragma unroll 1
  for (int key = warp; key < kKeys; key += kWarps) {
#pragma unroll
    for (int first = 0; first < 36; first += 32) {
      const int j = first + lane;
      if (j >= chunks) continue;
      uint32_t in[4], out[8];
      load_words<4>(staging + staging_offset(key, j), in);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        out[2 * w] = f8x2_to_bf16x2(in[w]);
        out[2 * w + 1] = f8x2_to_bf16x2(in[w] >> 16);
      }
      *reinterpret_cast<uint4*>(tile + tile_offset(key, 2 * j)) = make_uint4(out[0], out[1], out[2], out[3]);
      *reinterpret_cast<uint4*>(tile + tile_offset(key, 2 * j + 1)) = make_uint4(out[4], out[5], out[6], out[7]);
    }
  }
}

__device__ __forceinline__ void start_query_copy(const MlaParams& p, uint32_t to, int64_t token) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, chunks = p.head_dim / 8;
#pragma unroll 1
  for (int head = warp; head < kMaxHeads; head += kWarps) {
    const bool exists = head < p.num_heads;
    const Bf16* from = p.q + (token * p.num_heads + (exists ? head : 0)) * p.head_dim;
    for (int j = lane; j < chunks; j += 32) copy_async16(to + tile_offset(head, j), from + j * 8, exists ? 16 : 0);
  }
}

// Smaller models: the columns behind theirs count in the products, in the queries and in both tiles: zeros there, once.
// (Of FP8 the second tile is the staging, which is written by the copies that follow.)
__device__ __forceinline__ void clear_columns(const MlaParams& p, MlaShared& shared) {
  const int chunks = p.head_dim / 8, spare = 8 * kColumns - chunks;
  for (int i = threadIdx.x; i < 64 * spare; i += kThreads) {
    const uint32_t offset = tile_offset(i / spare, chunks + i % spare);
    for (char* tile : {shared.q, shared.tiles, shared.tiles + kTileBytes}) {
      *reinterpret_cast<uint4*>(tile + offset) = make_uint4(0, 0, 0, 0);
    }
  }
  __syncthreads();
}

// The N-major operand: 16 keys from `rows` on, columns of 64 apart by kColumnBytes, groups of 8 keys by 1024.
__device__ __forceinline__ uint64_t value_descriptor(const char* rows) {
  const uint64_t address = (shared_address(rows) & 0x3FFFF) >> 4;
  return address | (uint64_t{kColumnBytes >> 4} << 16) | (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 62);
}

// What a thread knows of its two heads ([h]: 16 * warp + lane / 4 + 8 h): its columns of the output, the maximum over
// all keys so far and the sum of the weights of its own keys.
struct MlaState {
  float out[128];
  float max[2], sum[2];
};

// One tile: scores of this warpgroup's 32 keys, weights of all 64, output of this warpgroup's 256 columns.
__device__ __forceinline__ void attend(const MlaParams& p, MlaShared& shared, const char* tile, int group, int visible,
                                       MlaState& state) {
  const int c = threadIdx.x % 4, partner = threadIdx.x ^ 128;
  float score[16];
  const uint64_t q = swizzled_descriptor(shared.q), k = swizzled_descriptor(tile + group * 32 * 128);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4 * kColumns; ++step) {
    const uint64_t offset = (step >> 2) * (kColumnBytes >> 4) + (step & 3) * kDescriptorStep;
    WgmmaBf16<32>::run(score, q + offset, k + offset, step > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin(score);

  float peak[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    peak[h] = -__int_as_float(0x7f800000);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        float& s = score[4 * j + 2 * h + u];
        if (group * 32 + 8 * j + 2 * c + u >= visible) s = -__int_as_float(0x7f800000);
        peak[h] = fmaxf(peak[h], s);
      }
    }
    peak[h] = fmaxf(peak[h], __shfl_xor_sync(0xffffffffu, peak[h], 1));
    peak[h] = fmaxf(peak[h], __shfl_xor_sync(0xffffffffu, peak[h], 2));
  }
  shared.notes[threadIdx.x] = make_float2(peak[0], peak[1]);
  __syncthreads();
  const float2 other = shared.notes[partner];
  float rescale[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float new_max = fmaxf(state.max[h], fmaxf(peak[h], h == 0 ? other.x : other.y) * p.scale_log2);
    rescale[h] = exp2_approx(state.max[h] - new_max);
    state.max[h] = new_max;
    state.sum[h] *= rescale[h];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        float& s = score[4 * j + 2 * h + u];
        s = exp2_approx(fmaf(s, p.scale_log2, -new_max));
        state.sum[h] += s;
      }
    }
  }
  uint32_t mine[2][4], others[2][4];
#pragma unroll
  for (int i = 0; i < 8; ++i) mine[i / 4][i % 4] = pack_bf16x2(score[2 * i], score[2 * i + 1]);
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    *reinterpret_cast<uint4*>(&shared.weights[threadIdx.x][4 * step]) =
        make_uint4(mine[step][0], mine[step][1], mine[step][2], mine[step][3]);
  }
#pragma unroll
  for (int i = 0; i < 128; ++i) state.out[i] *= rescale[i / 2 % 2];
  __syncthreads();
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    load_words<4>(reinterpret_cast<const char*>(&shared.weights[partner][4 * step]), others[step]);
  }
  const char* values = tile + group * 4 * kColumnBytes;
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    WgmmaBf16Rs<256>::run<1>(state.out, mine[step], value_descriptor(values + (group * 32 + step * 16) * 128), 1);
    WgmmaBf16Rs<256>::run<1>(state.out, others[step], value_descriptor(values + ((1 - group) * 32 + step * 16) * 128),
                             1);
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin(state.out);
}

// Divides by the sum of weights and writes; with splits, beside the statistics.
__device__ __forceinline__ void store(const MlaParams& p, MlaShared& shared, int token, int split, int group,
                                      MlaState& state) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    state.sum[h] += __shfl_xor_sync(0xffffffffu, state.sum[h], 1);
    state.sum[h] += __shfl_xor_sync(0xffffffffu, state.sum[h], 2);
  }
  __syncthreads();  // the last tile's notes have been read
  shared.notes[threadIdx.x] = make_float2(state.sum[0], state.sum[1]);
  __syncthreads();
  const float2 other = shared.notes[threadIdx.x ^ 128];
  const int lane = threadIdx.x % 32, c = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int head = threadIdx.x % 128 / 32 * 16 + lane / 4 + 8 * h;
    if (head >= p.num_heads) continue;
    const float sum = state.sum[h] + (h == 0 ? other.x : other.y), inverse = 1.0f / sum;
    const int64_t row = (int64_t{token} * p.num_splits + split) * p.num_heads + head;
    Bf16* to = (p.num_splits > 1 ? p.partials : p.out) + row * p.latent_dim;
    if (p.num_splits > 1 && group == 0 && c == 0) p.stats[row] = make_float2(state.max[h], sum);
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      const int column = group * 256 + 8 * j + 2 * c;
      if (column < p.latent_dim) {
        *reinterpret_cast<uint32_t*>(to + column) =
            pack_bf16x2(state.out[4 * j + 2 * h] * inverse, state.out[4 * j + 2 * h + 1] * inverse);
      }
    }
  }
}

// A block without keys.
__device__ __forceinline__ void store_nothing(const MlaParams& p, int token, int split) {
  if (p.num_splits > 1) {
    for (int head = threadIdx.x; head < p.num_heads; head += kThreads) {
      p.stats[(int64_t{token} * p.num_splits + split) * p.num_heads + head] = make_float2(0, kNoKeys);
    }
    return;
  }
  const int vectors = p.num_heads * p.latent_dim / 8;
  for (int i = threadIdx.x; i < vectors; i += kThreads) {
    reinterpret_cast<uint4*>(p.out)[int64_t{token} * vectors + i] = make_uint4(0, 0, 0, 0);
  }
}

template <bool kF8>
__global__ void __launch_bounds__(kThreads, 1) mla_kernel(const MlaParams p) {
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<MlaShared*>(memory);
  const int split = blockIdx.x, token = blockIdx.y;
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  const int row = find_row(p, token, &shared.row);
  const int new_tokens = row < 0 ? 0 : p.batch.qo_indptr[row + 1] - p.batch.qo_indptr[row];
  const int visible = row < 0 ? 0 : p.batch.kv_lens[row] - (p.batch.qo_indptr[row + 1] - 1 - token);
  const int num_tiles = visible > 0 ? (visible + kKeys - 1) / kKeys : 0;
  const int share = (num_tiles + p.num_splits - 1) / p.num_splits;
  const int first = split * share, last = min(first + share, num_tiles);
  if (first >= last) {
    wait_for_inputs();
    let_next_start();
    return store_nothing(p, token, split);
  }

  if (p.head_dim < 64 * kColumns) clear_columns(p, shared);
  const int first_page = p.batch.kv_indptr[row];
  int pages[4];
  read_pages(p.table, first_page, first, visible, pages);
  // BF16 tile of step i: i % 2. FP8: tile 0, staging at 2 + i % 2 halves.
  const auto landing = [&](int i) {
    return shared.tiles + (kF8 ? kTileBytes + i % 2 * (kTileBytes / 2) : i % 2 * kTileBytes);
  };
  // Pages without a table are the widening kernel's, just made.
  const bool settled = p.table != nullptr && (first + 1) * kKeys <= p.batch.kv_lens[row] - new_tokens;
  if (settled) start_copy<kF8>(p, shared_address(landing(0)), first, visible, pages);
  wait_for_inputs();
  let_next_start();
  start_query_copy(p, shared_address(shared.q), token);
  if (!settled) start_copy<kF8>(p, shared_address(landing(0)), first, visible, pages);
  copy_async_commit();
  read_pages(p.table, first_page, first + 1, visible, pages);

  MlaState state;
#pragma unroll
  for (int i = 0; i < 128; ++i) state.out[i] = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) state.max[h] = -__int_as_float(0x7f800000), state.sum[h] = 0;
#pragma unroll 1
  for (int tile = first; tile < last; ++tile) {
    const int i = tile - first;
    const auto start_next = [&] {
      if (tile + 1 < last) start_copy<kF8>(p, shared_address(landing(i + 1)), tile + 1, visible, pages);
      copy_async_commit();
      read_pages(p.table, first_page, tile + 2, visible, pages);
    };
    if constexpr (kF8) {
      start_next();  // its staging tile was converted a step ago by the same threads
      copy_async_wait<1>();
      __syncthreads();  // all have finished with the tile before
      convert(p, landing(i), shared.tiles);
    } else {
      copy_async_wait<0>();
    }
    fence_shared_for_async();
    __syncthreads();
    if constexpr (!kF8) start_next();  // all have finished with the tile before, whose place it takes
    attend(p, shared, kF8 ? shared.tiles : landing(i), group, visible - tile * kKeys, state);
  }
  store(p, shared, token, split, group, state);
}

// A head of a token a block: first the weight of each split, then eight values of every fourth split a thread, whose
// loads wait for nothing. (One thread over all of 58 splits makes 15 trips to the L2 cache.)
__global__ void __launch_bounds__(kThreads) combine_many_kernel(const MlaParams p) {
  static_assert(kMaxSplits <= 64 && kThreads == kCombineParts * 64);
  __shared__ float weights[kMaxSplits];
  __shared__ float sums[kCombineParts][8][64];
  wait_for_inputs();
  let_next_start();
  const int64_t token = blockIdx.x;
  const int head = blockIdx.y, lane = threadIdx.x % 32;
  const auto row_of = [&](int split) { return (token * p.num_splits + split) * p.num_heads + head; };
  if (threadIdx.x < 32) {
    float2 stats[2];
    float max = -__int_as_float(0x7f800000), sum = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int split = lane + 32 * i;
      stats[i] = split < p.num_splits ? p.stats[row_of(split)] : make_float2(0, kNoKeys);
      if (stats[i].y != kNoKeys) max = fmaxf(max, stats[i].x);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, offset));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      stats[i].y = stats[i].y != kNoKeys ? exp2_approx(stats[i].x - max) * stats[i].y : 0.0f;
      sum += stats[i].y;
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    const float inverse = sum == 0 ? 0.0f : 1.0f / sum;
    weights[lane] = stats[0].y * inverse;
    weights[lane + 32] = stats[1].y * inverse;
  }
  __syncthreads();
  const int vector = threadIdx.x % 64, part = threadIdx.x / 64;
  const bool exists = vector < p.latent_dim / 8;
  float out[8] = {};
#pragma unroll 4
  for (int split = part; split < p.num_splits; split += kCombineParts) {
    const float weight = weights[split];
    if (!exists || weight == 0) continue;  // nothing was written there
    float v[8];
    load_bf16x8(p.partials + row_of(split) * p.latent_dim + vector * 8, v);
#pragma unroll
    for (int d = 0; d < 8; ++d) out[d] += v[d] * weight;
  }
#pragma unroll
  for (int d = 0; d < 8; ++d) sums[part][d][vector] = out[d];
  __syncthreads();
  if (part != 0 || !exists) return;
#pragma unroll
  for (int d = 0; d < 8; ++d) {
#pragma unroll
    for (int other = 1; other < kCombineParts; ++other) out[d] += sums[other][d][vector];
  }
  store_bf16x8(p.out + (token * p.num_heads + head) * p.latent_dim + vector * 8, out);
}

// Few splits: eight values a thread; kCombineHeads heads of a token a block.
__global__ void __launch_bounds__(kThreads) combine_kernel(const MlaParams p) {
  wait_for_inputs();
  let_next_start();
  const int64_t token = blockIdx.x;
  const int vectors = p.latent_dim / 8;
  for (int i = threadIdx.x; i < kCombineHeads * vectors; i += kThreads) {
    const int head = blockIdx.y * kCombineHeads + i / vectors, column = i % vectors * 8;
    if (head >= p.num_heads) return;
    float max = -__int_as_float(0x7f800000), sum = 0, out[8] = {};
    bool any = false;
#pragma unroll 4
    for (int split = 0; split < p.num_splits; ++split) {
      const int64_t row = (token * p.num_splits + split) * p.num_heads + head;
      const float2 stats = p.stats[row];
      if (stats.y == kNoKeys) continue;
      any = true;
      float v[8];
      load_bf16x8(p.partials + row * p.latent_dim + column, v);
      const float new_max = fmaxf(max, stats.x);
      const float old_weight = exp2_approx(max - new_max), weight = exp2_approx(stats.x - new_max) * stats.y;
      max = new_max;
      sum = sum * old_weight + weight;
#pragma unroll
      for (int d = 0; d < 8; ++d) out[d] = out[d] * old_weight + v[d] * weight;
    }
    const float inverse = any ? 1.0f / sum : 0.0f;
#pragma unroll
    for (int d = 0; d < 8; ++d) out[d] *= inverse;
    store_bf16x8(p.out + (token * p.num_heads + head) * p.latent_dim + column, out);
  }
}

}  // namespace

int64_t mla_attention_scratch_bytes(int32_t num_heads, const DeviceKvLayer& kv) {
  return int64_t{kSplitBlocks} * num_heads * (kv.latent_dim * sizeof(Bf16) + sizeof(float2));
}

void mla_attention_cuda(CudaStream stream, const MlaAttentionArgs& args) {
  const DeviceKvLayer& kv = args.kv;
  const int32_t num_tokens = args.batch.num_tokens;
  if (num_tokens == 0) return;
  VAYU_REQUIRE(num_tokens <= kMlaMaxTokens, "up to 65,535 tokens");
  VAYU_REQUIRE(kv.page_size == 16 && kv.latent_dim > 0 && kv.latent_dim % 16 == 0 && kv.latent_dim <= kMlaMaxLatentDim,
               "latent of up to 512 in pages of 16");
  VAYU_REQUIRE(kv.head_dim % 16 == 0 && kv.head_dim >= kv.latent_dim && kv.head_dim <= kMlaMaxRowDim,
               "cache rows of up to 576");
  VAYU_REQUIRE(args.num_heads >= 1 && args.num_heads <= kMaxHeads && args.scale > 0, "1 to 64 heads, positive scale");
  MlaParams p = {};
  p.batch = args.batch;
  p.num_heads = args.num_heads;
  p.head_dim = kv.head_dim;
  p.latent_dim = kv.latent_dim;
  p.q = args.q;
  p.out = args.out;
  p.scale_log2 = args.scale * 1.44269504f;  // log2(e)
  p.pages = static_cast<const uint8_t*>(kv.pages);
  p.table = args.batch.page_table;
  bool f8 = kv.format == DeviceKvFormat::kF8E4M3;
  if (f8 && args.wide_pages != nullptr && num_tokens > kMlaWideTokens && args.num_table_pages <= args.wide_capacity) {
    widen_pages_cuda(stream, {.from = static_cast<const F8E4M3*>(kv.pages),
                              .sources = args.batch.page_table,
                              .num_pages = args.num_table_pages,
                              .page_elements = kv.page_elements(),
                              .to = args.wide_pages});
    p.pages = reinterpret_cast<const uint8_t*>(args.wide_pages);
    p.table = nullptr;
    f8 = false;
  }
  const int32_t most_tiles = std::max(1, (args.max_context + kKeys - 1) / kKeys);
  p.num_splits = std::max(1, std::min({kSplitBlocks / num_tokens, most_tiles, kMaxSplits}));
  p.partials = static_cast<Bf16*>(args.scratch);
  p.stats = reinterpret_cast<float2*>(p.partials + int64_t{kSplitBlocks} * args.num_heads * kv.latent_dim);
  const LaunchShape shape = {
      .grid = dim3(p.num_splits, num_tokens), .block = dim3(kThreads), .shared_bytes = sizeof(MlaShared)};
  launch_overlapped(f8 ? mla_kernel<true> : mla_kernel<false>, shape, stream, p);
  if (p.num_splits == 1) return;
  if (p.num_splits > kFewSplits) {
    const dim3 grid(num_tokens, args.num_heads);
    launch_overlapped(combine_many_kernel, {.grid = grid, .block = dim3(kThreads)}, stream, p);
    return;
  }
  const dim3 combine_grid(num_tokens, (args.num_heads + kCombineHeads - 1) / kCombineHeads);
  launch_overlapped(combine_kernel, {.grid = combine_grid, .block = dim3(kThreads)}, stream, p);
}

}  // namespace vayu::ops
