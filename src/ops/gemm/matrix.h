// A weight matrix in the layout its backend multiplies from. Weights stay quantised; nothing is held twice.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/data_format.h"
#include "base/result.h"
#include "ops/context.h"

namespace vayu::ops {

struct SeededRows;  // ops/gemm/seeded_rows.h

// A row-major matrix as it stands in a file: y = x W^T, W of shape (rows, cols) = (out, in).
struct MatrixView {
  const void* data = nullptr;  // rows * row_bytes(format, cols) bytes, any alignment
  DataFormat format = DataFormat::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  std::string name;  // for errors
};

// A run of rows to be stacked, known before its data is.
struct PartShape {
  DataFormat format = DataFormat::kF32;
  int64_t rows = 0;
  std::string name;  // for errors
};

constexpr int64_t kFillRows = 16;  // fill() starts at multiples of this

class Matrix {
 public:
  virtual ~Matrix() = default;
  // Puts rows [first_row, first_row + num_rows) of a part in place. data: (num_rows, row_bytes(format, cols)) as in a
  // file, any alignment; first_row a multiple of kFillRows, num_rows too unless it reaches the part's end. Several
  // threads may fill different rows at once; every row is filled once before the matrix is used.
  virtual void fill(size_t part, int64_t first_row, int64_t num_rows, const void* data) = 0;
  // The same with FP8 codes of a part in E4M3 and the scales of each row: `scales` is (num_rows, 1), or (num_rows,
  // cols / 128) where the matrix has them by blocks. Only of backends that multiply from FP8.
  virtual void fill_scaled(size_t part, int64_t first_row, int64_t num_rows, const void* codes, const float* scales);
  // The same with rows that `source` gives, element first_element on, made where they go. False: not of this backend.
  virtual bool fill_seeded(size_t part, int64_t first_row, int64_t num_rows, const SeededRows& source,
                           uint64_t first_element) {
    return false;
  }
  int64_t rows() const { return rows_; }  // outputs
  int64_t cols() const { return cols_; }  // inputs
  virtual int64_t bytes() const = 0;      // memory held

 protected:
  Matrix(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {}
  int64_t rows_;
  int64_t cols_;
};

// Room for the parts, stacked by rows (Q over K over V, gate over up, expert over expert), at its final size in the
// layout of ctx.backend. Errors: kUnsupported or kInvalidArgument naming the tensor.
Result<std::unique_ptr<Matrix>> reserve_matrix(const OpContext& ctx, int64_t cols, std::span<const PartShape> parts);

// reserve_matrix and fill in one. Parts share cols; formats may differ. kReference keeps the file's bytes.
Result<std::unique_ptr<Matrix>> pack_matrix(const OpContext& ctx, std::span<const MatrixView> parts);

}  // namespace vayu::ops
