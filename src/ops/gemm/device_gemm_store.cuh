// From accumulators to rows of the output. A fragment holds channels of one column (a row of x) in different lanes. A
// warpgroup turns 32 columns at a time in shared memory, by transposing matrix stores, and writes each column's
// channels as one run: 256 bytes of a row (BF16), 128 or 64 (behind SwiGLU). Its place is its own 16 KiB of weights in
// the last stage of the tile, which nobody else reads and which is released behind the stores; two halves of it take
// turns, so that one barrier a turn is enough.
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

constexpr int kTurnColumns = 32;
constexpr int kTurnBytes = 8192;

// Where 16-byte piece `piece` of a column lies in a half: columns follow each other, pieces are exchanged so that
// neither the 8 columns of a matrix store nor 8 neighbouring threads of a load meet a bank twice.
template <int kPieces>
__device__ __forceinline__ uint32_t piece_place(int column, int piece) {
  const int swap = kPieces >= 8 ? column % 8 : column / 2 % 4;
  return (column * kPieces + (piece ^ swap)) * 16;
}

// The columns of a turn to their rows; `y`: channel 0 of the warpgroup in row 0, of which `channels_left` exist.
template <int kPieces, int kPieceChannels, class Sort>
__device__ __forceinline__ void write_columns(const TileInfo& tile, const uint8_t* half, int32_t first, uint8_t* y,
                                              int64_t row_bytes, int32_t channels_left, Sort sort) {
  const int32_t thread = threadIdx.x % 128, piece = thread % kPieces;
  if (piece * kPieceChannels >= channels_left) return;
#pragma unroll
  for (int i = 0; i < kPieces / 4; ++i) {
    const int32_t column = thread / kPieces + i * (128 / kPieces);
    if (first + column >= tile.count) return;
    const Bytes16 v = sort(*reinterpret_cast<const Bytes16*>(half + piece_place<kPieces>(column, piece)));
    *reinterpret_cast<Bytes16*>(y + tile.out_row[first + column] * row_bytes + piece * 16) = v;
  }
}
__device__ __forceinline__ Bytes16 as_it_is(const Bytes16& v) { return v; }

// turn(half, first): stores columns first .. first + 31 into `half`; then write(half, first).
template <class Turn, class Write>
__device__ __forceinline__ void take_turns(const TileInfo& tile, const Consumer& me, uint8_t* corner, Turn turn,
                                           Write write) {
  warpgroup_meets(me.group);  // all four warps' products are done with the weights
#pragma unroll
  for (int first = 0; first < kTileMaxWidth; first += kTurnColumns) {
    if (first >= tile.count) break;
    uint8_t* half = corner + first / kTurnColumns % 2 * kTurnBytes;
    turn(shared_address(half), first);
    warpgroup_meets(me.group);
    write(half, first);
  }
}

