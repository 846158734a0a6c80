#include "ops/norm/add_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/cpu/op_test_util.h"
#include "ops/cuda/host_rows.h"
#include "ops/norm/rms_norm.h"

namespace vayu::ops {
namespace {

std::vector<Bf16> random_rows(TestRandom& random, int64_t count) {
  std::vector<Bf16> out(count);
  for (Bf16& v : out) v = host_bf16(random.normal());
  return out;
}

// Against rms_norm on the same numbers; the residual of that one is not rounded, so both are within one rounding.
TEST(AddNormReference, IsRmsNormOfTheRoundedSum) {
  TestRandom random;
  const int64_t rows = 5, hidden = 96;
  std::vector<Bf16> residual = random_rows(random, rows * hidden);
  const std::vector<Bf16> delta = random_rows(random, rows * hidden);
  const std::vector<float> weight = random.normals(hidden);
  std::vector<float> sum(rows * hidden), y(rows * hidden);
  for (int64_t i = 0; i < rows * hidden; ++i)
    sum[i] = host_float(host_bf16(host_float(residual[i]) + host_float(delta[i])));
  rms_norm({Backend::kReference, nullptr}, {sum.data(), nullptr, weight.data(), y.data(), rows, hidden, 1e-5f});

  std::vector<Bf16> out(rows * hidden), copy(rows * hidden);
  AddNormArgs args;
  args.residual = residual.data();
  args.delta = delta.data();
  args.weight = weight.data();
  args.eps = 1e-5f;
  args.num_rows = rows;
  args.hidden = hidden;
  args.y = {out.data(), nullptr, hidden};
  args.y_bf16 = copy.data();
  add_norm_ref(args);
  for (int64_t i = 0; i < rows * hidden; ++i) {
    EXPECT_EQ(host_float(residual[i]), sum[i]);
    EXPECT_EQ(host_float(out[i]), host_float(host_bf16(y[i])));
    EXPECT_EQ(out[i].bits, copy[i].bits);
  }
}

TEST(AddNormReference, PickedRowsLeaveTheResidualAlone) {
  TestRandom random;
  const int64_t hidden = 32;
  std::vector<Bf16> residual = random_rows(random, 4 * hidden);
  const std::vector<Bf16> before = residual, delta = random_rows(random, 4 * hidden);
  const std::vector<float> weight(hidden, 1.0f);
  const std::vector<int32_t> ids = {3, -1, 0};
  std::vector<F8E4M3> y(3 * hidden);
  std::vector<float> scales(3);
  AddNormArgs args;
  args.residual = residual.data();
  args.delta = delta.data();
  args.row_ids = ids.data();
  args.weight = weight.data();
  args.num_rows = 3;
  args.hidden = hidden;
  args.y = {y.data(), scales.data(), hidden};
  add_norm_ref(args);
  for (int64_t i = 0; i < 4 * hidden; ++i) EXPECT_EQ(residual[i].bits, before[i].bits);
  for (int64_t r : {0, 2}) {
    std::vector<double> sum(hidden);
    double squares = 0, peak = 0;
    for (int64_t i = 0; i < hidden; ++i) {
      const int64_t at = ids[r] * hidden + i;
      sum[i] = host_float(host_bf16(host_float(before[at]) + host_float(delta[at])));
      squares += sum[i] * sum[i];
      peak = std::max(peak, std::abs(sum[i]));
    }
    const double rms = std::sqrt(squares / hidden + 1e-6);
    EXPECT_NEAR(scales[r], peak / rms / 448, 1e-6);
    for (int64_t i = 0; i < hidden; ++i) {
      EXPECT_NEAR(host_float(y[r * hidden + i]) * scales[r], sum[i] / rms, std::abs(sum[i] / rms) / 16 + 1e-3);
    }
  }
  EXPECT_EQ(scales[1], 1.0f);
  for (int64_t i = 0; i < hidden; ++i) EXPECT_EQ(host_float(y[hidden + i]), 0.0f);
}

}  // namespace
}  // namespace vayu::ops
