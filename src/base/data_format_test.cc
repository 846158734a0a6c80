#include "base/data_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/half.h"

namespace vayu {
namespace {

std::vector<uint8_t> half_bytes(std::initializer_list<float> values) {
  std::vector<uint8_t> out;
  for (float v : values) {
    const f16_t half = float_to_f16(v);
    out.push_back(static_cast<uint8_t>(half & 0xff));
    out.push_back(static_cast<uint8_t>(half >> 8));
  }
  return out;
}

std::vector<float> dequantize(DataFormat format, const std::vector<uint8_t>& block) {
  const FormatInfo& info = format_info(format);
  EXPECT_EQ(block.size(), static_cast<size_t>(info.block_bytes));
  std::vector<float> out(info.block_size, NAN);
  dequantize_row(format, block.data(), out.data(), info.block_size);
  return out;
}

TEST(DataFormat, TableIsConsistent) {
  for (const FormatInfo& info : all_formats()) {
    EXPECT_EQ(&format_info(info.format), &info);
    if (info.ggml_type < 0) continue;
    const auto found = format_from_ggml_type(static_cast<uint32_t>(info.ggml_type));
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(*found, info.format);
  }
  EXPECT_EQ(row_bytes(DataFormat::kQ4_1, 576), 18 * 20);
}

TEST(DataFormat, UnknownTypesAreNamed) {
  const auto named = format_from_ggml_type(10);
  ASSERT_FALSE(named.ok());
  EXPECT_EQ(named.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(named.error().message.find("Q2_K"), std::string::npos);
  const auto unknown = format_from_ggml_type(0xfffffffe);
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("4294967294"), std::string::npos);
}

float f8(DataFormat format, uint8_t code) {
  float value = 0;
  dequantize_row(format, &code, &value, 1);
  return value;
}

uint8_t to_f8(DataFormat format, float value) {
  uint8_t code = 0;
  quantize_row(format, &value, &code, 1);
  return code;
}

TEST(DataFormat, Fp8KnownValues) {
  EXPECT_EQ(f8(DataFormat::kF8E4M3, 0x38), 1.0f);
  EXPECT_EQ(f8(DataFormat::kF8E4M3, 0x7e), 448.0f);
  EXPECT_EQ(f8(DataFormat::kF8E4M3, 0x01), 0x1p-9f);
  EXPECT_EQ(f8(DataFormat::kF8E4M3, 0xc1), -2.25f);
  EXPECT_TRUE(std::isnan(f8(DataFormat::kF8E4M3, 0x7f)));
  EXPECT_EQ(f8(DataFormat::kF8E5M2, 0x3c), 1.0f);
  EXPECT_EQ(f8(DataFormat::kF8E5M2, 0x7b), 57344.0f);
  EXPECT_TRUE(std::isinf(f8(DataFormat::kF8E5M2, 0x7c)));
}

TEST(DataFormat, Fp8RoundsToNearestEven) {
  for (const DataFormat format : {DataFormat::kF8E4M3, DataFormat::kF8E5M2}) {
    float last = -1;
    for (int code = 0; code < 0x80; ++code) {  // every positive value, and the middle between neighbours
      const float value = f8(format, static_cast<uint8_t>(code));
      if (!std::isfinite(value)) break;
      EXPECT_EQ(to_f8(format, value), code);
      EXPECT_EQ(to_f8(format, -value), code | 0x80);
      if (code > 0) {
        EXPECT_EQ(to_f8(format, (value + last) / 2), code % 2 == 0 ? code : code - 1) << value;
      }
      last = value;
    }
  }
  EXPECT_EQ(to_f8(DataFormat::kF8E4M3, 1e30f), 0x7e);
  EXPECT_EQ(to_f8(DataFormat::kF8E4M3, -INFINITY), 0xfe);
  EXPECT_EQ(to_f8(DataFormat::kF8E4M3, NAN) & 0x7f, 0x7f);
  EXPECT_EQ(to_f8(DataFormat::kF8E5M2, 1e30f), 0x7c);
}

TEST(DataFormat, Q8_0Block) {
  auto block = half_bytes({0.5f});
  for (int i = 0; i < 32; ++i) block.push_back(static_cast<uint8_t>(i - 16));
  const auto x = dequantize(DataFormat::kQ8_0, block);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(x[i], 0.5f * (i - 16));
}

// Low nibbles count 0..15, high nibbles 15..0.
std::vector<uint8_t> counting_nibbles() {
  std::vector<uint8_t> out;
  for (int i = 0; i < 16; ++i) out.push_back(static_cast<uint8_t>(i | (15 - i) << 4));
  return out;
}

TEST(DataFormat, NibbleBlocks) {
  const auto nibbles = counting_nibbles();
  const std::vector<uint8_t> high = {0x01, 0x80, 0x00, 0x80};  // fifth bit of elements 0, 15 and 31
  const auto with = [&](std::vector<uint8_t> block, bool has_high) {
    if (has_high) block.insert(block.end(), high.begin(), high.end());
    block.insert(block.end(), nibbles.begin(), nibbles.end());
    return block;
  };
  const auto q4_0 = dequantize(DataFormat::kQ4_0, with(half_bytes({0.25f}), false));
  const auto q4_1 = dequantize(DataFormat::kQ4_1, with(half_bytes({0.25f, -3.0f}), false));
  const auto q5_0 = dequantize(DataFormat::kQ5_0, with(half_bytes({0.25f}), true));
  const auto q5_1 = dequantize(DataFormat::kQ5_1, with(half_bytes({0.25f, -3.0f}), true));
  for (int i = 0; i < 32; ++i) {
    const int q4 = i < 16 ? i : 31 - i;
    const int q5 = q4 + (i == 0 || i == 15 || i == 31 ? 16 : 0);
    EXPECT_EQ(q4_0[i], 0.25f * (q4 - 8));
    EXPECT_EQ(q4_1[i], 0.25f * q4 - 3.0f);
    EXPECT_EQ(q5_0[i], 0.25f * (q5 - 16));
    EXPECT_EQ(q5_1[i], 0.25f * q5 - 3.0f);
  }
}

// Scales 1, 2, 3, 4, 17, 34, 51, 63 and minima 5, 6, 7, 8, 16, 33, 50, 62 in the 12 packed bytes, by hand.
const std::vector<uint8_t> kSubScaleBytes = {
    1 | 1 << 6, 2 | 2 << 6, 3 | 3 << 6, 4 | 3 << 6,    // scales 0..3, upper bits of scales 4..7
    5 | 1 << 6, 6 | 2 << 6, 7 | 3 << 6, 8 | 3 << 6,    // minima 0..3, upper bits of minima 4..7
    1 | 0 << 4, 2 | 1 << 4, 3 | 2 << 4, 15 | 14 << 4,  // lower nibbles of scales and minima 4..7
};
constexpr int kScales[] = {1, 2, 3, 4, 17, 34, 51, 63};
constexpr int kMinima[] = {5, 6, 7, 8, 16, 33, 50, 62};

TEST(DataFormat, Q4_KAndQ5_KBlocks) {
  auto q4 = half_bytes({0.5f, 0.125f});
  q4.insert(q4.end(), kSubScaleBytes.begin(), kSubScaleBytes.end());
  auto q5 = q4;
  for (int i = 0; i < 32; ++i) q5.push_back(static_cast<uint8_t>(1 << (i % 8)));  // element i: bit of sub-block i % 8
  for (int i = 0; i < 128; ++i) {
    const auto byte = static_cast<uint8_t>((i % 16) | ((i / 32 + i) % 16) << 4);
    q4.push_back(byte);
    q5.push_back(byte);
  }
  const auto x4 = dequantize(DataFormat::kQ4_K, q4);
  const auto x5 = dequantize(DataFormat::kQ5_K, q5);
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 32; ++i) {
      const int byte_index = j / 2 * 32 + i;
      const int q = j % 2 == 0 ? byte_index % 16 : (j / 2 + byte_index) % 16;
      const int high = i % 8 == j ? 16 : 0;
      EXPECT_EQ(x4[32 * j + i], 0.5f * kScales[j] * q - 0.125f * kMinima[j]) << j << " " << i;
      EXPECT_EQ(x5[32 * j + i], 0.5f * kScales[j] * (q + high) - 0.125f * kMinima[j]) << j << " " << i;
    }
  }
}

