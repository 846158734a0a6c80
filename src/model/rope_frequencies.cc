// Plain and linear RoPE: Su et al., 2021; position interpolation, Chen et al., 2023. YaRN: Peng et al., 2023, with the
// rounding of the correction range that its reference code has. llama3: the piecewise rule published with Llama 3.1.
#include "model/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace vayu::model {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// Dimension pair whose frequency makes `turns` turns within the original context.
double yarn_correction_dim(const RopeConfig& rope, double turns) {
  return rope.rotary_dim * std::log(rope.original_context / (turns * kTwoPi)) / (2 * std::log(rope.base));
}

// Share of extrapolation (the unscaled frequency) for pair i: 1 for fast pairs, 0 for slow ones, a ramp between.
double yarn_extrapolation(const RopeConfig& rope, int32_t i) {
  double low = yarn_correction_dim(rope, rope.beta_fast);
  double high = yarn_correction_dim(rope, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rope.rotary_dim - 1.0);
  if (low == high) high += 0.001;  // a ramp of no width would divide by zero
  return (1.0 - std::clamp((i - low) / (high - low), 0.0, 1.0)) * rope.ext_factor;
}

double llama3_frequency(const RopeConfig& rope, double freq) {
  const double turns = rope.original_context * freq / kTwoPi;  // original length in wavelengths
  if (turns < rope.low_freq_factor) return freq / rope.factor;
  if (turns > rope.high_freq_factor) return freq;
  const double smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * freq / rope.factor + smooth * freq;
}

double scaled_frequency(const RopeConfig& rope, int32_t i, double freq) {
  switch (rope.scaling) {
    case RopeScaling::kNone:
      return freq;
    case RopeScaling::kLinear:
      return freq / rope.factor;
    case RopeScaling::kLlama3:
      return llama3_frequency(rope, freq);
    case RopeScaling::kYarn: {
      const double extrapolation = yarn_extrapolation(rope, i);
      return freq / rope.factor * (1 - extrapolation) + freq * extrapolation;
    }
  }
  return freq;
}

double yarn_attention_factor(const RopeConfig& rope) {
  if (rope.temperature != 0) return rope.temperature;
  if (rope.mscale != 0 && rope.mscale_all_dim != 0) {
    return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
  }
  return rope.ext_factor != 0 ? yarn_mscale(rope.factor, 1) : 1;
}

Error bad(std::string_view what, double value) {
  return make_error(ErrorKind::kCorrupt, "RoPE: {} {} is not usable", what, value);
}

}  // namespace

double yarn_mscale(double factor, double mscale) { return factor > 1 ? 0.1 * mscale * std::log(factor) + 1 : 1; }

Status check_rope(const RopeConfig& rope) {
  if (!(rope.base > 1) || !std::isfinite(rope.base)) return bad("base", rope.base);
  if (rope.scaling == RopeScaling::kNone) return {};
  if (!(rope.factor >= 1) || !(rope.factor <= 1e6)) return bad("scaling factor", rope.factor);
  if (rope.scaling == RopeScaling::kLinear) return {};
  if (!(rope.original_context >= 1) || !(rope.original_context <= 1e9)) {
    return bad("original context length", rope.original_context);
  }
  if (rope.scaling == RopeScaling::kLlama3) {
    if (!(rope.low_freq_factor > 0)) return bad("low frequency factor", rope.low_freq_factor);
    if (!(rope.high_freq_factor > rope.low_freq_factor) || !std::isfinite(rope.high_freq_factor)) {
      return bad("high frequency factor", rope.high_freq_factor);
    }
    return {};
  }
  if (!(rope.ext_factor >= 0) || !(rope.ext_factor <= 1)) return bad("yarn extrapolation factor", rope.ext_factor);
  if (!(rope.attn_factor > 0) || !std::isfinite(rope.attn_factor))
    return bad("yarn attention factor", rope.attn_factor);
  for (const double v : {rope.mscale, rope.mscale_all_dim, rope.temperature}) {
    if (!(v >= 0) || !(v <= 1e6)) return bad("yarn mscale or attention_factor", v);
  }
  if (!(rope.beta_slow > 0)) return bad("yarn beta_slow", rope.beta_slow);
  if (!(rope.beta_fast > rope.beta_slow) || !std::isfinite(rope.beta_fast))
    return bad("yarn beta_fast", rope.beta_fast);
  return {};
}

Result<RopeFrequencies> rope_frequencies(const RopeConfig& rope, std::span<const float> factors) {
  VAYU_RETURN_IF_ERROR(check_rope(rope));
  const int32_t pairs = rope.rotary_dim / 2;
  if (!factors.empty() && rope.scaling != RopeScaling::kNone) {
    return make_error(ErrorKind::kUnsupported, "RoPE: a factor tensor together with a scaling type is not supported");
  }
  RopeFrequencies out;
  out.inv_freq.resize(pairs);
  for (int32_t i = 0; i < pairs; ++i) {
    double freq = std::pow(rope.base, -2.0 * i / rope.rotary_dim);
    if (!factors.empty()) {
      if (!(factors[i] > 0) || !std::isfinite(factors[i])) return bad("frequency factor", factors[i]);
      freq /= factors[i];
    }
    out.inv_freq[i] = static_cast<float>(scaled_frequency(rope, i, freq));
  }
  if (rope.scaling == RopeScaling::kYarn) {
    out.attention_factor = static_cast<float>(rope.attn_factor * yarn_attention_factor(rope));
  }
  return out;
}

int64_t scaled_context(const RopeConfig& rope, int64_t stated_context) {
  if (rope.scaling != RopeScaling::kLinear && rope.scaling != RopeScaling::kYarn) return stated_context;
  const double original = rope.original_context > 0 ? rope.original_context : static_cast<double>(stated_context);
  return static_cast<int64_t>(original * rope.factor);
}

}  // namespace vayu::model
