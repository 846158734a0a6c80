#include "loader/fp8_scales.h"

#include <gtest/gtest.h>

#include <numeric>

namespace vayu::loader {
namespace {

// Scales by row, of rows that begin anywhere, are those that apply() multiplies by.
TEST(Fp8Scales, RowsAreThoseThatAreApplied) {
  struct Case {
    std::vector<int64_t> weight, scale;
    int64_t per_row;
  };
  const ScaleBlocks blocks{2, 3};
  for (const Case& c : {Case{{5, 7}, {}, 1}, Case{{5, 7}, {5}, 1}, Case{{5, 7}, {5, 1}, 1}, Case{{5, 7}, {3, 3}, 3},
                        Case{{5, 7}, {3, 1, 3, 1}, 3}, Case{{4, 5, 7}, {4}, 1}, Case{{4, 5, 7}, {4, 5, 1}, 1},
                        Case{{4, 5, 7}, {4, 3, 3}, 3}}) {
    auto scales = Fp8Scales::layout(c.weight, c.scale, blocks);
    ASSERT_TRUE(scales.has_value());
    EXPECT_EQ(scales->per_row(), c.per_row);
    int64_t count = 1, rows = 1;
    for (const int64_t n : c.scale) count *= n;
    for (size_t i = 0; i + 1 < c.weight.size(); ++i) rows *= c.weight[i];
    scales->values.resize(count);
    std::iota(scales->values.begin(), scales->values.end(), 1.0f);
    for (int64_t first = 0; first < rows; ++first) {
      const int64_t num = rows - first;
      std::vector<float> applied(num * 7, 1.0f), copied(num * c.per_row);
      scales->apply(first, num, 7, applied.data());
      scales->copy_rows(first, num, copied.data());
      for (int64_t r = 0; r < num; ++r) {
        for (int64_t col = 0; col < 7; ++col) {
          ASSERT_EQ(copied[r * c.per_row + col / (c.per_row == 1 ? 7 : 3)], applied[r * 7 + col]) << first + r;
        }
      }
    }
  }
}

}  // namespace
}  // namespace vayu::loader
