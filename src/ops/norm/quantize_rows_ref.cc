// The definition of quantize_rows.
#include <cmath>

#include "base/data_format.h"
#include "ops/cuda/host_rows.h"
#include "ops/norm/quantize_rows.h"

namespace vayu::ops {
namespace {

// Of a row in units of the rule's scale, rounded to E4M3 under `factor` times that.
double squared_error(const std::vector<float>& units, float factor) {
  std::vector<float> scaled(units.size());
  const float inverse = 1.0f / factor;
  for (size_t i = 0; i < units.size(); ++i) scaled[i] = units[i] * inverse;
  std::vector<F8E4M3> codes(units.size());
  const auto count = static_cast<int64_t>(units.size());
  quantize_row(DataFormat::kF8E4M3, scaled.data(), codes.data(), count);
  dequantize_row(DataFormat::kF8E4M3, codes.data(), scaled.data(), count);
  double sum = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    const double error = std::fma(scaled[i], factor, -units[i]);
    sum += error * error;
  }
  return sum;
}

// The factor on a row's scale that the search takes.
float best_factor(std::vector<float> values, float scale, int32_t steps) {
  const float inverse = 1.0f / scale;
  for (float& v : values) v *= inverse;
  float factor = 1, best = 1;
  double least = squared_error(values, factor);
  for (int32_t i = 1; i < steps; ++i) {
    factor *= kScaleStep;
    const double error = squared_error(values, factor);
    if (!(error < least)) continue;
    least = error;
    best = factor;
  }
  return best;
}

}  // namespace

void quantize_rows_ref(const QuantizeRowsArgs& args) {
  std::vector<float> values(args.y.cols);
  for (int64_t row = 0; row < args.num_rows; ++row) {
    for (int64_t i = 0; i < args.y.cols; ++i) values[i] = host_float(args.x[row * args.x_stride + i]);
    store_host_row(args.y, row, values);
    if (args.scale_steps == 1 || !std::isfinite(args.y.scales[row])) continue;
    const float scale = args.y.scales[row] * best_factor(values, args.y.scales[row], args.scale_steps);
    args.y.scales[row] = scale;
    for (float& v : values) v /= scale;
    quantize_row(DataFormat::kF8E4M3, values.data(), static_cast<F8E4M3*>(args.y.data) + row * args.y.cols,
                 args.y.cols);
  }
}

}  // namespace vayu::ops
