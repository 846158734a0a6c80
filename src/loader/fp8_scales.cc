#include "loader/fp8_scales.h"

#include <algorithm>

namespace vayu::loader {

std::optional<Fp8Scales> Fp8Scales::layout(const std::vector<int64_t>& weight, const std::vector<int64_t>& scale,
                                           const ScaleBlocks& blocks) {
  const size_t lead = weight.size() < 2 ? 0 : weight.size() - 2;
  const int64_t cols = weight.back();
  const int64_t rows = weight.size() < 2 ? 1 : weight[lead];
  int64_t all_rows = rows;
  for (size_t i = 0; i < lead; ++i) all_rows *= weight[i];

  const auto is_lead_and = [&](std::initializer_list<int64_t> tail) {
    std::vector<int64_t> expected(weight.begin(), weight.begin() + lead);
    expected.insert(expected.end(), tail);
    return scale == expected;
  };
  if (std::all_of(scale.begin(), scale.end(), [](int64_t n) { return n == 1; })) {
    return Fp8Scales(all_rows, cols, all_rows, cols);
  }
  if (is_lead_and({rows}) || is_lead_and({rows, 1})) return Fp8Scales(rows, cols, 1, cols);
  if (is_lead_and({}) || is_lead_and({1}) || is_lead_and({1, 1})) return Fp8Scales(rows, cols, rows, cols);
  const int64_t row_blocks = (rows + blocks.rows - 1) / blocks.rows;
  const int64_t col_blocks = (cols + blocks.cols - 1) / blocks.cols;
  if (is_lead_and({row_blocks, col_blocks}) || is_lead_and({row_blocks, 1, col_blocks, 1})) {
    return Fp8Scales(rows, cols, blocks.rows, blocks.cols);
  }
  return std::nullopt;
}

void Fp8Scales::copy_rows(int64_t first_row, int64_t num_rows, float* dst) const {
  for (int64_t r = 0; r < num_rows; ++r) std::copy_n(of_row(first_row + r), per_row_, dst + r * per_row_);
}

void Fp8Scales::apply(int64_t first_row, int64_t num_rows, int64_t cols, float* dst) const {
  for (int64_t r = 0; r < num_rows; ++r) {
    const float* scales = of_row(first_row + r);
    float* row = dst + r * cols;
    for (int64_t block = 0; block < per_row_; ++block) {
      const int64_t end = std::min((block + 1) * block_cols_, cols);
      for (int64_t c = block * block_cols_; c < end; ++c) row[c] *= scales[block];
    }
  }
}

}  // namespace vayu::loader
