#include "ops/norm/quantize_rows.h"

#include "ops/norm/quantize_rows_test_util.h"

namespace vayu::ops {
namespace {

void check(const std::vector<Bf16>& x, int64_t stride, int64_t num_rows, int64_t cols) {
  const std::string name = std::to_string(num_rows) + " rows of " + std::to_string(cols);
  HostActRows want(true, num_rows, cols);
  quantize_rows_ref({x.data(), stride, num_rows, want.view});
  const DeviceArray<Bf16> device(x);
  DeviceActRows got(true, num_rows, cols);
  quantize_rows_cuda(nullptr, {device.get(), stride, num_rows, got.view});
  ASSERT_TRUE(last_launch("quantize_rows").ok());
  expect_same_rows(got, want, name);
}

TEST(QuantizeRowsCuda, MatchesReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (int64_t cols : {16, 48, 256, 576, 1024, 4096, 4112, 8192, 8208, 16384}) {
    for (int64_t num_rows : unless_short({1, 3, 40}, {1, 11})) {
      const int64_t stride = cols + 8 * random.integer(0, 3);
      check(random_bf16(random, num_rows * stride, 3), stride, num_rows, cols);
    }
  }
  const int64_t many = unless_short(8192, 1000);
  check(random_bf16(random, many * 128), 128, many, 128);
}

TEST(QuantizeRowsCuda, BadAndTinyRows) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const int64_t cols = 4096;
  std::vector<Bf16> x = random_bf16(random, 6 * cols);
  x[1 * cols + 4000] = Bf16{0x7fc0};                                          // NaN
  x[2 * cols + 9] = Bf16{0xff80};                                             // -infinity
  for (int64_t i = 0; i < cols; ++i) x[3 * cols + i] = Bf16{0};               // scale 1
  for (int64_t i = 0; i < cols; ++i) x[4 * cols + i] = as_bf16({1e-33f})[0];  // below the tiny peak: zeros, scale 1
  HostActRows want(true, 6, cols);
  quantize_rows_ref({x.data(), cols, 6, want.view});
  for (int64_t row = 0; row < 6; ++row) expect_nan_row(want, row, row == 1 || row == 2);
  EXPECT_EQ(want.scales[3], 1.0f);
  EXPECT_EQ(want.scales[4], 1.0f);
  check(x, cols, 6, cols);
}

double squared_error(const std::vector<float>& x, double scale) {
  double sum = 0;
  for (const float v : x) {
    const auto scaled = static_cast<float>(v / scale);
    F8E4M3 code;
    quantize_row(DataFormat::kF8E4M3, &scaled, &code, 1);
    const double error = as_float(code) * scale - v;
    sum += error * error;
  }
  return sum;
}

// Sums in another order may tell two scales apart the other way when they are equally good: the scale is one of the
// sixteen and as good as the reference's, seldom another one, and the codes are those that belong to it.
void check_search(const std::vector<Bf16>& x, int64_t stride, int64_t num_rows, int64_t cols) {
  const std::string name = std::to_string(num_rows) + " rows of " + std::to_string(cols);
  HostActRows rule(true, num_rows, cols), want(true, num_rows, cols);
  quantize_rows_ref({x.data(), stride, num_rows, rule.view});
  quantize_rows_ref({x.data(), stride, num_rows, want.view, kScaleSteps});
  const DeviceArray<Bf16> device(x);
  DeviceActRows got(true, num_rows, cols);
  quantize_rows_cuda(nullptr, {device.get(), stride, num_rows, got.view, kScaleSteps});
  ASSERT_TRUE(last_launch("quantize_rows").ok());
  const std::vector<uint8_t> codes = got.bytes.host();
  const std::vector<float> scales = got.scales.host();
  int64_t others = 0;
  for (int64_t row = 0; row < num_rows; ++row) {
    ASSERT_EQ(std::isnan(scales[row]), std::isnan(want.scales[row])) << name << " row " << row;
    if (std::isnan(scales[row])) continue;
    const double steps = std::log2(double{scales[row]} / rule.scales[row]) * kScaleSteps;
    ASSERT_NEAR(steps, std::round(steps), 1e-3) << name << " row " << row;
    ASSERT_TRUE(std::round(steps) >= 0 && std::round(steps) < kScaleSteps) << name << " row " << row;
    std::vector<float> values(cols), scaled(cols);
    for (int64_t i = 0; i < cols; ++i) {
      values[i] = as_float(x[row * stride + i]);
      scaled[i] = values[i] / scales[row];
    }
    if (std::fabs(double{scales[row]} / want.scales[row] - 1) > 1e-5) {
      ++others;
      EXPECT_LE(squared_error(values, scales[row]), squared_error(values, want.scales[row]) * (1 + 1e-4))
          << name << " row " << row;
    }
    std::vector<uint8_t> belonging(cols);
    quantize_row(DataFormat::kF8E4M3, scaled.data(), belonging.data(), cols);
    expect_same_codes(&codes[row * cols], belonging.data(), cols, name);
  }
  EXPECT_LE(others, 1 + num_rows / 20) << name;
}

TEST(QuantizeRowsCuda, SearchMatchesReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (int64_t cols : {16, 48, 256, 576, 4096, 4112, 16384, 28672}) {
    const int64_t num_rows = unless_short(cols > 1000 ? 10 : 60, 5), stride = cols + 8 * random.integer(0, 3);
    check_search(random_bf16(random, num_rows * stride, 0.02f), stride, num_rows, cols);
  }
  const int64_t cols = 512;
  std::vector<Bf16> x = random_bf16(random, 5 * cols);
  x[1 * cols + 400] = Bf16{0x7fc0};
  x[2 * cols + 9] = Bf16{0xff80};
  for (int64_t i = 0; i < cols; ++i) x[3 * cols + i] = Bf16{0};
  check_search(x, cols, 5, cols);
}

TEST(QuantizeRowsCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (!speed_wanted()) GTEST_SKIP();
  TestRandom random;
  for (int64_t rows : {1, 8, 32, 64, 3584}) {
    const DeviceArray<Bf16> x(random_bf16(random, rows * 4096));
    DeviceActRows y(true, rows, 4096);
    print_speed("quantize_rows", std::to_string(rows) + "x4096", double(rows) * 4096 * 3, [&](CudaStream stream) {
      quantize_rows_cuda(stream, {x.get(), 4096, rows, y.view});
    });
    print_speed("quantize_rows_search", std::to_string(rows) + "x4096", double(rows) * 4096 * 3,
                [&](CudaStream stream) {
                  quantize_rows_cuda(stream, {x.get(), 4096, rows, y.view, kScaleSteps});
                });
  }
}

}  // namespace
}  // namespace vayu::ops
