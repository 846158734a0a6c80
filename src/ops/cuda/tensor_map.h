// Tensor maps for the bulk tensor copy engine: made on the host, passed to kernels as __grid_constant__ parameters.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace vayu::ops {

// When the driver fails to make one, the map is empty, and the next last_launch() on this thread says so.

// Rows of `row_bytes` bytes (a multiple of 16), `num_rows` of them, seen as bytes; a box is `box_rows` (<= 256) rows of
// 128 bytes in the 128-byte swizzle. Reads outside the matrix give zeros. `data` 16-byte aligned. Coordinates: byte
// column, row.
CUtensorMap byte_rows_map(const void* data, int64_t num_rows, int64_t row_bytes, int32_t box_rows);

// Rows of `cols` BF16 for each of `num_heads` heads, row r of head h at r * row_stride + h * head_stride elements
// (multiples of 8); a box is `box_rows` rows of 64 elements of one head in the 128-byte swizzle. Reads outside give
// zeros, writes outside are dropped. Coordinates: column, row, head.
CUtensorMap head_rows_map(const void* data, int64_t cols, int64_t num_rows, int64_t row_stride, int64_t num_heads,
                          int64_t head_stride, int32_t box_rows);

}  // namespace vayu::ops
