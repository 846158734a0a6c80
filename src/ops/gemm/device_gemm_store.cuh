// From accumulators to rows of the output. A fragment holds channels of one column (a row of x) in different lanes: a
// warp turns 512 bytes at a time in a corner of shared memory of its own, by transposing matrix stores, and writes 16
// bytes a lane. 16-byte pieces are placed so that neither side meets a bank twice.
#pragma once

#include "ops/gemm/device_gemm_consume.cuh"

namespace vayu::ops {

struct RowScales {
  float value[2][2];  // [b][h]: of the weight rows of acc[b][4 j + 2 h]
};

__device__ __forceinline__ RowScales load_row_scales(const GemmShape& shape, const TileInfo& tile, const Consumer& me) {
  RowScales scales;
#pragma unroll
  for (int b = 0; b < 2; ++b) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int32_t row = tile.row0 + me.first_row() + 64 * b + 8 * h;
      const bool has = shape.row_scales && row < shape.rows_per_group;
      scales.value[b][h] = has ? shape.weight_scales[tile.group * shape.rows_per_group + row] : 1.0f;
    }
  }
  return scales;
}

__device__ __forceinline__ float2 column_scales(const TileInfo& tile, const Consumer& me, int j) {
  return *reinterpret_cast<const float2*>(&tile.x_scale[8 * j + 2 * (me.lane % 4)]);
}

// BF16, 8 columns a turn: 8 x (two runs of 16 channels). Piece p = 2 b + h of column c lies at 64 c + 16 (p ^ (c / 2)).
__device__ __forceinline__ void store_linear(const GemmShape& shape, const GemmShared& shared, const TileInfo& tile,
                                             const RowScales& scales, const Consumer& me, const Sums& sums) {
  uint8_t* corner = shared.fixed->staging[4 * me.group + me.warp];
  const int32_t in_column = me.lane % 8, in_piece = me.lane / 8;
  const uint32_t in = shared_address(corner) + in_column * 64 + ((in_piece ^ (in_column / 2)) * 16);
  const int32_t out_column = me.lane / 4, out_piece = me.lane % 4;
  const auto* out = reinterpret_cast<const Bytes16*>(corner + out_column * 64 + ((out_piece ^ (out_column / 2)) * 16));
  const int32_t channel = tile.row0 + 128 * me.group + 64 * (out_piece / 2) + 16 * me.warp + 8 * (out_piece % 2);
  auto* y = reinterpret_cast<Bf16*>(shape.out) + channel;
#pragma unroll
  for (int j = 0; j < kTileMaxWidth / 8; ++j) {
    if (8 * j >= tile.count) break;
    const float2 x = column_scales(tile, me, j);
    uint32_t pairs[4];
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const float w = scales.value[p / 2][p % 2];
      const float* pair = &sums[p / 2][4 * j + 2 * (p % 2)];
      pairs[p] = pack_bf16x2(pair[0] * w * x.x, pair[1] * w * x.y);
    }
    store_transposed(in, pairs[0], pairs[1], pairs[2], pairs[3]);
    __syncwarp();
    if (8 * j + out_column < tile.count && channel < shape.rows_per_group) {
      const int64_t row = tile.out_row[8 * j + out_column];
      *reinterpret_cast<Bytes16*>(y + row * shape.out_cols) = *out;
    }
    __syncwarp();
  }
}

// sums[0] becomes silu(gate) * up.
__device__ __forceinline__ void apply_swiglu(const TileInfo& tile, const RowScales& scales, const Consumer& me,
                                             Sums& sums) {
#pragma unroll
  for (int j = 0; j < kTileMaxWidth / 8; ++j) {
    if (8 * j >= tile.count) break;
    const float2 x = column_scales(tile, me, j);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float column = i % 2 == 0 ? x.x : x.y;
      const float gate = sums[0][4 * j + i] * scales.value[0][i / 2] * column;
      const float up = sums[1][4 * j + i] * scales.value[1][i / 2] * column;
      sums[0][4 * j + i] = __fdividef(gate, 1.0f + __expf(-gate)) * up;
    }
  }
}

