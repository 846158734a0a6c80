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

// A row-major matrix as it stands in a file: y = x W^T, W of shape (rows, cols) = (out, in).
struct MatrixView {
  const void* data = nullptr;  // rows * row_bytes(format, cols) bytes, any alignment
  DataFormat format = DataFormat::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  std::string name;  // for errors
};

class Matrix {
 public:
  virtual ~Matrix() = default;
  int64_t rows() const { return rows_; }  // outputs
  int64_t cols() const { return cols_; }  // inputs
  virtual int64_t bytes() const = 0;      // memory held

 protected:
  Matrix(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {}
  int64_t rows_;
  int64_t cols_;
};

// Packs the parts, stacked by rows (Q over K over V, gate over up), for ctx.backend. Parts share cols; formats may
// differ. kReference keeps the file's bytes. Errors: kUnsupported or kInvalidArgument naming the tensor.
Result<std::unique_ptr<Matrix>> pack_matrix(const OpContext& ctx, std::span<const MatrixView> parts);

}  // namespace vayu::ops
