// Expands packed blocks of one tile (cpu_matrix.h) into what the dot products read, in the first-level cache:
//   quantised formats: per 32 inputs 512 bytes of unsigned codes (step, row, input of the step), then float
//     d (groups, 16) and m (groups, 16), w = d q + m; two groups of 16 inputs for Q6_K, else one of 32
//   float formats: floats (inputs, 16)
#include "hwy/highway.h"
#include "ops/gemm/cpu_matrix.h"

#if defined(VAYU_OPS_GEMM_UNPACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VAYU_OPS_GEMM_UNPACK_INL_H_
#undef VAYU_OPS_GEMM_UNPACK_INL_H_
#else
#define VAYU_OPS_GEMM_UNPACK_INL_H_
#endif

#include "ops/gemm/before_namespace-inl.h"
namespace vayu::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int groups_of(int bits) { return bits == 6 ? 2 : 1; }
constexpr int64_t kCodeBytes = 512;  // of 32 inputs and 16 rows
constexpr int64_t unpacked_block_bytes(int groups) { return kCodeBytes + 2 * 64 * groups; }

using FloatTag = hn::CappedTag<float, 16>;
using IntTag = hn::RebindToSigned<FloatTag>;
using WordTag = hn::RebindToUnsigned<FloatTag>;  // four codes a lane
using HalfTag = hn::Rebind<hwy::float16_t, FloatTag>;

HWY_INLINE hn::Vec<WordTag> load_words(const uint8_t* p) {
  return hn::LoadU(WordTag(), reinterpret_cast<const uint32_t*>(p));
}
HWY_INLINE hn::Vec<FloatTag> load_halves(const uint8_t* p) {
  return hn::PromoteTo(FloatTag(), hn::LoadU(HalfTag(), reinterpret_cast<const hwy::float16_t*>(p)));
}

// Moves the bits that start at kFrom of each byte to bit 4; neighbours that cross a byte are the caller's to mask.
template <int kFrom>
HWY_INLINE hn::Vec<WordTag> to_bit_4(hn::Vec<WordTag> v) {
  if constexpr (kFrom < 4) return hn::ShiftLeft<4 - kFrom>(v);
  if constexpr (kFrom > 4) return hn::ShiftRight<kFrom - 4>(v);
  return v;
}

template <int kBits, int kStep>
HWY_INLINE hn::Vec<WordTag> upper_bits(const uint8_t* planes, size_t lane) {
  constexpr int kWidth = kBits - 4;
  constexpr int kVector = kStep * kWidth / 8;
  const auto mask = hn::Set(WordTag(), kWidth == 1 ? 0x10101010u : 0x30303030u);
  const auto bits = load_words(planes + 256 + kVector * kStepBytes + 4 * lane);
  return hn::And(to_bit_4<kStep * kWidth % 8>(bits), mask);
}

template <int kBits, int kVector>
HWY_INLINE void unpack_two_steps(const uint8_t* HWY_RESTRICT planes, uint8_t* HWY_RESTRICT codes, size_t lane) {
  const WordTag d;
  const auto nibble = hn::Set(d, 0x0f0f0f0fu);
  const auto both = load_words(planes + kVector * kStepBytes + 4 * lane);
  auto even = hn::And(both, nibble);
  auto odd = hn::And(hn::ShiftRight<4>(both), nibble);
  if constexpr (kBits > 4) {
    even = hn::Or(even, upper_bits<kBits, 2 * kVector>(planes, lane));
    odd = hn::Or(odd, upper_bits<kBits, 2 * kVector + 1>(planes, lane));
  }
  auto* out = reinterpret_cast<uint32_t*>(codes + 2 * kVector * kStepBytes) + lane;
  hn::StoreU(even, d, out);
  hn::StoreU(odd, d, out + kTileRows);
}

