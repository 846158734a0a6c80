// The fast CPU path; docs/decisions/0001-cpu-quantised-gemm.md tells why it looks like this, with numbers.
// A call packs the activations once (activations-inl.h). Threads then take tiles of 16 outputs: a tile is unpacked a
// few hundred inputs at a time into the first-level cache (unpack-inl.h) and multiplied with the token groups
// (dot-inl.h). grouped_linear does the same for several runs of rows and tiles at once.
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
constexpr int64_t kSegmentBytes = 128;  // of scratch, for a group of grouped_linear

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

// One linear: some rows against a run of tiles. linear() is one segment, grouped_linear() one for each group.
struct Segment {
  TokenGroups groups;      // of its rows
  int64_t first_row = 0;   // in the row lists and in the packed activations
  int64_t first_tile = 0;  // of the matrix
  int64_t num_tiles = 0;
  int64_t first_output = 0;  // row of the matrix that is output 0
  int64_t first_group = 0;   // token groups of the segments before it
  int64_t first_item = 0;    // work items of the segments before it

  // With many tokens each output line is on a page of its own, and what a store costs is the page: so several tiles are
  // multiplied before their outputs, then neighbours, are stored.
  int64_t tiles_per_item() const { return groups.num_groups == 1 ? 1 : kMaxItemTiles; }
  int64_t items_per_block() const { return (num_tiles + tiles_per_item() - 1) / tiles_per_item(); }
  int64_t num_items() const { return (groups.num_groups + kGroupsPerBlock - 1) / kGroupsPerBlock * items_per_block(); }
};
static_assert(sizeof(Segment) <= kSegmentBytes);

struct Job {
  const CpuMatrix* weight;
  const Segment* segments;
  int64_t num_segments;
  int64_t num_groups;  // of all segments
  int64_t num_items;
  GroupedLinearArgs rows;  // strides and row lists; null lists: row i itself
  bool accumulate;
  ActivationLayout acts;

  const float* x(int64_t row) const { return rows.x + (rows.x_rows ? rows.x_rows[row] : row) * rows.x_stride; }
  float* y(int64_t row) const { return rows.y + (rows.y_rows ? rows.y_rows[row] : row) * rows.y_stride; }

  const Segment& segment_of_group(int64_t group) const {
    return *(std::upper_bound(segments, segments + num_segments, group,
                              [](int64_t g, const Segment& s) { return g < s.first_group; }) -
             1);
  }
  const Segment& segment_of_item(int64_t item) const {
    return *(std::upper_bound(segments, segments + num_segments, item,
                              [](int64_t i, const Segment& s) { return i < s.first_item; }) -
             1);
  }
};

void pack_activations(const Job& job, int64_t begin, int64_t end) {
  const int64_t cols = job.weight->cols();
  for (int64_t i = begin; i < end; ++i) {
    const Segment& segment = job.segment_of_group(i);
    const int64_t group = i - segment.first_group;
    const int64_t first = segment.first_row + segment.groups.first(group);
    const int size = segment.groups.size(group);
    const float* rows[kMaxGroup];
    for (int t = 0; t < size; ++t) rows[t] = job.x(first + t);
    const int64_t blocks = first * (cols / 32);
    if (job.acts.one_group) quantise_group(rows, cols, size, 1, job.acts.one_group + blocks * act_block_bytes(1));
    if (job.acts.two_groups) quantise_group(rows, cols, size, 2, job.acts.two_groups + blocks * act_block_bytes(2));
    if (job.acts.floats) interleave_group(rows, cols, size, job.acts.floats + first * cols);
  }
}

// acc (tokens of groups [begin, end), 16) = the tile's products.
void multiply_quantised(const Job& job, const Segment& segment, const TileFormat& format, const uint8_t* tile,
                        int64_t begin, int64_t end, float* acc) {
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
      const int size = segment.groups.size(g);
      const int64_t block = (segment.first_row + segment.groups.first(g)) * (cols / 32) + size * (col / 32);
      dot_quantised_for(format.bits, size)(unpacked, chunk / 32, acts + block * act_block_bytes(groups), out);
      out += size * kTileRows;
    }
  }
}

