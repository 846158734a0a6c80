// The producers of the GEMM kernel: one warpgroup. Thread 0 has the copy engine fetch the weight and, when the rows of
// x lie together, those too (a pair of blocks shares them: each fetches half for both). When x_rows scatters them, all
// 128 threads gather 16-byte pieces. Warps 1 to 3 look up what the consumers need to know of a tile, and make the
// factors of scales along K.
#pragma once

#include "ops/gemm/device_gemm_shared.cuh"

namespace vayu::ops {

struct Tile {
  int32_t group;
  int32_t row0;   // of the weight, within the group
  int32_t first;  // of the row list
  int32_t count;
  int32_t width;
  bool alone;  // no other tile of x meets this part of the weight
};

__device__ __forceinline__ int32_t group_begin(const GemmShape& shape, int32_t group) {
  return shape.group_indptr != nullptr ? shape.group_indptr[group] : group * shape.num_rows;
}

__device__ __forceinline__ Tile find_tile(const GemmShape& shape, const GemmFixed& fixed, int32_t unit, int32_t rank) {
  Tile tile;
  tile.group = find_group(fixed.first_unit, shape.num_groups, unit);
  const int32_t begin = group_begin(shape, tile.group), rows = group_begin(shape, tile.group + 1) - begin;
  const GroupTiles cut = cut_group(rows, shape.max_width);
  const int32_t row_units = divide_up(shape.rows_per_group, kTileRows * shape.cluster);
  const UnitPlace place = place_unit(unit - fixed.first_unit[tile.group], cut.count, row_units);
  tile.row0 = (place.row_unit * shape.cluster + rank) * kTileRows;
  tile.first = begin + place.tile * cut.width;
  tile.count = min(cut.width, rows - place.tile * cut.width);
  tile.width = divide_up(tile.count, kTileWidthStep) * kTileWidthStep;
  tile.alone = cut.count == 1;
  return tile;
}

// The first unit of each group, once, by one warp.
__device__ __forceinline__ void list_units(const GemmShape& shape, GemmFixed& fixed) {
  constexpr int32_t kPasses = kDeviceGemmMaxGroups / 32;
  if (threadIdx.x >= 32) return;
  const int32_t lane = threadIdx.x;
  const int32_t row_units = divide_up(shape.rows_per_group, kTileRows * shape.cluster);
  int32_t rows[kPasses];
#pragma unroll
  for (int32_t i = 0; i < kPasses; ++i) {
    const int32_t group = 32 * i + lane;
    rows[i] = group < shape.num_groups ? group_begin(shape, group + 1) - group_begin(shape, group) : 0;
  }
  if (lane == 0) fixed.first_unit[0] = 0;
  int32_t before = 0;
#pragma unroll
  for (int32_t i = 0; i < kPasses; ++i) {
    const int32_t group = 32 * i + lane;
    int32_t sum = cut_group(rows[i], shape.max_width).count * row_units;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int32_t other = __shfl_up_sync(0xffffffffu, sum, offset);
      if (lane >= offset) sum += other;
    }
    if (group < shape.num_groups) fixed.first_unit[group + 1] = before + sum;
    before += __shfl_sync(0xffffffffu, sum, 31);
  }
}

// Waits, before the next tile's facts overwrite those of the tile before last, until the consumers are done with them.
__device__ __forceinline__ void publish_tile(const GemmShape& shape, GemmFixed& fixed, const Tile& tile,
                                             uint32_t turn) {
  TileInfo& info = fixed.info[turn % 2];
  const int32_t thread = threadIdx.x - 32;
  float scale[2] = {1.0f, 1.0f};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int32_t column = thread + i * kInfoThreads;
    if (!shape.x_row_scales || column >= tile.count) continue;
    const int32_t row = tile.first + column;
    scale[i] = shape.x_scales[shape.x_rows != nullptr ? shape.x_rows[row] : row];
  }
  barrier_wait(&fixed.info_empty[turn % 2], (turn / 2 % 2) ^ 1);
#pragma unroll
  for (int i = 0; i < 2; ++i) info.x_scale[thread + i * kInfoThreads] = scale[i];
  if (thread == 0) {
    info.row0 = tile.row0;
    info.group = tile.group;
    info.first = tile.first;
    info.count = tile.count;
    info.width = tile.width;
  }
  barrier_arrive(&fixed.info_full[turn % 2]);
}