// The codes of 32 inputs.
template <int kBits>
HWY_INLINE void unpack_codes(const uint8_t* HWY_RESTRICT planes, uint8_t* HWY_RESTRICT codes) {
  const WordTag d;
  if constexpr (kBits == 8) {
    for (size_t lane = 0; lane < kCodeBytes / 4; lane += hn::Lanes(d)) {
      hn::StoreU(load_words(planes + 4 * lane), d, reinterpret_cast<uint32_t*>(codes) + lane);
    }
  } else {
    for (size_t lane = 0; lane < kTileRows; lane += hn::Lanes(d)) {
      unpack_two_steps<kBits, 0>(planes, codes, lane);
      unpack_two_steps<kBits, 1>(planes, codes, lane);
      unpack_two_steps<kBits, 2>(planes, codes, lane);
      unpack_two_steps<kBits, 3>(planes, codes, lane);
    }
  }
}

// kHalf and kHalfPair: `num` blocks of 32 inputs.
template <int kBits, bool kHasMin>
void unpack_plain(const TileFormat& format, const uint8_t* HWY_RESTRICT packed, int64_t num,
                  uint8_t* HWY_RESTRICT out) {
  const FloatTag d;
  const auto minus_zero_point = hn::Set(d, static_cast<float>(-format.zero));
  constexpr int kScaleBytes = kHasMin ? 64 : 32;
  for (int64_t i = 0; i < num; ++i) {
    unpack_codes<kBits>(packed + kScaleBytes, out);
    auto* scales = reinterpret_cast<float*>(out + kCodeBytes);
    for (size_t lane = 0; lane < kTileRows; lane += hn::Lanes(d)) {
      const auto scale = load_halves(packed + 2 * lane);
      hn::StoreU(scale, d, scales + lane);
      auto min = hn::Mul(scale, minus_zero_point);
      if constexpr (kHasMin) min = load_halves(packed + 32 + 2 * lane);
      hn::StoreU(min, d, scales + kTileRows + lane);
    }
    packed += kScaleBytes + kTileRows * 32 * kBits / 8;
    out += unpacked_block_bytes(1);
  }
}

// The 6-bit scale (kMin false) or minimum of sub-block kSub, from the three words of a row.
template <int kSub, bool kMin>
HWY_INLINE hn::Vec<IntTag> sub_scale(const uint8_t* words, size_t lane) {
  const WordTag d;
  constexpr int kByte = 8 * (kSub % 4);
  const auto first = load_words(words + (kMin ? 64 : 0) + 4 * lane);
  auto v = hn::And(hn::ShiftRight<kByte>(first), hn::Set(d, 63u));
  if constexpr (kSub >= 4) {
    const auto low = hn::ShiftRight<kByte + (kMin ? 4 : 0)>(load_words(words + 128 + 4 * lane));
    const auto high = hn::ShiftRight<kByte + 6>(first);
    v = hn::Or(hn::And(low, hn::Set(d, 15u)), hn::ShiftLeft<4>(hn::And(high, hn::Set(d, 3u))));
  }
  return hn::BitCast(IntTag(), v);
}

template <int kBits, int kSub>
HWY_INLINE void unpack_sub_block(const uint8_t* HWY_RESTRICT packed, uint8_t* HWY_RESTRICT out) {
  const FloatTag d;
  constexpr int kPlaneBytes = kTileRows * 32 * kBits / 8;
  out += kSub * unpacked_block_bytes(1);
  unpack_codes<kBits>(packed + 256 + kSub * kPlaneBytes, out);
  auto* scales = reinterpret_cast<float*>(out + kCodeBytes);
  for (size_t lane = 0; lane < kTileRows; lane += hn::Lanes(d)) {
    const auto scale = hn::ConvertTo(d, sub_scale<kSub, false>(packed + 64, lane));
    const auto min = hn::ConvertTo(d, sub_scale<kSub, true>(packed + 64, lane));
    hn::StoreU(hn::Mul(load_halves(packed + 2 * lane), scale), d, scales + lane);
    hn::StoreU(hn::Neg(hn::Mul(load_halves(packed + 32 + 2 * lane), min)), d, scales + kTileRows + lane);
  }
}

