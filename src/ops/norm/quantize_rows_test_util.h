// Rows of activations with memory of their own, on the host or the device, and their comparison.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "ops/cuda/cuda_test_util.h"
#include "ops/cuda/host_rows.h"

namespace vayu::ops {

struct HostActRows {
  HostActRows(bool f8, int64_t num_rows, int64_t cols, int32_t group = 0)
      : bytes(num_rows * cols * (f8 ? 1 : 2), 0xFF),
        scales(f8 ? num_rows * (group ? cols / group : 1) : 0, kNaN),
        rows(num_rows),
        view{bytes.data(), f8 ? scales.data() : nullptr, cols, group} {}
  HostActRows(const HostActRows&) = delete;
  std::vector<uint8_t> bytes;
  std::vector<float> scales;
  int64_t rows;
  ActRows view;
};

struct DeviceActRows {
  DeviceActRows(bool f8, int64_t num_rows, int64_t cols, int32_t group = 0)
      : bytes(num_rows * cols * (f8 ? 1 : 2)),
        scales(f8 ? num_rows * (group ? cols / group : 1) : 1),
        view{bytes.get(), f8 ? scales.get() : nullptr, cols, group} {}
  DeviceArray<uint8_t> bytes;
  DeviceArray<float> scales;
  ActRows view;
};

// Codes of sign and magnitude, in the order of their values; a step of one is one rounding.
inline int ordered_code(uint8_t code) { return code & 0x80 ? -(code & 0x7f) : code; }
inline int ordered_code(uint16_t code) { return code & 0x8000 ? -(code & 0x7fff) : code; }
inline bool is_nan_code(uint8_t code) { return (code & 0x7f) == 0x7f; }
inline bool is_nan_code(uint16_t code) { return (code & 0x7fff) > 0x7f80; }

// Two float results within a few 1e-7 of each other round to the same code, or, when a tie lies between them, to
// neighbours: never more than one apart, and seldom.
template <class Code>
void expect_same_codes(const Code* got, const Code* want, int64_t count, const std::string& name) {
  int64_t neighbours = 0;
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(is_nan_code(got[i]), is_nan_code(want[i])) << name << " at " << i;
    if (is_nan_code(want[i])) continue;
    const int steps = std::abs(ordered_code(got[i]) - ordered_code(want[i]));
    ASSERT_LE(steps, 1) << name << " at " << i << ": code " << int{got[i]} << " for " << int{want[i]};
    neighbours += steps;
  }
  EXPECT_LE(neighbours, 8 + count / 16) << name << ": too many of " << count << " are one rounding off";
}
inline void expect_same_bf16(const std::vector<Bf16>& got, const std::vector<Bf16>& want, const std::string& name) {
  ASSERT_EQ(got.size(), want.size()) << name;
  expect_same_codes(reinterpret_cast<const uint16_t*>(got.data()), reinterpret_cast<const uint16_t*>(want.data()),
                    static_cast<int64_t>(want.size()), name);
}

inline void expect_same_rows(const DeviceActRows& got, const HostActRows& want, const std::string& name) {
  const std::vector<uint8_t> bytes = got.bytes.host();
  ASSERT_EQ(bytes.size(), want.bytes.size()) << name;
  if (!want.view.is_f8()) {
    const auto count = static_cast<int64_t>(bytes.size()) / 2;
    return expect_same_codes(reinterpret_cast<const uint16_t*>(bytes.data()),
                             reinterpret_cast<const uint16_t*>(want.bytes.data()), count, name);
  }
  const std::vector<float> scales = got.scales.host();
  for (size_t i = 0; i < scales.size(); ++i) {
    ASSERT_EQ(std::isnan(scales[i]), std::isnan(want.scales[i])) << name << " scale " << i;
    if (std::isnan(want.scales[i])) continue;
    ASSERT_NEAR(scales[i], want.scales[i], 2e-6f * want.scales[i]) << name << " scale " << i;
  }
  expect_same_codes(bytes.data(), want.bytes.data(), static_cast<int64_t>(bytes.size()), name);
}

// Of a row of y as floats with its scales applied: every element NaN, or none.
inline void expect_nan_row(const HostActRows& y, int64_t row, bool nan) {
  for (float v : host_row(y.view, row)) ASSERT_EQ(std::isnan(v), nan) << "row " << row;
}

// Normally distributed; past a million elements they repeat with a prime period, which costs the host less.
inline std::vector<Bf16> random_bf16(TestRandom& random, int64_t count, float sigma = 1) {
  constexpr int64_t kPeriod = 1000003;
  std::vector<Bf16> out = as_bf16(random.normals(std::min(count, kPeriod), sigma));
  out.resize(count);
  for (int64_t i = kPeriod; i < count; ++i) out[i] = out[i - kPeriod];
  return out;
}

// `SPEED <op> <shape> <us> us <GB/s> <share of a plain copy>`; only when VAYU_SPEED is set.
inline bool speed_wanted() { return std::getenv("VAYU_SPEED") != nullptr; }
inline void print_speed(const std::string& op, const std::string& shape, double bytes,
                        const std::function<void(CudaStream)>& call) {
  const Result<double> us = median_us(call);
  ASSERT_TRUE(us.ok()) << us.error().message;
  const double rate = bytes / us.value() / 1e3;
  std::printf("SPEED %s %s %.2f us %.0f GB/s %.2f of the copy ceiling\n", op.c_str(), shape.c_str(), us.value(), rate,
              rate / memory_ceiling().copy_gb_s);
}

}  // namespace vayu::ops
