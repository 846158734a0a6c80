// How numbers are stored: plain dtypes, FP8 (Micikevicius et al., 2022; its scales live beside it) and the block
// formats of GGUF. One name from file to kernel.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"

namespace vayu {

enum class DataFormat : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kF8E4M3,
  kF8E5M2
};

struct FormatInfo {
  DataFormat format;
  std::string_view name;  // as GGUF tools print it
  int32_t block_size;     // elements a block; a row is a whole number of blocks
  int32_t block_bytes;
  int32_t ggml_type;  // type number in a GGUF tensor record; -1: GGUF has none
};

std::span<const FormatInfo> all_formats();
const FormatInfo& format_info(DataFormat format);
Result<DataFormat> format_from_ggml_type(uint32_t ggml_type);  // kUnsupported names the number

// Bytes of one row of `cols` elements. cols must be a multiple of block_size.
inline int64_t row_bytes(DataFormat format, int64_t cols) {
  const FormatInfo& info = format_info(format);
  return cols / info.block_size * info.block_bytes;
}

// Expands `cols` elements of one row to float: the plain definition of every format. src: row_bytes(format, cols)
// bytes, any alignment; dst: cols floats.
void dequantize_row(DataFormat format, const void* src, float* dst, int64_t cols);

// The inverse, by rounding to nearest with the scale rule of each format; the K formats get a simple per-sub-block fit.
// E4M3 has no infinity and saturates at 448; E5M2 overflows to infinity.
void quantize_row(DataFormat format, const float* src, void* dst, int64_t cols);

}  // namespace vayu
