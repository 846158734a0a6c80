// The fast CPU path; docs/decisions/0001-cpu-quantised-gemm.md tells why it looks like this, with numbers.
// A call packs the activations once (activations-inl.h). Threads then take tiles of 16 outputs: a tile is unpacked a
// few hundred inputs at a time into the first-level cache (unpack-inl.h) and multiplied with the token groups
// (dot-inl.h).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gemm/linear_cpu.cc"
#include "hwy/foreach_target.h"
// clang-format off: the target loop comes first
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "hwy/highway.h"
#include "ops/cpu/thread_pool.h"
#include "ops/gemm/activations-inl.h"
#include "ops/gemm/cpu_matrix.h"
#include "ops/gemm/dot-inl.h"
#include "ops/gemm/unpack-inl.h"
// clang-format on

#ifndef VAYU_OPS_GEMM_LINEAR_CPU_ONCE_
#define VAYU_OPS_GEMM_LINEAR_CPU_ONCE_
namespace vayu::ops {

// Inputs unpacked at a time: 24 x 768 bytes of codes and scales, or 192 x 64 of floats, leave room in a first-level
// cache of 32 KiB or more for the activations that stream by. A multiple of 256, the block of the K formats, when more
// than that are there.
constexpr int64_t kChunkCols = 768;
constexpr int64_t kFloatChunkCols = 192;
// With one token group reading the weights is the larger part, and a long dot product would let the prefetcher sleep.
constexpr int64_t kShortChunkCols = 256;
// Token groups multiplied with one unpacked tile: their accumulators stay in the first-level cache, 96 tokens are
// enough to make the unpacking cheap.
constexpr int64_t kGroupsPerBlock = 8;
constexpr int64_t kMaxItemTiles = 4;

struct ActivationLayout {
  uint8_t* one_group = nullptr;   // 16-bit codes, sums over 32
  uint8_t* two_groups = nullptr;  // 16-bit codes, sums over 16
  float* floats = nullptr;
};

inline int64_t align_64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace vayu::ops
#endif

#include "ops/gemm/before_namespace-inl.h"
namespace vayu::ops::HWY_NAMESPACE {

constexpr int64_t kMaxBlockTokens = kGroupsPerBlock * kMaxGroup;

struct Job {
  const CpuMatrix* weight;
  const LinearArgs* args;
  TokenGroups groups;
  ActivationLayout acts;
};

void pack_activations(const Job& job, int64_t begin, int64_t end) {
  const int64_t cols = job.weight->cols();
  for (int64_t g = begin; g < end; ++g) {
    const int64_t first = job.groups.first(g);
    const int size = job.groups.size(g);
    const float* x = job.args->x + first * cols;
    const int64_t blocks = first * (cols / 32);
    if (job.acts.one_group) quantise_group(x, cols, size, 1, job.acts.one_group + blocks * act_block_bytes(1));
    if (job.acts.two_groups) quantise_group(x, cols, size, 2, job.acts.two_groups + blocks * act_block_bytes(2));
    if (job.acts.floats) interleave_group(x, cols, size, job.acts.floats + first * cols);
  }
}

// acc (tokens of groups [begin, end), 16) = the tile's products.
void multiply_quantised(const Job& job, const TileFormat& format, const uint8_t* tile, int64_t begin, int64_t end,
                        float* acc) {
  alignas(64) uint8_t unpacked[kChunkCols / 32 * unpacked_block_bytes(2)];
  const int64_t cols = job.weight->cols();
  const int groups = groups_of(format.bits);
  const uint8_t* acts = groups == 1 ? job.acts.one_group : job.acts.two_groups;
  const int64_t step = end - begin == 1 ? kShortChunkCols : kChunkCols;
  for (int64_t col = 0; col < cols; col += step) {
    const int64_t chunk = std::min(step, cols - col);
    unpack_quantised(format, tile + col / format.block_cols * format.block_bytes, chunk, unpacked);
    float* out = acc;
    for (int64_t g = begin; g < end; ++g) {
      const int size = job.groups.size(g);
      const int64_t block = job.groups.first(g) * (cols / 32) + size * (col / 32);
      dot_quantised_for(format.bits, size)(unpacked, chunk / 32, acts + block * act_block_bytes(groups), out);
      out += size * kTileRows;
    }
  }
}

void multiply_float(const Job& job, const TileFormat& format, const uint8_t* tile, int64_t begin, int64_t end,
                    float* acc) {
  alignas(64) float unpacked[kFloatChunkCols * kTileRows];
  const int64_t cols = job.weight->cols();
  for (int64_t col = 0; col < cols; col += kFloatChunkCols) {
    const int64_t chunk = std::min(kFloatChunkCols, cols - col);
    unpack_float(format, tile + col * format.block_bytes, chunk, unpacked);
    float* out = acc;
    for (int64_t g = begin; g < end; ++g) {
      const int size = job.groups.size(g);
      dot_float_for(size)(unpacked, chunk, job.acts.floats + job.groups.first(g) * cols + size * col, out);
      out += size * kTileRows;
    }
  }
}

// A tile of the work item at hand, and where its outputs go.
struct ItemTile {
  const PackedPart* part;
  int64_t tile;  // in the part
  int64_t first_row;
  int64_t rows;
};

ItemTile find_tile(const CpuMatrix& weight, int64_t tile) {
  auto part = weight.parts().begin();
  while (tile >= part->first_tile + part->num_tiles) ++part;
  tile -= part->first_tile;
  const int64_t row = tile * kTileRows;
  return {&*part, tile, part->first_row + row, std::min(kTileRows, part->rows - row)};
}

// acc: (tiles, kMaxBlockTokens, 16)
void store_tiles(const LinearArgs& args, const ItemTile* tiles, int num_tiles, int64_t first_token, int64_t tokens,
                 const float* acc) {
  for (int64_t t = 0; t < tokens; ++t) {
    float* row = args.y + (first_token + t) * args.weight->rows();
    for (int i = 0; i < num_tiles; ++i) {
      const float* src = acc + (i * kMaxBlockTokens + t) * kTileRows;
      float* y = row + tiles[i].first_row;
      if (args.accumulate) {
        for (int64_t r = 0; r < tiles[i].rows; ++r) y[r] += src[r];
      } else {
        std::memcpy(y, src, tiles[i].rows * sizeof(float));
      }
    }
  }
}

// Tiles of one work item. With many tokens each output line is on a page of its own, and what a store costs is the
// page: so several tiles are multiplied before their outputs, then neighbours, are stored.
int64_t tiles_per_item(const Job& job) { return job.groups.num_groups == 1 ? 1 : kMaxItemTiles; }
int64_t items_per_block(const Job& job) {
  return (job.weight->num_tiles() + tiles_per_item(job) - 1) / tiles_per_item(job);
}

// Work item: tiles_per_item tiles for token block `item / items_per_block`.
void multiply_item(const Job& job, int64_t item) {
  alignas(64) float acc[kMaxItemTiles * kMaxBlockTokens * kTileRows];
  const int64_t first_group = item / items_per_block(job) * kGroupsPerBlock;
  const int64_t end_group = std::min(first_group + kGroupsPerBlock, job.groups.num_groups);
  const int64_t first_token = job.groups.first(first_group);
  const int64_t tokens = job.groups.first(end_group) - first_token;
  const int64_t first_tile = item % items_per_block(job) * tiles_per_item(job);
  const int num_tiles = static_cast<int>(std::min(tiles_per_item(job), job.weight->num_tiles() - first_tile));
  ItemTile tiles[kMaxItemTiles];
  for (int i = 0; i < num_tiles; ++i) {
    tiles[i] = find_tile(*job.weight, first_tile + i);
    const PackedPart& part = *tiles[i].part;
    float* tile_acc = acc + i * kMaxBlockTokens * kTileRows;
    std::memset(tile_acc, 0, tokens * kTileRows * sizeof(float));
    const bool is_float = part.format->scales == TileScales::kNone;
    (is_float ? multiply_float : multiply_quantised)(job, *part.format, part.tiles + tiles[i].tile * part.tile_bytes,
                                                     first_group, end_group, tile_acc);
  }
  store_tiles(*job.args, tiles, num_tiles, first_token, tokens, acc);
}

void multiply_items(const Job& job, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) multiply_item(job, item);
}

ActivationLayout place_activations(const CpuMatrix& weight, int64_t num_tokens, void* scratch) {
  ActivationLayout acts;
  auto* next = static_cast<uint8_t*>(scratch);
  const int64_t blocks = num_tokens * (weight.cols() / 32);
  for (const PackedPart& part : weight.parts()) {
    if (part.format->scales == TileScales::kNone) {
      if (acts.floats) continue;
      acts.floats = reinterpret_cast<float*>(next);
      next += align_64(num_tokens * weight.cols() * static_cast<int64_t>(sizeof(float)));
    } else {
      const int groups = groups_of(part.format->bits);
      uint8_t*& place = groups == 1 ? acts.one_group : acts.two_groups;
      if (place) continue;
      place = next;
      next += align_64(blocks * act_block_bytes(groups));
    }
  }
  return acts;
}

void linear_job(ThreadPool& pool, const CpuMatrix& weight, const LinearArgs& args) {
  const Job job{&weight, &args, TokenGroups(args.num_tokens), place_activations(weight, args.num_tokens, args.scratch)};
  pool.parallel_for(job.groups.num_groups, 1,
                    [&](int64_t begin, int64_t end, int) { pack_activations(job, begin, end); });
  const int64_t token_blocks = (job.groups.num_groups + kGroupsPerBlock - 1) / kGroupsPerBlock;
  const int64_t items = items_per_block(job) * token_blocks;
  const int64_t grain = std::max<int64_t>(1, items / (8 * pool.num_threads()));
  pool.parallel_for(items, grain, [&](int64_t begin, int64_t end, int) { multiply_items(job, begin, end); });
}

// One row of a packed part as floats.
void expand_row(const PackedPart& part, int64_t cols, int64_t row, float* HWY_RESTRICT out) {
  alignas(64) uint8_t unpacked[kChunkCols / 32 * unpacked_block_bytes(2)];
  static_assert(sizeof(unpacked) >= kFloatChunkCols * kTileRows * sizeof(float));
  const TileFormat& format = *part.format;
  const uint8_t* tile = part.tiles + row / kTileRows * part.tile_bytes;
  const int64_t lane = row % kTileRows;
  if (format.scales == TileScales::kNone) {
    auto* floats = reinterpret_cast<float*>(unpacked);
    for (int64_t col = 0; col < cols; col += kFloatChunkCols) {
      const int64_t chunk = std::min(kFloatChunkCols, cols - col);
      unpack_float(format, tile + col * format.block_bytes, chunk, floats);
      for (int64_t i = 0; i < chunk; ++i) out[col + i] = floats[i * kTileRows + lane];
    }
    return;
  }
  const int groups = groups_of(format.bits);
  for (int64_t col = 0; col < cols; col += kChunkCols) {
    const int64_t chunk = std::min(kChunkCols, cols - col);
    unpack_quantised(format, tile + col / format.block_cols * format.block_bytes, chunk, unpacked);
    for (int64_t i = 0; i < chunk; ++i) {
      const uint8_t* block = unpacked + i / 32 * unpacked_block_bytes(groups);
      const auto* scales = reinterpret_cast<const float*>(block + kCodeBytes);
      const int64_t group = i % 32 * groups / 32;
      const float q = block[i % 32 / 4 * kStepBytes + 4 * lane + i % 4];
      out[col + i] = q * scales[group * kTileRows + lane] + scales[(groups + group) * kTileRows + lane];
    }
  }
}

}  // namespace vayu::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vayu::ops {
namespace {

HWY_EXPORT(linear_job);
HWY_EXPORT(expand_row);

const CpuMatrix& as_cpu(const Matrix& matrix) {
  const auto* packed = dynamic_cast<const CpuMatrix*>(&matrix);
  VAYU_CHECK(packed != nullptr, "matrix was packed for another backend");
  return *packed;
}

}  // namespace

int64_t linear_scratch_bytes_cpu(int64_t max_tokens, int64_t max_cols) {
  const int64_t blocks = max_tokens * ((max_cols + 31) / 32);
  return align_64(blocks * 72) + align_64(blocks * 76) + align_64(blocks * 128);  // the three kinds of activations
}

void linear_cpu(ThreadPool& pool, const LinearArgs& args) {
  HWY_DYNAMIC_DISPATCH(linear_job)(pool, as_cpu(*args.weight), args);
}

void gather_rows_cpu(ThreadPool& pool, const Matrix& table, const int32_t* ids, float* out, int64_t num_tokens) {
  const CpuMatrix& weight = as_cpu(table);
  const auto expand = HWY_DYNAMIC_DISPATCH(expand_row);
  pool.parallel_for(num_tokens, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; ++token) {
      auto part = weight.parts().begin();
      while (ids[token] >= part->first_row + part->rows) ++part;
      expand(*part, weight.cols(), ids[token] - part->first_row, out + token * weight.cols());
    }
  });
}

}  // namespace vayu::ops
#endif
