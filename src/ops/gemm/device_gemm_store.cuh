// From accumulators to rows of the output. A fragment holds channels of one column (a row of x) in different lanes.
// Matrix stores turn them in shared memory, where each column's channels then lie side by side; neighbouring threads
// take 16-byte pieces of a column to its row. The columns go into the last two stages of the tile, which the products
// are done with: 272 bytes each, so that neither the 8 columns of a matrix store nor 8 threads with a column each meet
// a bank twice.
//   linear   128 channels a warpgroup: the first warpgroup's into the stage before the last, the second's into the last
//   swiglu   64 channels a warpgroup, both into the last; FP8: a thread has the 128 of its column's scale and quantises
//            them in place. They were rounded to BF16 on the way.
// One barrier or two a tile. (In turns of 32 columns with a barrier each, and with peaks by shuffles, 176 columns took
// 5.5 K cycles, and 14.6 K with SwiGLU and FP8, beside 46 K for the products at K = 4096.)
#pragma once

#include "ops/gemm/device_gemm_consume.cuh"

namespace vayu::ops {

constexpr int kColumnBytes = 272;
constexpr int kChunk = 32;  // columns worked on without a look at the count

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

// Matrix 2 b + h of a store is channels 64 b + 16 warp + 8 h + (0 to 7) of 8 columns.
__device__ __forceinline__ void turn_linear(uint32_t area, const TileInfo& tile, const RowScales& scales,
                                            const Consumer& me, const Sums& sums) {
  const int32_t matrix = me.lane / 8;
  const uint32_t in = area + me.lane % 8 * kColumnBytes + (matrix / 2 * 8 + 2 * me.warp + matrix % 2) * 16;
#pragma unroll
  for (int first = 0; first < kTileMaxWidth; first += kChunk) {
    if (first >= tile.count) break;
#pragma unroll
    for (int j = first / 8; j < (first + kChunk) / 8; ++j) {
      const float2 x = column_scales(tile, me, j);
      uint32_t pairs[4];
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const float w = scales.value[p / 2][p % 2];
        const float* pair = &sums[p / 2][4 * j + 2 * (p % 2)];
        pairs[p] = pack_bf16x2(pair[0] * (w * x.x), pair[1] * (w * x.y));
      }
      store_transposed(in + j * 8 * kColumnBytes, pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }
}

// silu(g) u for two pairs, one reciprocal for both. 2^60 stands for larger exp(-g), where silu is below 1e-16 either
// way; a NaN comes back by the factor g.
__device__ __forceinline__ float2 swiglu(float g0, float u0, float g1, float u1) {
  constexpr float kLog2E = 1.4426950408889634f;
  const float a = 1.0f + exp2_approx(fminf(-kLog2E * g0, 60.0f));
  const float b = 1.0f + exp2_approx(fminf(-kLog2E * g1, 60.0f));
  const float r = __fdividef(1.0f, a * b);
  return make_float2(g0 * u0 * (r * b), g1 * u1 * (r * a));
}

// sums[0] becomes silu(gate) * up.
__device__ __forceinline__ void apply_swiglu(const TileInfo& tile, const RowScales& scales, const Consumer& me,
                                             Sums& sums) {
#pragma unroll
  for (int first = 0; first < kTileMaxWidth; first += kChunk) {
    if (first >= tile.count) break;
#pragma unroll
    for (int j = first / 8; j < (first + kChunk) / 8; ++j) {
      const float2 x = column_scales(tile, me, j);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float* gate = &sums[0][4 * j + 2 * h];
        const float* up = &sums[1][4 * j + 2 * h];
        const float g = scales.value[0][h], u = scales.value[1][h];
        const float2 out = swiglu(gate[0] * (g * x.x), up[0] * (u * x.x), gate[1] * (g * x.y), up[1] * (u * x.y));
        gate[0] = out.x;
        gate[1] = out.y;
      }
    }
  }
}

// A store is channels 64 group + 16 warp + (0 to 15) of 16 columns.
__device__ __forceinline__ void turn_swiglu(uint32_t area, const TileInfo& tile, const Consumer& me, const Sums& sums) {
  const uint32_t in =
      area + (me.lane / 16 * 8 + me.lane % 8) * kColumnBytes + (8 * me.group + 2 * me.warp + me.lane / 8 % 2) * 16;
#pragma unroll
  for (int first = 0; first < kTileMaxWidth; first += kChunk) {
    if (first >= tile.count) break;
#pragma unroll
    for (int j = first / 8; j < (first + kChunk) / 8; j += 2) {
      const float* h = &sums[0][4 * j];
      store_transposed(in + j * 8 * kColumnBytes, pack_bf16x2(h[0], h[1]), pack_bf16x2(h[2], h[3]),
                       pack_bf16x2(h[4], h[5]), pack_bf16x2(h[6], h[7]));
    }
  }
}

// 128 channels of a column, BF16 to FP8 in place; returns their scale. Peaks as bits: NaN is above infinity, and stays.
// Read twice rather than kept: the accumulators' registers do not come free.
__device__ __forceinline__ float quantize_column(uint8_t* column) {
  uint32_t peaks = 0;
#pragma unroll 4
  for (int i = 0; i < 16; ++i) {
    const Bytes16 v = *reinterpret_cast<const Bytes16*>(column + 16 * i);
#pragma unroll
    for (int k = 0; k < 4; ++k) peaks = __vmaxu2(peaks, v.word[k] & 0x7fff7fffu);
  }
  const float scale = f8_scale(__uint_as_float(max(peaks & 0xffffu, peaks >> 16) << 16));
  const float inverse = 1.0f / scale;
#pragma unroll 2
  for (int i = 0; i < 8; ++i) {  // piece i takes the place of what was read at i / 2
    Bytes16 out;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Bytes16 v = *reinterpret_cast<const Bytes16*>(column + 32 * i + 16 * half);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float2 a = unpack_bf16x2(v.word[2 * k]), b = unpack_bf16x2(v.word[2 * k + 1]);
        out.word[2 * half + k] = pack_f8x4(a.x * inverse, a.y * inverse, b.x * inverse, b.y * inverse);
      }
    }
    *reinterpret_cast<Bytes16*>(column + 16 * i) = out;
  }
  return scale;
}

