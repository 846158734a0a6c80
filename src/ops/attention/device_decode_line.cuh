// Parts of the kernels of decode attention, whose story is in device_decode.cu: the line of tiles and its cut into
// ranges, the copies of tiles, and the sum over the warps of a block.
#pragma once

#include "ops/attention/device_decode.h"
#include "ops/attention/device_decode_tile.cuh"
#include "ops/cuda/launch.cuh"

namespace vayu::ops {

constexpr int kDecodeHeads = 16;  // rows of a product

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
  float* partials;  // (num pieces, kDecodeHeads, head_dim), relative to the piece's maximum
  float2* stats;    // (num pieces, kDecodeHeads): maximum, sum
  int32_t blocks, min_tiles, tile_keys;
  int32_t slices, slice_vectors;  // blocks that combine a row, and the vectors of 4 columns of each
  bool keys_settled;
};

struct RowPlan {
  int32_t tile_end, kv_len, kv_begin, token;
};

__device__ __forceinline__ int tiles_of_block(const DecodeParams& p, int total) {
  return max((total + p.blocks - 1) / p.blocks, p.min_tiles);
}

// The lists are the step's, written before its first kernel: read ahead of wait_for_inputs().
template <int kKeys, int kWarps>
__device__ __forceinline__ void plan_rows(const DecodeParams& p, RowPlan* rows, int* warp_sums) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int done = 0;
#pragma unroll 1
  for (int first = 0; first < p.num_decode_rows; first += 32 * kWarps) {
    const int i = first + threadIdx.x;
    const int row = i < p.num_decode_rows ? p.decode_rows[i] : -1;
    // Most steps are rows of one token alone, where row is i: asked for before the answer is there.
    RowPlan plan = {};
    if (i < p.batch.num_rows) plan = {0, p.batch.kv_lens[i], p.batch.kv_indptr[i], p.batch.qo_indptr[i]};
    if (row < 0) plan = {};
    if (row >= 0 && row != i) plan = {0, p.batch.kv_lens[row], p.batch.kv_indptr[row], p.batch.qo_indptr[row]};
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

// What the warps of a block have of a piece, put side by side and added up.
template <class Tile, int kWarps>
struct WarpResults {
  static constexpr int kRow = Tile::kHeadDim + 4;  // padded against bank conflicts
  float out[kWarps][kDecodeHeads][kRow];
  float2 stats[kWarps][kDecodeHeads];

  __device__ __forceinline__ void put(DecodeState<Tile>& state) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, c = lane & 3;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      state.sum[r] += __shfl_xor_sync(0xffffffffu, state.sum[r], 1);
      state.sum[r] += __shfl_xor_sync(0xffffffffu, state.sum[r], 2);
      if (c == 0) stats[warp][g + 8 * r] = make_float2(state.max[r], state.sum[r]);
#pragma unroll
      for (int b = 0; b < Tile::kBlocks; ++b) {
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          float* to = &out[warp][g + 8 * r][b * Tile::kSpan + Tile::kN * (2 * c + u)];
#pragma unroll
          for (int j = 0; j < Tile::kN; j += 4) {
            *reinterpret_cast<float4*>(to + j) =
                make_float4(state.out[b][j][2 * r + u], state.out[b][j + 1][2 * r + u], state.out[b][j + 2][2 * r + u],
                            state.out[b][j + 3][2 * r + u]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ float4 add(int head, int vector, float2& total) const {
    float max = -__int_as_float(0x7f800000);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) max = fmaxf(max, stats[w][head].x);
    float sum = 0;
    float4 all = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      // A warp without a tile has seen -infinity; NaN in its sum must survive, so it is multiplied and not skipped.
      const float2 mine = stats[w][head];
      const float weight = mine.x == -__int_as_float(0x7f800000) ? 0.0f : exp2_approx(mine.x - max);
      const float4 v = *reinterpret_cast<const float4*>(&out[w][head][4 * vector]);
      sum += weight * mine.y;
      all.x += weight * v.x, all.y += weight * v.y, all.z += weight * v.z, all.w += weight * v.w;
    }
    total = make_float2(max, sum);
    return all;
  }
};

}  // namespace vayu::ops