// BF16, 16 columns a turn. Piece h of column c lies at 32 c + 16 (h ^ (c / 4 % 2)).
__device__ __forceinline__ void store_swiglu_bf16(const GemmShape& shape, const GemmShared& shared,
                                                  const TileInfo& tile, const Consumer& me, const Sums& sums) {
  uint8_t* corner = shared.fixed->staging[4 * me.group + me.warp];
  const int32_t in_column = me.lane / 16 * 8 + me.lane % 8, in_piece = me.lane / 8 % 2;
  const uint32_t in = shared_address(corner) + in_column * 32 + ((in_piece ^ (in_column / 4 % 2)) * 16);
  const int32_t out_column = me.lane / 2, out_piece = me.lane % 2;
  const auto* out =
      reinterpret_cast<const Bytes16*>(corner + out_column * 32 + ((out_piece ^ (out_column / 4 % 2)) * 16));
  const int32_t channel = tile.row0 / 2 + 64 * me.group + 16 * me.warp + 8 * out_piece;
  auto* y = reinterpret_cast<Bf16*>(shape.out) + channel;
#pragma unroll
  for (int j = 0; j < kTileMaxWidth / 8; j += 2) {
    if (8 * j >= tile.count) break;
    const float* h = &sums[0][4 * j];
    store_transposed(in, pack_bf16x2(h[0], h[1]), pack_bf16x2(h[2], h[3]), pack_bf16x2(h[4], h[5]),
                     pack_bf16x2(h[6], h[7]));
    __syncwarp();
    if (8 * j + out_column < tile.count && channel < shape.out_cols) {
      const int64_t row = tile.out_row[8 * j + out_column];
      *reinterpret_cast<Bytes16*>(y + row * shape.out_cols) = *out;
    }
    __syncwarp();
  }
}

// The largest magnitude of each column over the tile's 128 outputs. As bits: NaN is above infinity, and stays.
__device__ __forceinline__ void find_peaks(TileInfo& tile, const Consumer& me, const Sums& sums) {
#pragma unroll
  for (int j = 0; j < kTileMaxWidth / 8; ++j) {
    if (8 * j >= tile.count) break;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const uint32_t a = __float_as_uint(fabsf(sums[0][4 * j + c])), b = __float_as_uint(fabsf(sums[0][4 * j + 2 + c]));
      uint32_t peak = max(a, b);
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) peak = max(peak, __shfl_xor_sync(0xffffffffu, peak, offset));
      if (me.lane < 4) atomicMax(&tile.peak[8 * j + 2 * me.lane + c], peak);
    }
  }
}

__device__ __forceinline__ void write_scales(const GemmShape& shape, TileInfo& tile) {
  const int32_t column = threadIdx.x - kProducerThreads;
  if (column >= tile.count) return;
  const float scale = f8_scale(__uint_as_float(tile.peak[column]));
  tile.x_scale[column] = 1.0f / scale;
  if (tile.row0 >= shape.rows_per_group) return;  // a cluster's second tile may lie behind the matrix
  const int64_t row = tile.out_row[column];
  shape.out_scales[row * (shape.out_cols / kScaleGroup) + tile.row0 / kTileRows] = scale;
}

// FP8, 32 columns a turn. Channels c and c + 8 are one 16-bit element of the transposing store, so a column's 16 bytes
// come as channels 0 8 1 9 ... and are sorted by byte permutes.
__device__ __forceinline__ void store_swiglu_f8(const GemmShape& shape, const GemmShared& shared, const TileInfo& tile,
                                                const Consumer& me, const Sums& sums) {
  uint8_t* corner = shared.fixed->staging[4 * me.group + me.warp];
  const uint32_t in = shared_address(corner) + me.lane * 16;
  const auto* mixed = reinterpret_cast<const Bytes16*>(corner + me.lane * 16);
  uint8_t* y = shape.out + tile.row0 / 2 + 64 * me.group + 16 * me.warp;
#pragma unroll
  for (int j = 0; j < kTileMaxWidth / 8; j += 4) {
    if (8 * j >= tile.count) break;
    uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 inverse = column_scales(tile, me, j + i);
      const float* h = &sums[0][4 * (j + i)];
      packed[i] = pack_f8x4(h[0] * inverse.x, h[2] * inverse.x, h[1] * inverse.y, h[3] * inverse.y);
    }
    store_transposed(in, packed[0], packed[1], packed[2], packed[3]);
    __syncwarp();
    if (8 * j + me.lane < tile.count && tile.row0 < shape.rows_per_group) {
      const Bytes16 v = *mixed;
      Bytes16 sorted;
      sorted.word[0] = __byte_perm(v.word[0], v.word[1], 0x6420);
      sorted.word[1] = __byte_perm(v.word[2], v.word[3], 0x6420);
      sorted.word[2] = __byte_perm(v.word[0], v.word[1], 0x7531);
      sorted.word[3] = __byte_perm(v.word[2], v.word[3], 0x7531);
      const int64_t row = tile.out_row[8 * j + me.lane];
      *reinterpret_cast<Bytes16*>(y + row * shape.out_cols) = sorted;
    }
    __syncwarp();
  }
}

__device__ __forceinline__ void store_tile(const GemmShape& shape, const GemmShared& shared, TileInfo& tile,
                                           const RowScales& scales, const Consumer& me, Sums& sums) {
  if (!shape.swiglu) {
    store_linear(shape, shared, tile, scales, me, sums);
    return;
  }
  apply_swiglu(tile, scales, me, sums);
  if (shape.out_scales == nullptr) {
    store_swiglu_bf16(shape, shared, tile, me, sums);
    return;
  }
  find_peaks(tile, me, sums);
  consumers_meet();
  write_scales(shape, tile);
  consumers_meet();
  store_swiglu_f8(shape, shared, tile, me, sums);
}

}  // namespace vayu::ops