void multiply_float(const Job& job, const Segment& segment, const TileFormat& format, const uint8_t* tile,
                    int64_t begin, int64_t end, float* acc) {
  alignas(64) float unpacked[kFloatChunkCols * kTileRows];
  const int64_t cols = job.weight->cols();
  for (int64_t col = 0; col < cols; col += kFloatChunkCols) {
    const int64_t chunk = std::min(kFloatChunkCols, cols - col);
    unpack_float(format, tile + col * format.block_bytes, chunk, unpacked);
    float* out = acc;
    for (int64_t g = begin; g < end; ++g) {
      const int size = segment.groups.size(g);
      const int64_t first = segment.first_row + segment.groups.first(g);
      dot_float_for(size)(unpacked, chunk, job.acts.floats + first * cols + size * col, out);
      out += size * kTileRows;
    }
  }
}

// A tile of the work item at hand, and where its outputs go.
struct ItemTile {
  const PackedPart* part;
  int64_t tile;       // in the part
  int64_t first_row;  // of the matrix
  int64_t rows;
};

ItemTile find_tile(const CpuMatrix& weight, int64_t tile) {
  const auto& parts = weight.parts();
  const auto part = std::upper_bound(parts.begin(), parts.end(), tile,
                                     [](int64_t t, const PackedPart& p) { return t < p.first_tile; }) -
                    1;
  tile -= part->first_tile;
  const int64_t row = tile * kTileRows;
  return {&*part, tile, part->first_row + row, std::min(kTileRows, part->rows - row)};
}

// acc: (tiles, kMaxBlockTokens, 16)
void store_tiles(const Job& job, const Segment& segment, const ItemTile* tiles, int num_tiles, int64_t first_token,
                 int64_t tokens, const float* acc) {
  for (int64_t t = 0; t < tokens; ++t) {
    float* row = job.y(segment.first_row + first_token + t);
    for (int i = 0; i < num_tiles; ++i) {
      const float* src = acc + (i * kMaxBlockTokens + t) * kTileRows;
      float* y = row + tiles[i].first_row - segment.first_output;
      if (job.accumulate) {
        for (int64_t r = 0; r < tiles[i].rows; ++r) y[r] += src[r];
      } else {
        std::memcpy(y, src, tiles[i].rows * sizeof(float));
      }
    }
  }
}

// Work item of a segment: tiles_per_item tiles for token block `item / items_per_block`.
void multiply_item(const Job& job, const Segment& segment, int64_t item) {
  alignas(64) float acc[kMaxItemTiles * kMaxBlockTokens * kTileRows];
  const int64_t first_group = item / segment.items_per_block() * kGroupsPerBlock;
  const int64_t end_group = std::min(first_group + kGroupsPerBlock, segment.groups.num_groups);
  const int64_t first_token = segment.groups.first(first_group);
  const int64_t tokens = segment.groups.first(end_group) - first_token;
  const int64_t first_tile = item % segment.items_per_block() * segment.tiles_per_item();
  const int num_tiles = static_cast<int>(std::min(segment.tiles_per_item(), segment.num_tiles - first_tile));
  ItemTile tiles[kMaxItemTiles];
  for (int i = 0; i < num_tiles; ++i) {
    tiles[i] = find_tile(*job.weight, segment.first_tile + first_tile + i);
    const PackedPart& part = *tiles[i].part;
    float* tile_acc = acc + i * kMaxBlockTokens * kTileRows;
    std::memset(tile_acc, 0, tokens * kTileRows * sizeof(float));
    const bool is_float = part.format->scales == TileScales::kNone;
    (is_float ? multiply_float : multiply_quantised)(
        job, segment, *part.format, part.tiles + tiles[i].tile * part.tile_bytes, first_group, end_group, tile_acc);
  }
  store_tiles(job, segment, tiles, num_tiles, first_token, tokens, acc);
}

