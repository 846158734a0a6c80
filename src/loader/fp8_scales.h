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

  // From the shapes of weight and scale: one scale a tensor, one a row ((rows) or (rows, 1)), one a block; of a stack
  // of matrices each of these with the stack's leading dimensions. None when the shapes do not fit. `values` is left to
  // the caller to fill.
  static std::optional<Fp8Scales> layout(const std::vector<int64_t>& weight, const std::vector<int64_t>& scale,
                                         const ScaleBlocks& blocks);

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

  int64_t matrix_rows_ = 1;  // of one matrix of a stack
  int64_t block_rows_ = 1;
  int64_t block_cols_ = 1;
  int64_t per_row_ = 1;     // blocks along a row
  int64_t per_matrix_ = 1;  // scales of one matrix
};

}  // namespace vayu::loader