TEST(DataFormat, Q6_KBlock) {
  std::vector<uint8_t> block(210, 0);
  // Element 128 + 70: second half, quarter 2, lane 6: high nibble of byte 64 + 6, bits 4..5 of pair byte 128 + 32 + 6.
  block[64 + 6] = 0xd0;
  block[128 + 32 + 6] = 0x20;
  for (int s = 0; s < 16; ++s) block[192 + s] = static_cast<uint8_t>(s - 8);
  const auto d = half_bytes({0.25f});
  block[208] = d[0];
  block[209] = d[1];
  const auto x = dequantize(DataFormat::kQ6_K, block);
  for (int e = 0; e < 256; ++e) {
    const int q = e == 198 ? (0xd | 2 << 4) : 0;
    EXPECT_EQ(x[e], 0.25f * (e / 16 - 8) * (q - 32)) << e;
  }
}

struct Bound {
  DataFormat format;
  double max_error;  // of a uniform [-1, 1] block, absolute
};

class RoundTrip : public testing::TestWithParam<Bound> {};

// Half a quantisation step where the range is symmetric or has its own minimum; Q4_0 and Q5_0 may clip the far end of
// the range by up to one step. The K formats add the 6-bit rounding of sub-block scales.
TEST_P(RoundTrip, ErrorIsBounded) {
  const auto [format, max_error] = GetParam();
  constexpr int kCols = 1024;
  std::mt19937 rng(7);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> x(kCols), y(kCols);
  for (float& v : x) v = uniform(rng);
  std::vector<uint8_t> packed(row_bytes(format, kCols));
  quantize_row(format, x.data(), packed.data(), kCols);
  dequantize_row(format, packed.data(), y.data(), kCols);
  for (int i = 0; i < kCols; ++i) EXPECT_NEAR(x[i], y[i], max_error) << format_info(format).name << " " << i;
}

