// The CPU's weight layout. Sixteen output rows make a tile, one row a lane: one AVX-512 register of accumulators, two
// of AVX2. Along the inputs a tile is a sequence of blocks (32 inputs, 256 for the K formats, 1 for float formats),
// each holding what the file's block holds for its 16 rows, so a packed matrix is as large as in the file:
//   scales   as in the file, for 16 rows: half d[16], half m[16] and so on (see kTileFormats)
//   per 32 inputs, q being the unsigned code of a weight, step s = inputs 4s .. 4s+3, and byte 4r+j row r, input 4s+j:
//     4-bit plane  4 x 64 bytes: vector v holds step 2v in the low nibbles and step 2v+1 in the high ones
//     5th bit      64 bytes: bit s belongs to step s
//     5th, 6th bit 2 x 64 bytes: vector v, bits 2i and 2i+1 belong to step 4v+i
//     8-bit        8 x 64 bytes: vector s holds step s
// A 64-byte load and at most two logic operations thus give the operand of a dot product of 4 inputs in 16 rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "ops/gemm/backends.h"

namespace vayu::ops {

constexpr int64_t kTileRows = 16;
constexpr int64_t kStepBytes = 64;  // 4 inputs of 16 rows as bytes

enum class TileScales : uint8_t {
  kNone,      // float formats
  kHalf,      // d[16]; w = d (q - zero)
  kHalfPair,  // d[16], m[16]; w = d q + m
  kSuper,     // d[16], dmin[16], then the 12 bytes of sub-scales as three words (3, 16); w = d sc q - dmin mn
  kSixBit,    // d[16], int8 sc (16 groups, 16 rows); w = d sc (q - 32)
};

struct TileFormat {
  DataFormat format;
  TileScales scales;
  int bits;        // of q; of the element for float formats
  int zero;        // kHalf only
  int block_cols;  // inputs a block
  int scale_bytes;
  int block_bytes;  // of 16 rows
};

const TileFormat& tile_format(DataFormat format);

inline int code_bytes(int bits) { return static_cast<int>(kTileRows) * 32 * bits / 8; }  // a plane set of 32 inputs

// A run of rows in one format; tiles do not straddle parts, so the last tile of a part may be padded with zero rows.
struct PackedPart {
  const TileFormat* format;
  int64_t first_row;
  int64_t rows;
  int64_t first_tile;
  int64_t num_tiles;
  int64_t tile_bytes;
  const uint8_t* tiles;  // (num_tiles, tile_bytes)
};

struct AlignedDelete {
  void operator()(uint8_t* p) const { ::operator delete[](p, std::align_val_t{64}); }
};
using AlignedBytes = std::unique_ptr<uint8_t[], AlignedDelete>;

class CpuMatrix : public Matrix {
 public:
  CpuMatrix(int64_t rows, int64_t cols, std::vector<PackedPart> parts, AlignedBytes memory, int64_t bytes)
      : Matrix(rows, cols), parts_(std::move(parts)), memory_(std::move(memory)), bytes_(bytes) {}

  int64_t bytes() const override { return bytes_; }
  void fill(size_t part, int64_t first_row, int64_t num_rows, const void* data) override;
  const std::vector<PackedPart>& parts() const { return parts_; }
  int64_t num_tiles() const { return parts_.back().first_tile + parts_.back().num_tiles; }

 private:
  std::vector<PackedPart> parts_;
  AlignedBytes memory_;
  int64_t bytes_;
};

}  // namespace vayu::ops