__device__ __forceinline__ int64_t row_of_column(const GemmShape& shape, const TileInfo& tile, int32_t column) {
  return shape.y_rows != nullptr ? shape.y_rows[tile.first + column] : tile.first + column;
}

// kPieces pieces of 16 bytes of every column to its row, by kThreads threads; `y`: the first channel in row 0.
template <int kPieces, int kThreads>
__device__ __forceinline__ void write_columns(const GemmShape& shape, const TileInfo& tile, const uint8_t* area,
                                              uint8_t* y, int64_t row_bytes, int32_t pieces, int32_t thread) {
  const int32_t piece = thread % kPieces;
  if (piece >= pieces) return;
#pragma unroll 2
  for (int32_t column = thread / kPieces; column < tile.count; column += kThreads / kPieces) {
    const Bytes16 v = *reinterpret_cast<const Bytes16*>(area + column * kColumnBytes + piece * 16);
    *reinterpret_cast<Bytes16*>(y + row_of_column(shape, tile, column) * row_bytes + piece * 16) = v;
  }
}

__device__ __forceinline__ void store_linear(const GemmShape& shape, uint8_t* area, const TileInfo& tile,
                                             const RowScales& scales, const Consumer& me, const Sums& sums) {
  turn_linear(shared_address(area), tile, scales, me, sums);
  warpgroup_meets(me.group);
  const int32_t channel = tile.row0 + 128 * me.group;
  write_columns<16, 128>(shape, tile, area, shape.out + int64_t{channel} * 2, int64_t{shape.out_cols} * 2,
                         (shape.rows_per_group - channel) / 8, me.first_column(shape));
}

__device__ __forceinline__ void store_swiglu(const GemmShape& shape, uint8_t* area, const TileInfo& tile,
                                             const Consumer& me, const Sums& sums) {
  turn_swiglu(shared_address(area), tile, me, sums);
  const int32_t column = me.first_column(shape);
  consumers_meet();
  const int32_t channel = tile.row0 / 2;
  const int32_t channels = shape.out_cols - channel;  // a cluster's second tile may lie behind the matrix
  if (shape.out_scales == nullptr) {
    write_columns<16, kConsumerThreads>(shape, tile, area, shape.out + int64_t{channel} * 2,
                                        int64_t{shape.out_cols} * 2, channels / 8, column);
    return;
  }
  if (column < tile.count && channels > 0) {
    const int64_t row = row_of_column(shape, tile, column);
    const float scale = quantize_column(area + column * kColumnBytes);
    shape.out_scales[row * (shape.out_cols / kScaleGroup) + channel / kScaleGroup] = scale;
  }
  consumers_meet();
  write_columns<8, kConsumerThreads>(shape, tile, area, shape.out + channel, shape.out_cols, channels / 16, column);
}

// Leaves the last two stages of the tile, at `place` and before it, read and free.
__device__ __forceinline__ void store_tile(const GemmShape& shape, const GemmShared& shared, const TileInfo& tile,
                                           const RowScales& scales, const Consumer& me, const RingPlace& place,
                                           Sums& sums) {
  if (shape.swiglu) {
    apply_swiglu(tile, scales, me, sums);
    consumers_meet();  // both warpgroups' products are done with the stages
    store_swiglu(shape, shared.weight(place.stage), tile, me, sums);
    return;
  }
  consumers_meet();
  const uint32_t stage = me.group == 0 ? place.before(shape.stages) : place.stage;
  store_linear(shape, shared.weight(stage), tile, scales, me, sums);
}

}  // namespace vayu::ops
