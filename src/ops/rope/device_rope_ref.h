// Pieces of the definitions of the device rotations.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "base/data_format.h"
#include "ops/cuda/host_rows.h"
#include "ops/rope/device_rope.h"

namespace vayu::ops {

inline std::vector<float> host_floats(const Bf16* p, int64_t count) {
  std::vector<float> out(count);
  for (int64_t i = 0; i < count; ++i) out[i] = host_float(p[i]);
  return out;
}

inline void norm_ref(std::vector<float>& x, const float* weight, float eps) {
  double sum = 0;
  for (float v : x) sum += double{v} * v;
  float scale = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(x.size()) + eps));
  if (!std::isfinite(static_cast<float>(sum))) scale = std::numeric_limits<float>::quiet_NaN();
  for (size_t i = 0; i < x.size(); ++i) x[i] = x[i] * scale * weight[i];
}

inline void store_kv_ref(const DeviceKvLayer& kv, int64_t index, const std::vector<float>& values) {
  const auto count = static_cast<int64_t>(values.size());
  if (kv.format == DeviceKvFormat::kBF16) {
    quantize_row(DataFormat::kBF16, values.data(), static_cast<Bf16*>(kv.pages) + index, count);
    return;
  }
  std::vector<float> finite_or_nan(values);
  for (float& v : finite_or_nan) {
    if (std::isinf(v)) v = std::numeric_limits<float>::quiet_NaN();
  }
  quantize_row(DataFormat::kF8E4M3, finite_or_nan.data(), static_cast<F8E4M3*>(kv.pages) + index, count);
}

}  // namespace vayu::ops