// kSuper: `num` blocks of 256 inputs.
template <int kBits>
void unpack_super(const uint8_t* HWY_RESTRICT packed, int64_t num, uint8_t* HWY_RESTRICT out) {
  for (int64_t i = 0; i < num; ++i) {
    unpack_sub_block<kBits, 0>(packed, out);
    unpack_sub_block<kBits, 1>(packed, out);
    unpack_sub_block<kBits, 2>(packed, out);
    unpack_sub_block<kBits, 3>(packed, out);
    unpack_sub_block<kBits, 4>(packed, out);
    unpack_sub_block<kBits, 5>(packed, out);
    unpack_sub_block<kBits, 6>(packed, out);
    unpack_sub_block<kBits, 7>(packed, out);
    packed += 256 + 8 * kTileRows * 32 * kBits / 8;
    out += 8 * unpacked_block_bytes(1);
  }
}

// kSixBit: `num` blocks of 256 inputs, scales for groups of 16.
HWY_INLINE void unpack_six_bit(const uint8_t* HWY_RESTRICT packed, int64_t num, uint8_t* HWY_RESTRICT out) {
  const FloatTag d;
  const hn::Rebind<int8_t, FloatTag> d8;
  const auto minus_zero_point = hn::Set(d, -32.0f);
  for (int64_t i = 0; i < num; ++i) {
    for (int sub = 0; sub < 8; ++sub, out += unpacked_block_bytes(2)) {
      unpack_codes<6>(packed + 288 + sub * 384, out);
      auto* scales = reinterpret_cast<float*>(out + kCodeBytes);
      const auto* group_scales = reinterpret_cast<const int8_t*>(packed + 32 + 2 * sub * kTileRows);
      for (size_t lane = 0; lane < 2 * kTileRows; lane += hn::Lanes(d)) {
        const auto integer = hn::PromoteTo(IntTag(), hn::LoadU(d8, group_scales + lane));
        const auto scale = hn::Mul(load_halves(packed + 2 * (lane % kTileRows)), hn::ConvertTo(d, integer));
        hn::StoreU(scale, d, scales + lane);
        hn::StoreU(hn::Mul(scale, minus_zero_point), d, scales + 2 * kTileRows + lane);
      }
    }
    packed += 288 + 8 * 384;
  }
}

// `cols` inputs of a quantised tile, a multiple of the format's block.
HWY_INLINE void unpack_quantised(const TileFormat& format, const uint8_t* packed, int64_t cols, uint8_t* out) {
  const int64_t num = cols / format.block_cols;
  switch (format.format) {
    case DataFormat::kQ8_0:
      return unpack_plain<8, false>(format, packed, num, out);
    case DataFormat::kQ4_0:
      return unpack_plain<4, false>(format, packed, num, out);
    case DataFormat::kQ4_1:
      return unpack_plain<4, true>(format, packed, num, out);
    case DataFormat::kQ5_0:
      return unpack_plain<5, false>(format, packed, num, out);
    case DataFormat::kQ5_1:
      return unpack_plain<5, true>(format, packed, num, out);
    case DataFormat::kQ4_K:
      return unpack_super<4>(packed, num, out);
    case DataFormat::kQ5_K:
      return unpack_super<5>(packed, num, out);
    case DataFormat::kQ6_K:
      return unpack_six_bit(packed, num, out);
    default:
      VAYU_CHECK(false, "not a quantised format");
  }
}

HWY_INLINE void unpack_float(const TileFormat& format, const uint8_t* packed, int64_t cols, float* out) {
  const FloatTag d;
  const int64_t n = cols * kTileRows;
  if (format.format == DataFormat::kF16) {
    for (int64_t i = 0; i < n; i += hn::Lanes(d)) hn::StoreU(load_halves(packed + 2 * i), d, out + i);
  } else if (format.format == DataFormat::kBF16) {
    const hn::Rebind<uint16_t, FloatTag> d16;
    for (int64_t i = 0; i < n; i += hn::Lanes(d)) {
      const auto bits = hn::PromoteTo(WordTag(), hn::LoadU(d16, reinterpret_cast<const uint16_t*>(packed) + i));
      hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(bits)), d, out + i);
    }
  } else {
    std::memcpy(out, packed, n * sizeof(float));
  }
}

}  // namespace vayu::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
