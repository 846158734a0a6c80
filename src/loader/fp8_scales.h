// Scales of FP8 weights: value [row, col] = stored [row, col] * scale of the block it lies in.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace vayu::loader {

// How block scales lie over a matrix; the last row and column of blocks may be ragged.
struct ScaleBlocks {
  int64_t rows = 128;
  int64_t cols = 128;
};

class Fp8Scales {
 public:
  Fp8Scales() = default;  // of a tensor without scales

  // From the shapes of weight and scale: one scale a tensor, one a row ((rows) or (rows, 1)), one a block ((row blocks,
  // column blocks), or ModelOpt's (row blocks, 1, column blocks, 1)); of a stack of matrices each of these with the
  // stack's leading dimensions. None when the shapes do not fit. `values` is left to the caller to fill.
  static std::optional<Fp8Scales> layout(const std::vector<int64_t>& weight, const std::vector<int64_t>& scale,
                                         const ScaleBlocks& blocks);

  int64_t block_rows() const { return block_rows_; }
  int64_t block_cols() const { return block_cols_; }
  int64_t matrix_rows() const { return matrix_rows_; }  // of one matrix of a stack; blocks begin anew with each
  int64_t per_row() const { return per_row_; }          // scales along a row: 1 when each row has one scale
  // Those of rows [first_row, first_row + num_rows), of each row all of them: dst (num_rows, per_row()).
  void copy_rows(int64_t first_row, int64_t num_rows, float* dst) const;

  // Multiplies rows [first_row, first_row + num_rows) of the weight, at dst: (num_rows, cols), by their scales.
  void apply(int64_t first_row, int64_t num_rows, int64_t cols, float* dst) const;

  std::vector<float> values;  // in the order of the scale tensor

 private:
  Fp8Scales(int64_t matrix_rows, int64_t cols, int64_t block_rows, int64_t block_cols)
      : matrix_rows_(matrix_rows),
        block_rows_(block_rows),
        block_cols_(block_cols),
        per_row_((cols + block_cols - 1) / block_cols),
        per_matrix_((matrix_rows + block_rows - 1) / block_rows * per_row_) {}

  const float* of_row(int64_t row) const {
    return values.data() + row / matrix_rows_ * per_matrix_ + row % matrix_rows_ / block_rows_ * per_row_;
  }

  int64_t matrix_rows_ = 1;
  int64_t block_rows_ = 1;
  int64_t block_cols_ = 1;
  int64_t per_row_ = 1;
  int64_t per_matrix_ = 1;  // scales of one matrix
};

}  // namespace vayu::loader