TEST_P(RoundTrip, ZerosStayZero) {
  const DataFormat format = GetParam().format;
  std::vector<float> x(512, 0.0f), y(512, 1.0f);
  std::vector<uint8_t> packed(row_bytes(format, 512), 0xff);
  quantize_row(format, x.data(), packed.data(), 512);
  dequantize_row(format, packed.data(), y.data(), 512);
  for (float v : y) EXPECT_EQ(v, 0.0f);
}

TEST_P(RoundTrip, RequantisingStaysClose) {
  const DataFormat format = GetParam().format;
  const int32_t cols = format_info(format).block_size * 2;
  std::mt19937 rng(9);
  std::uniform_real_distribution<float> uniform(-3.0f, 3.0f);
  std::vector<float> x(cols), once(cols), twice(cols);
  for (float& v : x) v = uniform(rng);
  std::vector<uint8_t> packed(row_bytes(format, cols));
  quantize_row(format, x.data(), packed.data(), cols);
  dequantize_row(format, packed.data(), once.data(), cols);
  quantize_row(format, once.data(), packed.data(), cols);
  dequantize_row(format, packed.data(), twice.data(), cols);
  for (int i = 0; i < cols; ++i) EXPECT_NEAR(once[i], twice[i], 3 * GetParam().max_error);
}

INSTANTIATE_TEST_SUITE_P(AllFormats, RoundTrip,
                         testing::Values(Bound{DataFormat::kF32, 0}, Bound{DataFormat::kF16, 0x1p-12},
                                         Bound{DataFormat::kBF16, 0x1p-9}, Bound{DataFormat::kQ8_0, 0.0042},
                                         Bound{DataFormat::kQ4_0, 0.127}, Bound{DataFormat::kQ4_1, 0.069},
                                         Bound{DataFormat::kQ5_0, 0.064}, Bound{DataFormat::kQ5_1, 0.034},
                                         Bound{DataFormat::kQ4_K, 0.085}, Bound{DataFormat::kQ5_K, 0.05},
                                         Bound{DataFormat::kQ6_K, 0.035}),
                         [](const auto& info) { return std::string(format_info(info.param.format).name); });

TEST(DataFormat, NonFiniteInputWritesOnlyItsRow) {
  for (const FormatInfo& info : all_formats()) {
    std::vector<float> x(256, NAN);
    x[3] = INFINITY;
    std::vector<uint8_t> packed(row_bytes(info.format, 256) + 8, 0xa5);
    quantize_row(info.format, x.data(), packed.data(), 256);
    for (size_t i = packed.size() - 8; i < packed.size(); ++i) EXPECT_EQ(packed[i], 0xa5) << info.name;
  }
}

}  // namespace
}  // namespace vayu
