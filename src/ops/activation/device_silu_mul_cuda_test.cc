#include "ops/activation/device_silu_mul.h"

#include "ops/norm/quantize_rows_test_util.h"

namespace vayu::ops {
namespace {

void check(const std::vector<Bf16>& gate_up, int64_t num_rows, int64_t ffn, bool f8) {
  const int32_t group = f8 ? kScaleGroup : 0;
  HostActRows want(f8, num_rows, ffn, group);
  device_silu_mul_ref({gate_up.data(), num_rows, want.view});
  const DeviceArray<Bf16> device(gate_up);
  DeviceActRows got(f8, num_rows, ffn, group);
  device_silu_mul_cuda(nullptr, {device.get(), num_rows, got.view});
  ASSERT_TRUE(last_launch("device_silu_mul").ok());
  expect_same_rows(got, want, std::to_string(num_rows) + " rows of " + std::to_string(ffn) + (f8 ? " f8" : " bf16"));
}

TEST(DeviceSiluMulCuda, MatchesReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (int64_t ffn : {64, 128, 192, 384, 1024, 2048, 2176, 8192}) {
    for (int64_t num_rows : {1, 3, 50}) {
      const std::vector<Bf16> gate_up = random_bf16(random, num_rows * 2 * ffn, 3);
      check(gate_up, num_rows, ffn, false);
      if (ffn % kScaleGroup == 0) check(gate_up, num_rows, ffn, true);
    }
  }
  check(random_bf16(random, 8192 * 256, 3), 8192, 128, true);
}

TEST(DeviceSiluMulCuda, BadValuesSpoilTheirGroupOnly) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const int64_t ffn = 1024;
  std::vector<Bf16> gate_up = random_bf16(random, 4 * 2 * ffn);
  gate_up[1 * 2 * ffn + 5] = Bf16{0x7fc0};           // NaN, a gate of group 0
  gate_up[2 * 2 * ffn + 300 + 64] = Bf16{0x7f80};    // infinity, an up of group 1
  gate_up[3 * 2 * ffn + 1] = as_bf16({-300.0f})[0];  // exp overflows: the product is zero
  gate_up[3 * 2 * ffn + 2] = as_bf16({200.0f})[0];
  HostActRows want(true, 4, ffn, kScaleGroup);
  device_silu_mul_ref({gate_up.data(), 4, want.view});
  for (int64_t row = 0; row < 4; ++row) {
    for (int64_t g = 0; g < 8; ++g) {
      ASSERT_EQ(std::isnan(want.scales[row * 8 + g]), (row == 1 && g == 0) || (row == 2 && g == 1)) << row << ' ' << g;
    }
  }
  check(gate_up, 4, ffn, true);
  check(gate_up, 4, ffn, false);
}

TEST(DeviceSiluMulCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (!speed_wanted()) GTEST_SKIP();
  TestRandom random;
  for (auto [rows, ffn] :
       {std::pair<int64_t, int64_t>{1, 8192}, {64, 8192}, {384, 1024}, {3584, 8192}, {21504, 1024}}) {
    const DeviceArray<Bf16> x(random_bf16(random, rows * 2 * ffn));
    DeviceActRows y(true, rows, ffn, kScaleGroup);
    print_speed("silu_mul", std::to_string(rows) + "x" + std::to_string(ffn), double(rows) * double(ffn) * 5,
                [&, rows = rows](CudaStream stream) {
                  device_silu_mul_cuda(stream, {x.get(), rows, y.view});
                });
  }
}

}  // namespace
}  // namespace vayu::ops
