// Scalar conversions between float and the 16-bit formats. Fast paths convert in vectors and do not use these.
#pragma once

#include <bit>
#include <cstdint>

namespace vayu {

using bf16_t = uint16_t;  // bit pattern: upper half of an IEEE float
using f16_t = uint16_t;   // bit pattern: IEEE binary16

inline float bf16_to_float(bf16_t v) { return std::bit_cast<float>(static_cast<uint32_t>(v) << 16); }

// Rounds to nearest even; NaN stays NaN.
inline bf16_t float_to_bf16(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<bf16_t>((bits >> 16) | 0x40);
  return static_cast<bf16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

inline float f16_to_float(f16_t v) {
  const uint32_t sign = static_cast<uint32_t>(v & 0x8000) << 16;
  const uint32_t exponent = (v >> 10) & 0x1f;
  const uint32_t mantissa = v & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
}

// Rounds to nearest even; overflow becomes infinity.
inline f16_t float_to_f16(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<f16_t>(sign | 0x7e00);
  if (magnitude >= 0x477ff000u) return static_cast<f16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000u) {  // subnormal or zero: let the float adder round at 2^-24
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<f16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1;
  return static_cast<f16_t>(sign | ((magnitude - 0x38000000u + 0xfff + odd) >> 13));
}

}  // namespace vayu