__device__ __forceinline__ void fetch_x(const GemmMaps& maps, const GemmShape& shape, const GemmShared& shared,
                                        const Tile& tile, uint32_t stage, int32_t column, int32_t rank) {
  const int32_t rows = tile.width / shape.cluster;  // this block's share: a multiple of 8
  const int32_t begin = rank * rows;
  uint64_t* barrier = &shared.fixed->full[stage];
  uint8_t* x = shared.x(stage);
  for (int32_t r = begin; r < begin + rows;) {
    const int32_t left = begin + rows - r;
    const CUtensorMap* map = &maps.x;
    int32_t box = shape.box_rows;
    if (left != box) {
      box = left >= 64 ? 64 : left >= 32 ? 32 : 8;
      map = left >= 64 ? &maps.x64 : left >= 32 ? &maps.x32 : &maps.x8;
    }
    if (shape.cluster == 2) {
      copy_tile_to_both(map, barrier, x + r * 128, column, tile.first + r, kEvictNormal);
    } else {
      copy_tile(map, barrier, x + r * 128, column, tile.first + r, kEvictNormal);
    }
    r += box;
  }
}

__device__ __forceinline__ void fetch_tiles(const GemmMaps& maps, const GemmShape& shape, const GemmShared& shared,
                                            const Tile& tile, uint32_t stage, int32_t step, int32_t rank) {
  const bool gather = shape.x_rows != nullptr;
  uint64_t* barrier = &shared.fixed->full[stage];
  barrier_arrive_expect(barrier, kWeightBytes + (gather ? 0 : tile.width * 128));
  copy_tile(&maps.weight, barrier, shared.weight(stage), step * 128, tile.group * shape.rows_per_group + tile.row0,
            tile.alone ? kEvictFirst : kEvictNormal);
  if (!gather) fetch_x(maps, shape, shared, tile, stage, step * 128, rank);
}

// Thread t fetches piece t % 8 of rows t / 8, t / 8 + 16, ...; pieces past the end of a row are zeros. Columns that
// only round the width up repeat the last row.
__device__ __forceinline__ void gather_rows(const GemmShape& shape, const GemmShared& shared, const Tile& tile,
                                            uint32_t stage, int32_t step) {
  const int32_t piece = threadIdx.x % 8;
  const int32_t column = step * 128 + piece * 16;
  const uint32_t bytes = column < shape.row_bytes ? 16 : 0;
  const uint8_t* x = shape.x + (bytes != 0 ? column : 0);
  uint32_t out = shared_address(shared.x(stage)) + swizzled_offset(threadIdx.x / 8, piece);
  constexpr int32_t kStep = kProducerThreads / 8;  // a multiple of the 8 rows after which the swizzle repeats
#pragma unroll 3
  for (int32_t r = threadIdx.x / 8; r < tile.width; r += kStep, out += kStep * 128) {
    const int32_t row = shape.x_rows[tile.first + min(r, tile.count - 1)];
    copy_async16(out, x + static_cast<int64_t>(row) * shape.row_bytes, bytes);
  }
}

// Scales along K without a second set of accumulators: with the scale s[g] of a sum in group g of K, the sum over g of
// s[g] P[g] is kept as acc = (s[0] P[0] + ... + s[g] P[g]) / s[g]. After the products of group g are added, acc is
// multiplied by s[g] / s[g + 1], and after the last by s[last]. Where both x and the weight have scales, s is their
// product, and each has a chain of its own. A scale below 2^-40 of the largest so far counts as that: acc stays below
// 2^115, and what is misjudged is far below the last bit of the row's other groups.
class ScaleChain {
 public:
  // `scales`: those of the groups, side by side; null: all are 1.
  __device__ void start(const float* scales, int32_t groups) {
    scales_ = scales;
    peak_ = 0;
    load(0, groups);
    scale_ = advance();
    load(1, groups);
  }
  // What a sum is multiplied by behind group `step`.
  __device__ float factor(int32_t step, int32_t groups) {
    const float next = step + 1 < groups ? advance() : 1.0f;
    const float factor = scale_ / next;
    scale_ = next;
    load(step + 2, groups);
    return factor;
  }

