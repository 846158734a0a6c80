#include "ops/norm/quantize_rows.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/data_format.h"
#include "ops/cpu/op_test_util.h"
#include "ops/cuda/host_rows.h"

namespace vayu::ops {
namespace {

struct Quantised {
  std::vector<F8E4M3> codes;
  std::vector<float> scales;
};

Quantised quantise(const std::vector<Bf16>& x, int64_t rows, int32_t steps) {
  const auto cols = static_cast<int64_t>(x.size()) / rows;
  Quantised out{std::vector<F8E4M3>(x.size()), std::vector<float>(rows)};
  quantize_rows_ref({.x = x.data(),
                     .x_stride = cols,
                     .num_rows = rows,
                     .y = {out.codes.data(), out.scales.data(), cols},
                     .scale_steps = steps});
  return out;
}

double squared_error(const Quantised& q, const std::vector<Bf16>& x, int64_t row, int64_t cols) {
  double sum = 0;
  for (int64_t i = row * cols; i < (row + 1) * cols; ++i) {
    const double error = double{host_float(q.codes[i])} * q.scales[row] - host_float(x[i]);
    sum += error * error;
  }
  return sum;
}

TEST(QuantizeRowsReference, StepIsTheSixteenthRootOfTwo) {
  EXPECT_NEAR(kScaleStep, std::exp2(1.0 / kScaleSteps), 1e-7);
  float factor = 1;
  for (int i = 0; i < kScaleSteps; ++i) factor *= kScaleStep;
  EXPECT_NEAR(factor, 2.0, 1e-5);
}

// Of sixteen scales, each tried by hand, the best; about a seventh of the error goes.
TEST(QuantizeRowsReference, SearchTakesTheLeastError) {
  TestRandom random;
  const int64_t rows = 60, cols = 576;
  std::vector<Bf16> x(rows * cols);
  for (Bf16& v : x) v = host_bf16(random.normal() * 0.02f);
  const Quantised plain = quantise(x, rows, 1), searched = quantise(x, rows, kScaleSteps);
  double before = 0, after = 0;
  int moved = 0;
  for (int64_t r = 0; r < rows; ++r) {
    double least = INFINITY;
    for (int i = 0; i < kScaleSteps; ++i) {
      const double scale = plain.scales[r] * std::exp2(i / 16.0);
      double sum = 0;
      for (int64_t c = 0; c < cols; ++c) {
        const float v = host_float(x[r * cols + c]), scaled = static_cast<float>(v / scale);
        F8E4M3 code;
        quantize_row(DataFormat::kF8E4M3, &scaled, &code, 1);
        const double error = host_float(code) * scale - v;
        sum += error * error;
      }
      least = std::min(least, sum);
    }
    EXPECT_NEAR(squared_error(searched, x, r, cols), least, least * 1e-4) << r;
    EXPECT_GE(searched.scales[r], plain.scales[r]);
    EXPECT_LT(searched.scales[r], plain.scales[r] * 2);
    moved += searched.scales[r] != plain.scales[r];
    before += squared_error(plain, x, r, cols);
    after += squared_error(searched, x, r, cols);
  }
  EXPECT_GT(moved, rows / 2);
  EXPECT_LT(after, before * 0.97);
}

// Rows that E4M3 holds exactly keep the rule's scale, the first of those without error; so do zeros.
TEST(QuantizeRowsReference, ExactRowsKeepTheirScale) {
  TestRandom random;
  const int64_t rows = 8, cols = 64;
  std::vector<Bf16> x(rows * cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const auto code = static_cast<uint8_t>(i % cols == 3 ? 0x7e : random.integer(0, 0x7e));
    x[i] = host_bf16(i / cols == 7 ? 0.0f : host_float(F8E4M3{code}) * std::exp2(static_cast<float>(i / cols - 3)));
  }
  const Quantised q = quantise(x, rows, kScaleSteps);
  for (int64_t r = 0; r < 7; ++r) {
    EXPECT_EQ(q.scales[r], std::exp2(static_cast<float>(r - 3)));
    EXPECT_EQ(squared_error(q, x, r, cols), 0) << r;
  }
  EXPECT_EQ(q.scales[7], 1.0f);
}

TEST(QuantizeRowsReference, BadRowsStayBad) {
  std::vector<Bf16> x(3 * 16, host_bf16(1.5f));
  x[5] = Bf16{0x7fc0};
  x[16 + 2] = Bf16{0x7f80};
  const Quantised q = quantise(x, 3, kScaleSteps);
  EXPECT_TRUE(std::isnan(q.scales[0]) && std::isnan(q.scales[1]));
  EXPECT_TRUE(std::isfinite(q.scales[2]));
}

}  // namespace
}  // namespace vayu::ops
