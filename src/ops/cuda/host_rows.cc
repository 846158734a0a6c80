#include "ops/cuda/host_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/data_format.h"

namespace vayu::ops {
namespace {

const std::array<float, 256>& f8_values() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values;
    for (int i = 0; i < 256; ++i) {
      const auto byte = static_cast<uint8_t>(i);
      dequantize_row(DataFormat::kF8E4M3, &byte, &values[i], 1);
    }
    return values;
  }();
  return table;
}

float scale_of(const float* v, int64_t count) {
  float peak = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(v[i])) return std::numeric_limits<float>::quiet_NaN();
    peak = std::max(peak, std::fabs(v[i]));
  }
  return peak < kF8TinyPeak ? 1.0f : peak / kF8Max;
}

}  // namespace

float host_float(F8E4M3 v) { return f8_values()[v.bits]; }
float host_float(Bf16 v) {
  const uint32_t bits = uint32_t{v.bits} << 16;
  float f;
  std::memcpy(&f, &bits, sizeof(f));
  return f;
}
Bf16 host_bf16(float v) {
  Bf16 out;
  quantize_row(DataFormat::kBF16, &v, &out, 1);
  return out;
}

std::vector<float> host_row(const ActRows& rows, int64_t row) {
  std::vector<float> out(rows.cols);
  if (!rows.is_f8()) {
    const auto* p = static_cast<const Bf16*>(rows.data) + row * rows.cols;
    for (int64_t i = 0; i < rows.cols; ++i) out[i] = host_float(p[i]);
    return out;
  }
  const auto* p = static_cast<const F8E4M3*>(rows.data) + row * rows.cols;
  const int64_t group = rows.scale_group == 0 ? rows.cols : rows.scale_group;
  for (int64_t i = 0; i < rows.cols; ++i)
    out[i] = host_float(p[i]) * rows.scales[row * (rows.cols / group) + i / group];
  return out;
}

void store_host_row(const ActRows& rows, int64_t row, const std::vector<float>& values) {
  if (!rows.is_f8()) {
    quantize_row(DataFormat::kBF16, values.data(), static_cast<Bf16*>(rows.data) + row * rows.cols, rows.cols);
    return;
  }
  const int64_t group = rows.scale_group == 0 ? rows.cols : rows.scale_group;
  std::vector<float> scaled(values);
  for (int64_t first = 0; first < rows.cols; first += group) {
    const float scale = scale_of(&values[first], group);
    rows.scales[row * (rows.cols / group) + first / group] = scale;
    for (int64_t i = first; i < first + group; ++i) scaled[i] = values[i] / scale;
  }
  quantize_row(DataFormat::kF8E4M3, scaled.data(), static_cast<F8E4M3*>(rows.data) + row * rows.cols, rows.cols);
}

std::vector<float> host_weight_row(const DeviceMatrix& matrix, int64_t row) {
  std::vector<float> out(matrix.cols);
  if (!matrix.is_f8()) {
    dequantize_row(DataFormat::kBF16, static_cast<const Bf16*>(matrix.data) + row * matrix.cols, out.data(),
                   matrix.cols);
    return out;
  }
  const std::array<float, 256>& values = f8_values();
  const auto* bytes = static_cast<const F8E4M3*>(matrix.data) + row * matrix.cols;
  if (matrix.scale == WeightScale::kRow) {
    const float scale = matrix.scales[row];
    for (int64_t i = 0; i < matrix.cols; ++i) out[i] = values[bytes[i].bits] * scale;
    return out;
  }
  const float* scales = matrix.scales + row / kScaleBlockRows * (matrix.cols / kScaleGroup);
  for (int64_t i = 0; i < matrix.cols; ++i) out[i] = values[bytes[i].bits] * scales[i / kScaleGroup];
  return out;
}

// Eight sums at once: one alone waits four cycles for each addition.
double host_dot(const std::vector<float>& a, const std::vector<float>& b) {
  constexpr size_t kSums = 8;
  double sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= a.size(); i += kSums) {
    for (size_t j = 0; j < kSums; ++j) sums[j] += double{a[i + j]} * b[i + j];
  }
  for (; i < a.size(); ++i) sums[0] += double{a[i]} * b[i];
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

}  // namespace vayu::ops