void multiply_items(const Job& job, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    const Segment& segment = job.segment_of_item(item);
    multiply_item(job, segment, item - segment.first_item);
  }
}

ActivationLayout place_activations(const CpuMatrix& weight, int64_t num_tokens, void* scratch) {
  ActivationLayout acts;
  auto* next = static_cast<uint8_t*>(scratch);
  const int64_t blocks = num_tokens * (weight.cols() / 32);
  const TileFormat* last = nullptr;
  for (const PackedPart& part : weight.parts()) {
    if (part.format == last) continue;
    last = part.format;
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

void run_job(ThreadPool& pool, const Job& job) {
  pool.parallel_for(job.num_groups, 1, [&](int64_t begin, int64_t end, int) { pack_activations(job, begin, end); });
  int64_t grain = std::max<int64_t>(1, job.num_items / (8 * pool.num_threads()));
  // An item of a group with many rows costs up to a hundred times that of a group with one.
  if (job.num_segments > 1) grain = std::min(grain, kMaxItemTiles);
  pool.parallel_for(job.num_items, grain, [&](int64_t begin, int64_t end, int) { multiply_items(job, begin, end); });
}

void linear_job(ThreadPool& pool, const CpuMatrix& weight, const LinearArgs& args) {
  Segment segment;
  segment.groups = TokenGroups(args.num_tokens);
  segment.num_tiles = weight.num_tiles();
  const GroupedLinearArgs rows{
      .x = args.x, .x_stride = weight.cols(), .y = args.y, .y_stride = weight.rows(), .scratch = args.scratch};
  run_job(pool, {&weight, &segment, 1, segment.groups.num_groups, segment.num_items(), rows, args.accumulate,
                 place_activations(weight, args.num_tokens, args.scratch)});
}

// Segments lie at the start of the scratch.
void grouped_job(ThreadPool& pool, const CpuMatrix& weight, const GroupedLinearArgs& args) {
  auto* segments = static_cast<Segment*>(args.scratch);
  const int64_t outputs = weight.rows() / args.num_groups;
  const PackedPart* part = weight.parts().data();
  const PackedPart* parts_end = part + weight.parts().size();
  Job job{&weight, segments, 0, 0, 0, args, false, {}};
  for (int32_t g = 0; g < args.num_groups; ++g) {
    VAYU_CHECK(part < parts_end && part->first_row == g * outputs, "group {} does not start at a part", g);
    Segment segment;
    segment.first_tile = part->first_tile;
    segment.first_output = part->first_row;
    for (; part < parts_end && part->first_row < (g + 1) * outputs; ++part) segment.num_tiles += part->num_tiles;
    segment.first_row = args.group_indptr[g];
    const int64_t num_rows = args.group_indptr[g + 1] - segment.first_row;
    if (num_rows == 0) continue;
    segment.groups = TokenGroups(num_rows);
    segment.first_group = job.num_groups;
    segment.first_item = job.num_items;
    job.num_groups += segment.groups.num_groups;
    job.num_items += segment.num_items();
    segments[job.num_segments++] = segment;
  }
  if (job.num_segments == 0) return;
  job.acts = place_activations(weight, args.group_indptr[args.num_groups],
                               static_cast<std::byte*>(args.scratch) + args.num_groups * kSegmentBytes);
  run_job(pool, job);
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
HWY_EXPORT(grouped_job);
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

int64_t grouped_linear_scratch_bytes_cpu(int64_t max_rows, int64_t max_cols, int32_t max_groups) {
  return max_groups * kSegmentBytes + linear_scratch_bytes_cpu(max_rows, max_cols);
}

void grouped_linear_cpu(ThreadPool& pool, const GroupedLinearArgs& args) {
  HWY_DYNAMIC_DISPATCH(grouped_job)(pool, as_cpu(*args.weight), args);
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