// BF16: 128 channels, 16 pieces a column. Matrix 2 b + h of a store is piece 8 b + 2 warp + h of 8 columns.
__device__ __forceinline__ void store_linear(const GemmShape& shape, uint8_t* corner, const TileInfo& tile,
                                             const RowScales& scales, const Consumer& me, const Sums& sums) {
  const int32_t matrix = me.lane / 8;
  const uint32_t in = piece_place<16>(me.lane % 8, matrix / 2 * 8 + 2 * me.warp + matrix % 2);
  const int32_t channel = tile.row0 + 128 * me.group;
  auto turn = [&](uint32_t half, int first) {
#pragma unroll
    for (int j = 0; j < kTurnColumns / 8; ++j) {
      const float2 x = column_scales(tile, me, first / 8 + j);
      uint32_t pairs[4];
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const float w = scales.value[p / 2][p % 2];
        const float* pair = &sums[p / 2][4 * (first / 8 + j) + 2 * (p % 2)];
        pairs[p] = pack_bf16x2(pair[0] * w * x.x, pair[1] * w * x.y);
      }
      store_transposed(half + in + j * 8 * 256, pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  };
  auto write = [&](const uint8_t* half, int first) {
    write_columns<16, 8>(tile, half, first, shape.out + int64_t{channel} * 2, int64_t{shape.out_cols} * 2,
                         shape.rows_per_group - channel, as_it_is);
  };
  take_turns(tile, me, corner, turn, write);
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

// BF16: 64 channels, 8 pieces a column. A store is pieces 2 warp and 2 warp + 1 of 16 columns.
__device__ __forceinline__ void store_swiglu_bf16(const GemmShape& shape, uint8_t* corner, const TileInfo& tile,
                                                  const Consumer& me, const Sums& sums) {
  const uint32_t in = piece_place<8>(me.lane / 16 * 8 + me.lane % 8, 2 * me.warp + me.lane / 8 % 2);
  const int32_t channel = tile.row0 / 2 + 64 * me.group;
  auto turn = [&](uint32_t half, int first) {
#pragma unroll
    for (int j = 0; j < kTurnColumns / 8; j += 2) {
      const float* h = &sums[0][4 * (first / 8 + j)];
      store_transposed(half + in + j * 8 * 128, pack_bf16x2(h[0], h[1]), pack_bf16x2(h[2], h[3]),
                       pack_bf16x2(h[4], h[5]), pack_bf16x2(h[6], h[7]));
    }
  };
  auto write = [&](const uint8_t* half, int first) {
    write_columns<8, 8>(tile, half, first, shape.out + int64_t{channel} * 2, int64_t{shape.out_cols} * 2,
                        shape.out_cols - channel, as_it_is);
  };
  take_turns(tile, me, corner, turn, write);
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

// FP8: 64 channels, 4 pieces a column, one a warp. Channels c and c + 8 are one 16-bit element of the transposing
// store, so a column's 16 bytes come as channels 0 8 1 9 ... and are sorted by byte permutes.
__device__ __forceinline__ Bytes16 sort_pairs(const Bytes16& v) {
  Bytes16 sorted;
  sorted.word[0] = __byte_perm(v.word[0], v.word[1], 0x6420);
  sorted.word[1] = __byte_perm(v.word[2], v.word[3], 0x6420);
  sorted.word[2] = __byte_perm(v.word[0], v.word[1], 0x7531);
  sorted.word[3] = __byte_perm(v.word[2], v.word[3], 0x7531);
  return sorted;
}
__device__ __forceinline__ void store_swiglu_f8(const GemmShape& shape, uint8_t* corner, const TileInfo& tile,
                                                const Consumer& me, const Sums& sums) {
  const uint32_t in = piece_place<4>(me.lane, me.warp);
  const int32_t channel = tile.row0 / 2 + 64 * me.group;
  auto turn = [&](uint32_t half, int first) {
    uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 inverse = column_scales(tile, me, first / 8 + i);
      const float* h = &sums[0][4 * (first / 8 + i)];
      packed[i] = pack_f8x4(h[0] * inverse.x, h[2] * inverse.x, h[1] * inverse.y, h[3] * inverse.y);
    }
    store_transposed(half + in, packed[0], packed[1], packed[2], packed[3]);
  };
  auto write = [&](const uint8_t* half, int first) {
    write_columns<4, 16>(tile, half, first, shape.out + channel, shape.out_cols, shape.out_cols - channel, sort_pairs);
  };
  take_turns(tile, me, corner, turn, write);
}

__device__ __forceinline__ void store_tile(const GemmShape& shape, uint8_t* corner, TileInfo& tile,
                                           const RowScales& scales, const Consumer& me, Sums& sums) {
  if (!shape.swiglu) {
    store_linear(shape, corner, tile, scales, me, sums);
    return;
  }
  apply_swiglu(tile, scales, me, sums);
  if (shape.out_scales == nullptr) {
    store_swiglu_bf16(shape, corner, tile, me, sums);
    return;
  }
  find_peaks(tile, me, sums);
  consumers_meet();
  write_scales(shape, tile);
  consumers_meet();
  store_swiglu_f8(shape, corner, tile, me, sums);
}

}  // namespace vayu::ops
