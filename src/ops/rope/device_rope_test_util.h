// What the tests of the device rotations share.
#pragma once

#include <cmath>

#include "ops/norm/quantize_rows_test_util.h"

namespace vayu::ops {

inline std::vector<float> rope_frequencies(int rotary_dim, float base) {
  std::vector<float> out;
  for (int i = 0; i < rotary_dim / 2; ++i) {
    out.push_back(std::pow(base, -2.0f * static_cast<float>(i) / static_cast<float>(rotary_dim)));
  }
  return out;
}

inline std::vector<float> page_values(const std::vector<uint8_t>& pages, bool f8) {
  std::vector<float> out(pages.size() / (f8 ? 1 : 2));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = f8 ? host_float(F8E4M3{pages[i]}) : host_float(reinterpret_cast<const Bf16*>(pages.data())[i]);
  }
  return out;
}

// A rotation may cancel: then float differences of a few 1e-7 of the pair are many roundings of the result. BF16: one
// step, relative 2^-7; FP8 E4M3: 2^-3 of the value, and 2^-9 at the smallest. Few may differ at all.
inline void expect_rotated(const std::vector<float>& got, const std::vector<float>& want, bool f8,
                           const std::string& name) {
  ASSERT_EQ(got.size(), want.size()) << name;
  int64_t different = 0, numbers = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::isnan(got[i]), std::isnan(want[i])) << name << " at " << i;
    if (std::isnan(want[i])) continue;
    ++numbers;
    if (got[i] == want[i]) continue;
    ++different;
    const float tolerance = std::abs(want[i]) * (f8 ? 0x1p-3f : 0x1p-7f) + (f8 ? 0x1p-9f : 4e-5f);
    ASSERT_NEAR(got[i], want[i], tolerance) << name << " at " << i;
  }
  EXPECT_LE(different, 3 + numbers / 100) << name << ": too many of " << numbers << " are one rounding off";
}

}  // namespace vayu::ops
