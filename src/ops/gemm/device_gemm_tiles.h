// How the rows of a group are cut into tiles, and which tile is the n-th: shared by the kernel, the launcher and a CPU
// test, so no CUDA header.
//
// A tile is 256 rows of the weight by `width` rows of x. The tensor cores take the weight on their M side (64 a
// warpgroup and instruction, fixed) and x on their N side (any multiple of 8), so that an expert with 168 rows costs
// 176 and not 256. A unit of work is one tile, or a pair of tiles of neighbouring weight rows for a cluster of two
// blocks.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define VAYU_BOTH_SIDES __host__ __device__ __forceinline__
#else
#define VAYU_BOTH_SIDES inline
#endif

namespace vayu::ops {

constexpr int32_t kTileRows = 256;
constexpr int32_t kTileMaxWidth = 192;
constexpr int32_t kTileWidthStep = 16;
// Tiles of x that all weight rows pass before the next: 24 x 192 rows of 4 KiB are 19 MB, which stay in 50 MB of L2.
constexpr int32_t kTilesPerPass = 24;

VAYU_BOTH_SIDES int32_t divide_up(int32_t a, int32_t b) { return (a + b - 1) / b; }

struct GroupTiles {
  int32_t width;  // of all tiles of the group but the last
  int32_t count;
};

// The fewest tiles of at most max_width, as even as the step allows.
VAYU_BOTH_SIDES GroupTiles cut_group(int32_t rows, int32_t max_width) {
  if (rows <= 0) return {0, 0};
  const int32_t fewest = divide_up(rows, max_width);
  const int32_t width = divide_up(divide_up(rows, fewest), kTileWidthStep) * kTileWidthStep;
  return {width, divide_up(rows, width)};
}

struct UnitPlace {
  int32_t row_unit;  // which 256 (or 512, for a cluster) rows of the group's weight
  int32_t tile;      // which tile of x
};

// Unit `index` of a group of `tiles` tiles and `row_units` row units: tiles of x run fastest, so that a block of the
// weight is read by its users at about the same time.
VAYU_BOTH_SIDES UnitPlace place_unit(int32_t index, int32_t tiles, int32_t row_units) {
  const int32_t pass = index / (kTilesPerPass * row_units);
  const int32_t first = pass * kTilesPerPass;
  const int32_t tiles_here = tiles - first < kTilesPerPass ? tiles - first : kTilesPerPass;
  const int32_t rest = index - first * row_units;
  return {rest / tiles_here, first + rest % tiles_here};
}

// The group of a unit: the last with first_unit[group] <= unit. first_unit: (num_groups + 1) ascending.
VAYU_BOTH_SIDES int32_t find_group(const int32_t* first_unit, int32_t num_groups, int32_t unit) {
  int32_t low = 0, high = num_groups;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (first_unit[middle] <= unit) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace vayu::ops
