#include "model/arch/gguf_keys.h"

#include <algorithm>
#include <cmath>

#include "model/rope_frequencies.h"

namespace vayu::model {

Error GgufKeys::corrupt(std::string_view key, std::string_view what) const {
  return make_error(ErrorKind::kCorrupt, "{}: metadata key '{}{}': {}", file_.path(), prefix_, key, what);
}

Error GgufKeys::unsupported(std::string_view key, std::string_view what) const {
  return make_error(ErrorKind::kUnsupported, "{}: metadata key '{}{}': {}", file_.path(), prefix_, key, what);
}

Result<int32_t> GgufKeys::integer(std::string_view key, int32_t low, int32_t high) const {
  VAYU_ASSIGN_OR_RETURN(const int64_t value, file_.get_int(prefix_ + std::string(key)));
  if (value < low || value > high) return corrupt(key, fmt::format("{} is outside {} to {}", value, low, high));
  return static_cast<int32_t>(value);
}

Result<int32_t> GgufKeys::integer_or(std::string_view key, int32_t fallback, int32_t low, int32_t high) const {
  if (!has(key)) return fallback;
  return integer(key, low, high);
}

Result<double> GgufKeys::number(std::string_view key) const {
  VAYU_ASSIGN_OR_RETURN(const double value, file_.get_float(prefix_ + std::string(key)));
  if (!std::isfinite(value)) return corrupt(key, "not finite");
  return value;
}

Result<double> GgufKeys::number_or(std::string_view key, double fallback) const {
  if (!has(key)) return fallback;
  return number(key);
}

Result<bool> GgufKeys::boolean_or(std::string_view key, bool fallback) const {
  return file_.get_bool_or(prefix_ + std::string(key), fallback);
}

Result<std::string> GgufKeys::text_or(std::string_view key, std::string fallback) const {
  return file_.get_string_or(prefix_ + std::string(key), std::move(fallback));
}

Status GgufKeys::refuse_unknown(std::span<const std::string_view> known) const {
  for (const std::string_view key : file_.keys()) {
    if (!key.starts_with(prefix_)) continue;
    const std::string_view rest = key.substr(prefix_.size());
    if (std::find(known.begin(), known.end(), rest) == known.end()) {
      return unsupported(loader::printable(rest), "unknown key; it may change what the model computes");
    }
  }
  return {};
}

namespace {

Status read_yarn(const GgufKeys& keys, RopeConfig& rope) {
  VAYU_ASSIGN_OR_RETURN(rope.ext_factor, keys.number_or("rope.scaling.yarn_ext_factor", rope.ext_factor));
  VAYU_ASSIGN_OR_RETURN(const double attn, keys.number_or("rope.scaling.attn_factor", 1.0));
  VAYU_ASSIGN_OR_RETURN(rope.attn_factor, keys.number_or("rope.scaling.yarn_attn_factor", attn));
  VAYU_ASSIGN_OR_RETURN(rope.beta_fast, keys.number_or("rope.scaling.yarn_beta_fast", rope.beta_fast));
  VAYU_ASSIGN_OR_RETURN(rope.beta_slow, keys.number_or("rope.scaling.yarn_beta_slow", rope.beta_slow));
  return {};
}

Result<RopeScaling> scaling_kind(const GgufKeys& keys) {
  VAYU_ASSIGN_OR_RETURN(const std::string kind, keys.text_or("rope.scaling.type", "none"));
  if (kind == "none") return keys.has("rope.scale_linear") ? RopeScaling::kLinear : RopeScaling::kNone;
  if (kind == "linear") return RopeScaling::kLinear;
  if (kind == "llama3") return RopeScaling::kLlama3;
  if (kind == "yarn") return RopeScaling::kYarn;
  return keys.unsupported("rope.scaling.type", fmt::format("'{}' is not supported", loader::printable(kind)));
}

Status read_scaling_values(const GgufKeys& keys, int32_t context_length, RopeConfig& rope) {
  const bool old_key = !keys.has("rope.scaling.factor") && keys.has("rope.scale_linear");
  VAYU_ASSIGN_OR_RETURN(rope.factor, keys.number(old_key ? "rope.scale_linear" : "rope.scaling.factor"));
  if (keys.has("rope.scaling.original_context_length")) {
    VAYU_ASSIGN_OR_RETURN(rope.original_context, keys.integer("rope.scaling.original_context_length", 1, kMaxContext));
  } else {
    rope.original_context = context_length;
  }
  if (rope.scaling == RopeScaling::kYarn) return read_yarn(keys, rope);
  if (rope.scaling == RopeScaling::kLlama3) {
    VAYU_ASSIGN_OR_RETURN(rope.low_freq_factor, keys.number("rope.scaling.low_freq_factor"));
    VAYU_ASSIGN_OR_RETURN(rope.high_freq_factor, keys.number("rope.scaling.high_freq_factor"));
  }
  return {};
}

}  // namespace

Status read_rope_scaling(const GgufKeys& keys, int32_t context_length, RopeConfig& rope) {
  VAYU_ASSIGN_OR_RETURN(rope.base, keys.number_or("rope.freq_base", rope.base));
  VAYU_ASSIGN_OR_RETURN(rope.scaling, scaling_kind(keys));
  if (rope.scaling != RopeScaling::kNone) VAYU_RETURN_IF_ERROR(read_scaling_values(keys, context_length, rope));
  const Status usable = check_rope(rope);
  if (usable.ok()) return usable;
  return make_error(usable.error().kind, "{}: {}", keys.file().path(), usable.error().message);
}

}  // namespace vayu::model