 private:
  __device__ void load(int32_t step, int32_t groups) {
    if (scales_ != nullptr && step < groups) ahead_ = scales_[step];
  }
  __device__ float advance() {
    peak_ = ahead_ > peak_ ? ahead_ : peak_;  // NaN passes by and is returned
    const float floor = fmaxf(peak_ * 0x1p-40f, 0x1p-120f);
    return ahead_ < floor ? floor : ahead_;
  }

  const float* scales_;
  float ahead_ = 1.0f;  // of the next group
  float peak_;
  float scale_;
};

// The chains of a tile that a thread looks after: two columns, and one of the first threads' each 64 weight rows.
template <ScalesAlongK kScales>
class TileChains {
 public:
  __device__ void start(const GemmShape& shape, const Tile& tile) {
    groups_ = shape.row_bytes / kScaleGroup;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t row = tile.first + min(thread_ + i * kInfoThreads, tile.count - 1);
      const int64_t at = int64_t{shape.x_rows != nullptr ? shape.x_rows[row] : row} * groups_;
      columns_[i].start(has_columns(shape) ? shape.x_scales + at : nullptr, groups_);
    }
    if constexpr (kBlocks) {
      const int32_t first = (tile.group * shape.rows_per_group + tile.row0) / kScaleBlockRows;
      const int64_t at = int64_t{min(first + thread_, shape.weight_blocks - 1)} * groups_;
      block_.start(has_block() ? shape.weight_scales + at : nullptr, groups_);
    }
  }
  // The factors behind group `step`.
  __device__ void write(const GemmShape& shape, StageFactors& out, int32_t step) {
    if (has_columns(shape)) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int32_t column = thread_ + i * kInfoThreads;
        out.column[column % 8 / 2][column / 8 * 2 + column % 2] = columns_[i].factor(step, groups_);
      }
    }
    if (kBlocks && has_block()) out.block[thread_] = block_.factor(step, groups_);
  }

 private:
  static constexpr bool kBlocks = kScales == ScalesAlongK::kBlocks;
  __device__ static bool has_columns(const GemmShape& shape) { return !kBlocks || shape.x_group_scales; }
  __device__ bool has_block() const { return thread_ < kTileRows / kScaleBlockRows; }

  int32_t thread_ = static_cast<int32_t>(threadIdx.x) - 32;
  int32_t groups_;  // of K
  ScaleChain columns_[2];
  ScaleChain block_;
};

template <ScalesAlongK kScales>
__device__ __forceinline__ void produce(const GemmMaps& maps, const GemmShape& shape, const GemmShared& shared) {
  GemmFixed& fixed = *shared.fixed;
  const int32_t rank = shape.cluster == 2 ? static_cast<int32_t>(cluster_rank()) : 0;
  const bool informs = threadIdx.x >= 32;
  const bool gather = shape.x_rows != nullptr;
  constexpr bool kScaled = kScales != ScalesAlongK::kNone;
  const bool fills = threadIdx.x == 0 || gather || (kScaled && informs);
  const int32_t units = fixed.first_unit[shape.num_groups];
  const int32_t stride = gridDim.x / shape.cluster;
  RingPlace place;
  uint32_t turn = 0;
  for (int32_t unit = blockIdx.x / shape.cluster; unit < units; unit += stride, ++turn) {
    const Tile tile = find_tile(shape, fixed, unit, rank);
    if (informs) publish_tile(shape, fixed, tile, turn);
    if (!fills) continue;
    TileChains<kScales> chains;
    if (kScaled && informs) chains.start(shape, tile);
    for (int32_t step = 0; step < shape.steps; ++step, place.next(shape.stages)) {
      barrier_wait(&fixed.empty[place.stage], place.phase ^ 1);
      if (threadIdx.x == 0) fetch_tiles(maps, shape, shared, tile, place.stage, step, rank);
      if (gather) {
        gather_rows(shape, shared, tile, place.stage, step);
        barrier_arrive_on_copies(&fixed.full[place.stage]);
      }
      if (kScaled && informs) {
        chains.write(shape, shared.factors[place.stage], step);
        barrier_arrive(&fixed.full[place.stage]);
      }
    }
  }
  if (informs) publish_tile(shape, fixed, Tile{}, turn);
}

}  // namespace vayu::ops
