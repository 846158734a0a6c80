#include "ops/gemm/cuda_matrix.h"

#include <gtest/gtest.h>

#include <vector>

namespace vayu::ops {
namespace {

// Every row has a place of its own, gate and up as DeviceMatrix says, and runs stay together.
TEST(CudaMatrix, PlacesOfRows) {
  for (const int64_t ffn : {0, 16, 64, 96, 128, 200, 704}) {
    const int64_t pairs = 3, rows = ffn == 0 ? 300 : pairs * 2 * ffn;
    const MatrixPlaces places{rows, ffn};
    std::vector<int> used(places.device_rows());
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t place = places.of(row);
      ASSERT_LT(place, places.device_rows());
      EXPECT_EQ(used[place]++, 0) << row;
      if (ffn > 0) {
        const int64_t pair = row / (2 * ffn), output = row % ffn;
        const bool up = row % (2 * ffn) >= ffn;
        const int64_t inside = place - pair * 2 * padded_ffn(ffn);
        EXPECT_EQ(inside % 128 >= 64, up) << row;
        EXPECT_EQ(inside / 128 * 64 + inside % 64, output) << row;
      }
      const int64_t run = places.run(row);
      ASSERT_GE(run, 1);
      ASSERT_LE(row + run, rows);
      for (int64_t i = 0; i < run; ++i) ASSERT_EQ(places.of(row + i), place + i) << row;
    }
  }
}

TEST(CudaMatrix, ShapesAndBytes) {
  const auto shape = [](WeightScale scale, int64_t cols, int32_t ffn, bool pad) {
    return CudaMatrixShape{scale, cols, ffn, pad};
  };
  EXPECT_EQ(device_matrix_bytes(shape(WeightScale::kNone, 200, 0, false), 10), 10 * 208 * 2);
  EXPECT_EQ(device_matrix_bytes(shape(WeightScale::kNone, 200, 0, true), 10), 10 * 256 * 2);
  EXPECT_EQ(device_matrix_bytes(shape(WeightScale::kRow, 200, 0, true), 10), 10 * 256 + 40);
  EXPECT_EQ(device_matrix_bytes(shape(WeightScale::kRow, 256, 96, false), 384), 512 * 256 + 512 * 4);
  EXPECT_EQ(device_matrix_bytes(shape(WeightScale::kBlock, 256, 0, false), 200), 200 * 256 + 4 * 2 * 4);
}

}  // namespace
}  // namespace vayu::ops
