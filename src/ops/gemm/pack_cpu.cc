// File blocks to the tiles of cpu_matrix.h. Words of four codes are moved at a time, so packing runs at several hundred
// MB/s a thread without vector code.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "ops/gemm/cpu_matrix.h"

namespace vayu::ops {
namespace {

static_assert(std::endian::native == std::endian::little, "codes are moved as little-endian words");

constexpr TileFormat kTileFormats[] = {
    {DataFormat::kF32, TileScales::kNone, 32, 0, 1, 0, 64},
    {DataFormat::kF16, TileScales::kNone, 16, 0, 1, 0, 32},
    {DataFormat::kBF16, TileScales::kNone, 16, 0, 1, 0, 32},
    {DataFormat::kQ8_0, TileScales::kHalf, 8, 128, 32, 32, 32 + 512},
    {DataFormat::kQ4_0, TileScales::kHalf, 4, 8, 32, 32, 32 + 256},
    {DataFormat::kQ4_1, TileScales::kHalfPair, 4, 0, 32, 64, 64 + 256},
    {DataFormat::kQ5_0, TileScales::kHalf, 5, 16, 32, 32, 32 + 320},
    {DataFormat::kQ5_1, TileScales::kHalfPair, 5, 0, 32, 64, 64 + 320},
    {DataFormat::kQ4_K, TileScales::kSuper, 4, 0, 256, 256, 256 + 8 * 256},
    {DataFormat::kQ5_K, TileScales::kSuper, 5, 0, 256, 256, 256 + 8 * 320},
    {DataFormat::kQ6_K, TileScales::kSixBit, 6, 32, 256, 288, 288 + 8 * 384},
};

using Codes = std::array<uint8_t, 32>;  // the codes of one row for 32 inputs

uint32_t word(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

void store_word(uint8_t* p, uint32_t v) { std::memcpy(p, &v, sizeof(v)); }

void low_nibbles(const uint8_t* src, uint8_t* codes, int n) {
  for (int i = 0; i < n; i += 4) store_word(codes + i, word(src + i) & 0x0f0f0f0f);
}
void high_nibbles(const uint8_t* src, uint8_t* codes, int n) {
  for (int i = 0; i < n; i += 4) store_word(codes + i, word(src + i) >> 4 & 0x0f0f0f0f);
}

// Codes of sub-block `sub` (32 inputs) of a file block; base/data_format.cc describes the blocks.
Codes read_codes(DataFormat format, const uint8_t* b, int sub) {
  Codes codes;
  switch (format) {
    case DataFormat::kQ8_0:
      for (int i = 0; i < 32; i += 4) store_word(&codes[i], word(b + 2 + i) ^ 0x80808080);
      break;
    case DataFormat::kQ4_0:
    case DataFormat::kQ4_1: {
      const uint8_t* nibbles = b + (format == DataFormat::kQ4_0 ? 2 : 4);
      low_nibbles(nibbles, &codes[0], 16);
      high_nibbles(nibbles, &codes[16], 16);
      break;
    }
    case DataFormat::kQ5_0:
    case DataFormat::kQ5_1: {
      const uint8_t* high = b + (format == DataFormat::kQ5_0 ? 2 : 4);
      low_nibbles(high + 4, &codes[0], 16);
      high_nibbles(high + 4, &codes[16], 16);
      for (int i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>((word(high) >> i & 1) << 4);
      break;
    }
    case DataFormat::kQ4_K:
    case DataFormat::kQ5_K: {
      const uint8_t* nibbles = b + (format == DataFormat::kQ4_K ? 16 : 48) + sub / 2 * 32;
      sub % 2 == 0 ? low_nibbles(nibbles, codes.data(), 32) : high_nibbles(nibbles, codes.data(), 32);
      if (format == DataFormat::kQ4_K) break;
      for (int i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>((b[16 + i] >> sub & 1) << 4);
      break;
    }
    case DataFormat::kQ6_K: {
      const int half = sub / 4;
      const int quarter = sub % 4;
      const uint8_t* nibbles = b + half * 64 + quarter % 2 * 32;
      quarter < 2 ? low_nibbles(nibbles, codes.data(), 32) : high_nibbles(nibbles, codes.data(), 32);
      for (int i = 0; i < 32; i += 4) {
        const uint32_t pairs = word(b + 128 + half * 32 + i) >> (2 * quarter) & 0x03030303;
        store_word(&codes[i], word(&codes[i]) | pairs << 4);
      }
      break;
    }
    default:
      VAYU_CHECK(false, "a float format has no codes");
  }
  return codes;
}

// The scales of one row of a file block into their lane of the tile's block.
void pack_scales(DataFormat format, const uint8_t* b, int row, uint8_t* block) {
  switch (tile_format(format).scales) {
    case TileScales::kNone:
      break;
    case TileScales::kHalf:
      std::memcpy(block + 2 * row, b, 2);
      break;
    case TileScales::kHalfPair:
      std::memcpy(block + 2 * row, b, 2);
      std::memcpy(block + 32 + 2 * row, b + 2, 2);
      break;
    case TileScales::kSuper:
      std::memcpy(block + 2 * row, b, 2);
      std::memcpy(block + 32 + 2 * row, b + 2, 2);
      for (int i = 0; i < 3; ++i) std::memcpy(block + 64 + 64 * i + 4 * row, b + 4 + 4 * i, 4);
      break;
    case TileScales::kSixBit:
      std::memcpy(block + 2 * row, b + 208, 2);
      for (int group = 0; group < 16; ++group) block[32 + 16 * group + row] = b[192 + group];
      break;
  }
}

// One row's codes of 32 inputs into their lane of the planes, which start out as zero.
void pack_codes(const Codes& codes, int bits, int row, uint8_t* planes) {
  uint8_t* lane = planes + 4 * row;
  if (bits == 8) {
    for (int s = 0; s < 8; ++s) store_word(lane + 64 * s, word(&codes[4 * s]));
    return;
  }
  for (int v = 0; v < 4; ++v) {
    const uint32_t low = word(&codes[8 * v]) & 0x0f0f0f0f;
    const uint32_t high = word(&codes[8 * v + 4]) & 0x0f0f0f0f;
    store_word(lane + 64 * v, low | high << 4);
  }
  uint8_t* upper = lane + 256;
  const int width = bits - 4;  // bits of the upper plane
  const uint32_t mask = width == 1 ? 0x01010101 : 0x03030303;
  for (int s = 0; width > 0 && s < 8; ++s) {
    uint8_t* p = upper + 64 * (s * width / 8);
    store_word(p, word(p) | (word(&codes[4 * s]) >> 4 & mask) << (s * width % 8));
  }
}

void pack_quantised_tile(const MatrixView& view, const TileFormat& format, int64_t first_row, uint8_t* tile) {
  const auto* data = static_cast<const uint8_t*>(view.data);
  const int64_t stride = row_bytes(view.format, view.cols);
  const int64_t file_block_bytes = format_info(view.format).block_bytes;
  const int64_t num_blocks = view.cols / format.block_cols;
  const int rows = static_cast<int>(std::min(kTileRows, view.rows - first_row));
  for (int row = 0; row < rows; ++row) {
    const uint8_t* src = data + (first_row + row) * stride;
    uint8_t* block = tile;
    for (int64_t i = 0; i < num_blocks; ++i, src += file_block_bytes, block += format.block_bytes) {
      pack_scales(view.format, src, row, block);
      uint8_t* planes = block + format.scale_bytes;
      for (int sub = 0; sub < format.block_cols / 32; ++sub, planes += code_bytes(format.bits)) {
        pack_codes(read_codes(view.format, src, sub), format.bits, row, planes);
      }
    }
  }
}

// A run of columns at a time: their part of the tile stays in the first-level cache while the rows go by.
template <class Element>
void pack_elements(const MatrixView& view, int64_t first_row, uint8_t* tile) {
  constexpr int64_t kRun = 256;
  const int64_t rows = std::min(kTileRows, view.rows - first_row);
  const auto* src = static_cast<const uint8_t*>(view.data) + first_row * view.cols * sizeof(Element);
  auto* dst = reinterpret_cast<Element*>(tile);
  for (int64_t begin = 0; begin < view.cols; begin += kRun) {
    const int64_t count = std::min(kRun, view.cols - begin);
    Element run[kRun];
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(run, src + (row * view.cols + begin) * sizeof(Element), count * sizeof(Element));
      Element* out = dst + begin * kTileRows + row;
      for (int64_t col = 0; col < count; ++col) out[col * kTileRows] = run[col];
    }
  }
}

void pack_float_tile(const MatrixView& view, const TileFormat& format, int64_t first_row, uint8_t* tile) {
  format.bits == 32 ? pack_elements<uint32_t>(view, first_row, tile) : pack_elements<uint16_t>(view, first_row, tile);
}

}  // namespace

const TileFormat& tile_format(DataFormat format) {
  const TileFormat& found = kTileFormats[static_cast<size_t>(format)];
  VAYU_CHECK(found.format == format, "the tile table is out of order at {}", format_info(format).name);
  return found;
}

std::unique_ptr<Matrix> reserve_matrix_cpu(int64_t cols, std::span<const PartShape> shapes) {
  std::vector<PackedPart> parts;
  int64_t rows = 0;
  int64_t tiles = 0;
  int64_t bytes = 0;
  for (const PartShape& shape : shapes) {
    const TileFormat& format = tile_format(shape.format);
    const int64_t num_tiles = (shape.rows + kTileRows - 1) / kTileRows;
    const int64_t tile_bytes = cols / format.block_cols * format.block_bytes;
    parts.push_back({&format, rows, shape.rows, tiles, num_tiles, tile_bytes, nullptr});
    rows += shape.rows;
    tiles += num_tiles;
    bytes += num_tiles * tile_bytes;
  }
  AlignedBytes memory(static_cast<uint8_t*>(::operator new[](bytes, std::align_val_t{64})));
  const uint8_t* next = memory.get();
  for (PackedPart& part : parts) {
    part.tiles = next;
    next += part.num_tiles * part.tile_bytes;
  }
  return std::make_unique<CpuMatrix>(rows, cols, std::move(parts), std::move(memory), bytes);
}

void CpuMatrix::fill(size_t index, int64_t first_row, int64_t num_rows, const void* data) {
  static_assert(kFillRows % kTileRows == 0, "whole tiles are filled");
  const PackedPart& part = parts_[index];
  const MatrixView view{data, part.format->format, num_rows, cols_, {}};
  const bool is_float = part.format->scales == TileScales::kNone;
  uint8_t* tile = memory_.get() + (part.tiles - memory_.get()) + first_row / kTileRows * part.tile_bytes;
  for (int64_t row = 0; row < num_rows; row += kTileRows, tile += part.tile_bytes) {
    std::memset(tile, 0, part.tile_bytes);
    (is_float ? pack_float_tile : pack_quantised_tile)(view, *part.format, row, tile);
  }
}

}  // namespace vayu::ops
