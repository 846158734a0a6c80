// Block layouts are those of GGML files, little-endian, taken from the published format facts. A block of 32 (or of 256
// for the K formats) holds half-precision scales and packed integers; nibble formats keep elements 0..15 in the low
// nibbles and 16..31 in the high ones.
#include "base/data_format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/half.h"

namespace vayu {
namespace {

static_assert(std::endian::native == std::endian::little, "GGML blocks are read in place");

constexpr FormatInfo kFormats[] = {
    {DataFormat::kF32, "F32", 1, 4, 0},         {DataFormat::kF16, "F16", 1, 2, 1},
    {DataFormat::kBF16, "BF16", 1, 2, 30},      {DataFormat::kQ8_0, "Q8_0", 32, 34, 8},
    {DataFormat::kQ4_0, "Q4_0", 32, 18, 2},     {DataFormat::kQ4_1, "Q4_1", 32, 20, 3},
    {DataFormat::kQ5_0, "Q5_0", 32, 22, 6},     {DataFormat::kQ5_1, "Q5_1", 32, 24, 7},
    {DataFormat::kQ4_K, "Q4_K", 256, 144, 12},  {DataFormat::kQ5_K, "Q5_K", 256, 176, 13},
    {DataFormat::kQ6_K, "Q6_K", 256, 210, 14},  {DataFormat::kF8E4M3, "F8_E4M3", 1, 1, -1},
    {DataFormat::kF8E5M2, "F8_E5M2", 1, 1, -1},
};

// Types of GGUF files that this build does not compute with; named so that the error is readable.
constexpr std::pair<uint32_t, std::string_view> kUnsupportedTypes[] = {
    {9, "Q8_1"},   {10, "Q2_K"},   {11, "Q3_K"},  {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
    {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"}, {23, "IQ4_XS"},  {24, "I8"},     {25, "I16"},
    {26, "I32"},   {27, "I64"},    {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {39, "MXFP4"},
};

float load_f16(const uint8_t* p) {
  f16_t v;
  std::memcpy(&v, p, sizeof(v));
  return f16_to_float(v);
}

// Stores v as binary16 and returns what a reader will see, so that quants are fitted to the rounded scale.
float store_f16(uint8_t* p, float v) {
  const f16_t half = float_to_f16(v);
  std::memcpy(p, &half, sizeof(half));
  return f16_to_float(half);
}

float inverse(float v) { return v != 0.0f ? 1.0f / v : 0.0f; }

// Nearest integer in [low, high]; NaN gives low.
int round_to(float v, int low, int high) {
  if (!(v > static_cast<float>(low))) return low;
  if (v >= static_cast<float>(high)) return high;
  return static_cast<int>(std::lround(v));
}

// The element of largest magnitude, with its sign.
float signed_peak(const float* x, int n) {
  float peak = 0.0f;
  for (int i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > std::fabs(peak)) peak = x[i];
  }
  return peak;
}

// FP8: sign, exponent, mantissa. E4M3 (bias 7) spends its all-ones pattern on NaN and has no infinity; E5M2 (bias 15)
// is the upper byte of binary16.
float f8_value(DataFormat format, uint8_t b) {
  if (format == DataFormat::kF8E5M2) return f16_to_float(f16_t{static_cast<uint16_t>(b << 8)});
  const int exponent = b >> 3 & 15;
  const int mantissa = b & 7;
  const float sign = b & 0x80 ? -1.0f : 1.0f;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

using F8Values = std::array<float, 256>;
const F8Values& f8_values(DataFormat format) {
  static const auto make = [](DataFormat f) {
    F8Values values;
    for (int b = 0; b < 256; ++b) values[b] = f8_value(f, static_cast<uint8_t>(b));
    return values;
  };
  static const F8Values e4m3 = make(DataFormat::kF8E4M3);
  static const F8Values e5m2 = make(DataFormat::kF8E5M2);
  return format == DataFormat::kF8E4M3 ? e4m3 : e5m2;
}

// Rounds to nearest, ties to even, in units of the last place at v's exponent.
template <int kMantissa, int kBias, uint8_t kOverflow, uint8_t kNan>
uint8_t f8_code(float v) {
  const uint8_t sign = std::signbit(v) ? 0x80 : 0;
  const float x = std::fabs(v);
  if (std::isnan(v)) return sign | kNan;
  int exponent = x == 0 ? 1 - kBias : std::ilogb(x);
  exponent = std::max(exponent, 1 - kBias);                                 // below: subnormal
  const float units = std::nearbyint(std::ldexp(x, kMantissa - exponent));  // may carry into the next exponent
  if (!(units < 1e6f)) return sign | kOverflow;
  const int code = static_cast<int>(units) + ((exponent + kBias - 1) << kMantissa);
  return sign | static_cast<uint8_t>(std::min<int>(code, kOverflow));
}

uint8_t f8_code(DataFormat format, float v) {
  return format == DataFormat::kF8E4M3 ? f8_code<3, 7, 0x7e, 0x7f>(v) : f8_code<2, 15, 0x7c, 0x7f>(v);
}

// Q8_0: d, int8[32]; x = d q.
void dequantize_q8_0(const uint8_t* b, float* x) {
  const float d = load_f16(b);
  for (int i = 0; i < 32; ++i) x[i] = d * static_cast<int8_t>(b[2 + i]);
}

void quantize_q8_0(const float* x, uint8_t* b) {
  const float inv = inverse(store_f16(b, std::fabs(signed_peak(x, 32)) / 127.0f));
  for (int i = 0; i < 32; ++i) b[2 + i] = static_cast<uint8_t>(round_to(x[i] * inv, -127, 127));
}

// Q4_0, Q5_0: d, [high bits: 4 bytes, bit i of element i,] nibbles; x = d (q - 2^(bits-1)).
// Q4_1, Q5_1: d, m, [high bits,] nibbles; x = d q + m.
template <int kBits, bool kHasMin>
struct NibbleBlock {
  static constexpr int kHigh = kHasMin ? 4 : 2;                  // offset of the high bits
  static constexpr int kNibbles = kHigh + (kBits == 5 ? 4 : 0);  // offset of the nibbles
  static constexpr int kMaxQuant = (1 << kBits) - 1;
  static constexpr int kZero = kHasMin ? 0 : 1 << (kBits - 1);

  static void dequantize(const uint8_t* b, float* x) {
    const float d = load_f16(b);
    const float m = kHasMin ? load_f16(b + 2) : 0.0f;
    uint32_t high = 0;
    if constexpr (kBits == 5) std::memcpy(&high, b + kHigh, sizeof(high));
    for (int i = 0; i < 32; ++i) {
      const uint8_t byte = b[kNibbles + i % 16];
      const int q = (i < 16 ? byte & 15 : byte >> 4) | static_cast<int>((high >> i & 1) << 4);
      x[i] = d * static_cast<float>(q - kZero) + m;
    }
  }

  static void quantize(const float* x, uint8_t* b) {
    float d = 0.0f;
    float m = 0.0f;
    if constexpr (kHasMin) {
      const auto [low, high] = std::minmax_element(x, x + 32);
      d = store_f16(b, (*high - *low) / kMaxQuant);
      m = store_f16(b + 2, *low);
    } else {
      d = store_f16(b, signed_peak(x, 32) / -kZero);  // the peak takes the end of the range that has one more step
    }
    const float inv = inverse(d);
    uint32_t high_bits = 0;
    std::memset(b + kNibbles, 0, 16);
    for (int i = 0; i < 32; ++i) {
      const auto q = static_cast<uint32_t>(round_to((x[i] - m) * inv + kZero, 0, kMaxQuant));
      b[kNibbles + i % 16] |= static_cast<uint8_t>((q & 15) << (i < 16 ? 0 : 4));
      high_bits |= (q >> 4) << i;
    }
    if constexpr (kBits == 5) std::memcpy(b + kHigh, &high_bits, sizeof(high_bits));
  }
};

// The 12 bytes of Q4_K and Q5_K hold eight 6-bit scales and eight 6-bit minima: 0..3 in the low six bits of bytes 0..3
// and 4..7; 4..7 as low nibble (scale) and high nibble (minimum) of bytes 8..11, their upper two bits on top of bytes
// 0..3 and 4..7.
struct SubScales {
  std::array<int, 8> scale;
  std::array<int, 8> min;
};

SubScales unpack_sub_scales(const uint8_t* s) {
  SubScales out;
  for (int j = 0; j < 4; ++j) {
    out.scale[j] = s[j] & 63;
    out.min[j] = s[j + 4] & 63;
    out.scale[j + 4] = (s[j + 8] & 15) | (s[j] >> 6) << 4;
    out.min[j + 4] = (s[j + 8] >> 4) | (s[j + 4] >> 6) << 4;
  }
  return out;
}

void pack_sub_scales(const SubScales& in, uint8_t* s) {
  for (int j = 0; j < 4; ++j) {
    s[j] = static_cast<uint8_t>(in.scale[j] | (in.scale[j + 4] >> 4) << 6);
    s[j + 4] = static_cast<uint8_t>(in.min[j] | (in.min[j + 4] >> 4) << 6);
    s[j + 8] = static_cast<uint8_t>((in.scale[j + 4] & 15) | (in.min[j + 4] & 15) << 4);
  }
}

// Q4_K: d, dmin, sub scales, nibbles[128]. Q5_K: d, dmin, sub scales, high bits[32], nibbles[128]. Eight sub-blocks of
// 32; sub-blocks 2c and 2c+1 are the low and high nibbles of bytes 32c..32c+31, and bit j of high byte i belongs to
// element i of sub-block j. x = d scale q - dmin min.
template <int kBits>
struct SuperBlock {
  static constexpr int kHigh = 16;
  static constexpr int kNibbles = kBits == 5 ? 48 : 16;
  static constexpr int kMaxQuant = (1 << kBits) - 1;

  static void dequantize(const uint8_t* b, float* x) {
    const float d = load_f16(b);
    const float dmin = load_f16(b + 2);
    const SubScales sub = unpack_sub_scales(b + 4);
    for (int j = 0; j < 8; ++j) {
      const float scale = d * sub.scale[j];
      const float min = dmin * sub.min[j];
      for (int i = 0; i < 32; ++i) {
        const uint8_t byte = b[kNibbles + j / 2 * 32 + i];
        int q = j % 2 == 0 ? byte & 15 : byte >> 4;
        if constexpr (kBits == 5) q |= (b[kHigh + i] >> j & 1) << 4;
        x[32 * j + i] = scale * q - min;
      }
    }
  }

  static void quantize(const float* x, uint8_t* b) {
    std::array<float, 8> scale;
    std::array<float, 8> min;
    for (int j = 0; j < 8; ++j) {
      const auto [low, high] = std::minmax_element(x + 32 * j, x + 32 * j + 32);
      min[j] = std::max(0.0f, -*low);
      scale[j] = (*high + min[j]) / kMaxQuant;
      scale[j] = std::max(scale[j], 0.0f);
    }
    const float d = store_f16(b, *std::max_element(scale.begin(), scale.end()) / 63.0f);
    const float dmin = store_f16(b + 2, *std::max_element(min.begin(), min.end()) / 63.0f);
    SubScales sub;
    std::memset(b + kHigh, 0, kNibbles - kHigh + 128);
    for (int j = 0; j < 8; ++j) {
      sub.scale[j] = round_to(scale[j] * inverse(d), 0, 63);
      sub.min[j] = round_to(min[j] * inverse(dmin), 0, 63);
      const float inv = inverse(d * sub.scale[j]);
      for (int i = 0; i < 32; ++i) {
        const int q = round_to((x[32 * j + i] + dmin * sub.min[j]) * inv, 0, kMaxQuant);
        b[kNibbles + j / 2 * 32 + i] |= static_cast<uint8_t>((q & 15) << (j % 2 * 4));
        if constexpr (kBits == 5) b[kHigh + i] |= static_cast<uint8_t>((q >> 4) << j);
      }
    }
    pack_sub_scales(sub, b + 4);
  }
};

// Q6_K: low nibbles[128], high pairs[64], int8 scales[16] (one for 16 elements), d; x = d scale (q - 32). Each half of
// 128 elements owns 64 nibble bytes and 32 pair bytes. In a half, quarter k = i / 32 of element i lies in the low (k <
// 2) or high nibbles of bytes (k % 2) * 32 .. + 31, and its pair at bits 2k of pair byte i % 32.
constexpr int kQ6High = 128;
constexpr int kQ6Scales = 192;
constexpr int kQ6D = 208;

void dequantize_q6_k(const uint8_t* b, float* x) {
  const float d = load_f16(b + kQ6D);
  for (int e = 0; e < 256; ++e) {
    const int half = e / 128;
    const int quarter = e % 128 / 32;
    const uint8_t byte = b[half * 64 + quarter % 2 * 32 + e % 32];
    const int low = quarter < 2 ? byte & 15 : byte >> 4;
    const int high = b[kQ6High + half * 32 + e % 32] >> (2 * quarter) & 3;
    x[e] = d * static_cast<int8_t>(b[kQ6Scales + e / 16]) * ((low | high << 4) - 32);
  }
}

void quantize_q6_k(const float* x, uint8_t* b) {
  std::memset(b, 0, 210);
  std::array<float, 16> scale;
  for (int s = 0; s < 16; ++s) scale[s] = signed_peak(x + 16 * s, 16) / -32.0f;
  const float inv_d = inverse(store_f16(b + kQ6D, std::fabs(signed_peak(scale.data(), 16)) / 127.0f));
  const float d = load_f16(b + kQ6D);
  for (int e = 0; e < 256; ++e) {
    const int s = round_to(scale[e / 16] * inv_d, -127, 127);
    const int q = round_to(x[e] * inverse(d * s) + 32.0f, 0, 63);
    const int half = e / 128;
    const int quarter = e % 128 / 32;
    b[kQ6Scales + e / 16] = static_cast<uint8_t>(s);
    b[half * 64 + quarter % 2 * 32 + e % 32] |= static_cast<uint8_t>((q & 15) << (quarter < 2 ? 0 : 4));
    b[kQ6High + half * 32 + e % 32] |= static_cast<uint8_t>((q >> 4) << (2 * quarter));
  }
}

template <class DequantizeBlock>
void dequantize_blocks(DataFormat format, const void* src, float* dst, int64_t cols, DequantizeBlock block) {
  const FormatInfo& info = format_info(format);
  const auto* b = static_cast<const uint8_t*>(src);
  for (int64_t i = 0; i < cols; i += info.block_size, b += info.block_bytes) block(b, dst + i);
}

template <class QuantizeBlock>
void quantize_blocks(DataFormat format, const float* src, void* dst, int64_t cols, QuantizeBlock block) {
  const FormatInfo& info = format_info(format);
  auto* b = static_cast<uint8_t*>(dst);
  for (int64_t i = 0; i < cols; i += info.block_size, b += info.block_bytes) block(src + i, b);
}

void dequantize_bf16(const uint8_t* b, float* x) {
  bf16_t v;
  std::memcpy(&v, b, sizeof(v));
  *x = bf16_to_float(v);
}

void quantize_bf16(const float* x, uint8_t* b) {
  const bf16_t v = float_to_bf16(*x);
  std::memcpy(b, &v, sizeof(v));
}

}  // namespace

std::span<const FormatInfo> all_formats() { return kFormats; }

const FormatInfo& format_info(DataFormat format) {
  const FormatInfo& info = kFormats[static_cast<size_t>(format)];
  VAYU_CHECK(info.format == format, "the format table is out of order at {}", info.name);
  return info;
}

Result<DataFormat> format_from_ggml_type(uint32_t ggml_type) {
  for (const FormatInfo& info : kFormats) {
    if (info.ggml_type >= 0 && static_cast<uint32_t>(info.ggml_type) == ggml_type) return info.format;
  }
  for (const auto& [type, name] : kUnsupportedTypes) {
    if (type == ggml_type) return make_error(ErrorKind::kUnsupported, "GGML type {} ({}) is not supported", type, name);
  }
  return make_error(ErrorKind::kUnsupported, "unknown GGML type {}", ggml_type);
}

void dequantize_row(DataFormat format, const void* src, float* dst, int64_t cols) {
  switch (format) {
    case DataFormat::kF32:
      std::memcpy(dst, src, cols * sizeof(float));
      return;
    case DataFormat::kF16:
      return dequantize_blocks(format, src, dst, cols, [](const uint8_t* b, float* x) { *x = load_f16(b); });
    case DataFormat::kBF16:
      return dequantize_blocks(format, src, dst, cols, dequantize_bf16);
    case DataFormat::kQ8_0:
      return dequantize_blocks(format, src, dst, cols, dequantize_q8_0);
    case DataFormat::kQ4_0:
      return dequantize_blocks(format, src, dst, cols, NibbleBlock<4, false>::dequantize);
    case DataFormat::kQ4_1:
      return dequantize_blocks(format, src, dst, cols, NibbleBlock<4, true>::dequantize);
    case DataFormat::kQ5_0:
      return dequantize_blocks(format, src, dst, cols, NibbleBlock<5, false>::dequantize);
    case DataFormat::kQ5_1:
      return dequantize_blocks(format, src, dst, cols, NibbleBlock<5, true>::dequantize);
    case DataFormat::kQ4_K:
      return dequantize_blocks(format, src, dst, cols, SuperBlock<4>::dequantize);
    case DataFormat::kQ5_K:
      return dequantize_blocks(format, src, dst, cols, SuperBlock<5>::dequantize);
    case DataFormat::kQ6_K:
      return dequantize_blocks(format, src, dst, cols, dequantize_q6_k);
    case DataFormat::kF8E4M3:
    case DataFormat::kF8E5M2: {
      const F8Values& values = f8_values(format);
      const auto* b = static_cast<const uint8_t*>(src);
      for (int64_t i = 0; i < cols; ++i) dst[i] = values[b[i]];
      return;
    }
  }
}

void quantize_row(DataFormat format, const float* src, void* dst, int64_t cols) {
  switch (format) {
    case DataFormat::kF32:
      std::memcpy(dst, src, cols * sizeof(float));
      return;
    case DataFormat::kF16:
      return quantize_blocks(format, src, dst, cols, [](const float* x, uint8_t* b) { store_f16(b, *x); });
    case DataFormat::kBF16:
      return quantize_blocks(format, src, dst, cols, quantize_bf16);
    case DataFormat::kQ8_0:
      return quantize_blocks(format, src, dst, cols, quantize_q8_0);
    case DataFormat::kQ4_0:
      return quantize_blocks(format, src, dst, cols, NibbleBlock<4, false>::quantize);
    case DataFormat::kQ4_1:
      return quantize_blocks(format, src, dst, cols, NibbleBlock<4, true>::quantize);
    case DataFormat::kQ5_0:
      return quantize_blocks(format, src, dst, cols, NibbleBlock<5, false>::quantize);
    case DataFormat::kQ5_1:
      return quantize_blocks(format, src, dst, cols, NibbleBlock<5, true>::quantize);
    case DataFormat::kQ4_K:
      return quantize_blocks(format, src, dst, cols, SuperBlock<4>::quantize);
    case DataFormat::kQ5_K:
      return quantize_blocks(format, src, dst, cols, SuperBlock<5>::quantize);
    case DataFormat::kQ6_K:
      return quantize_blocks(format, src, dst, cols, quantize_q6_k);
    case DataFormat::kF8E4M3:
    case DataFormat::kF8E5M2:
      for (int64_t i = 0; i < cols; ++i) static_cast<uint8_t*>(dst)[i] = f8_code(format, src[i]);
      return;
  }
}

}  // namespace vayu
