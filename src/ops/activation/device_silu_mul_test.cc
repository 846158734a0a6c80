#include "ops/activation/device_silu_mul.h"

#include <gtest/gtest.h>

#include "ops/activation/silu_mul.h"
#include "ops/cpu/op_test_util.h"
#include "ops/cuda/host_rows.h"

namespace vayu::ops {
namespace {

TEST(DeviceSiluMulReference, IsSiluMulOfTheDeinterleavedHalves) {
  TestRandom random;
  const int64_t rows = 3, ffn = 192;
  std::vector<Bf16> gate_up(rows * 2 * ffn);
  std::vector<float> halves(rows * 2 * ffn), want(rows * ffn);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < 2 * ffn; ++i) {  // block of 64, of which even ones are gates
      const int64_t block = i / 64;
      const Bf16 v = host_bf16(random.normal(3));
      gate_up[t * 2 * ffn + i] = v;
      halves[t * 2 * ffn + block % 2 * ffn + block / 2 * 64 + i % 64] = host_float(v);
    }
  }
  silu_mul({Backend::kReference, nullptr}, halves.data(), want.data(), rows, ffn);
  std::vector<Bf16> y(rows * ffn);
  device_silu_mul_ref({gate_up.data(), rows, {y.data(), nullptr, ffn}});
  for (int64_t i = 0; i < rows * ffn; ++i) ASSERT_EQ(host_float(y[i]), host_float(host_bf16(want[i]))) << i;
}

}  // namespace
}  // namespace vayu::ops
