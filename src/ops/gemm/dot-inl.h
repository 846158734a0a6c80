// Dot products of one unpacked tile (16 rows) with a group of kTokens activation rows.
//
// Every float operation of a result, and their order, is the same for every kTokens, so a row's result does not depend
// on its company: integer sums are exact, then per group of inputs  acc = fma(sum, d * da, acc); acc = fma(m, sa, acc).
//
// A group of T tokens holds per 32 inputs: int8 high (8 steps, T, 4 inputs), int8 low (same), float scale da (T), float
// sa (groups, T): da times the sum of the group's integers. For float formats it is floats (inputs, T).
#include <cstring>

#include "hwy/highway.h"
#include "ops/gemm/unpack-inl.h"

#if defined(VAYU_OPS_GEMM_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VAYU_OPS_GEMM_DOT_INL_H_
#undef VAYU_OPS_GEMM_DOT_INL_H_
#else
#define VAYU_OPS_GEMM_DOT_INL_H_
#endif

// Lower is better on x86. Without AVX2 (and off x86) plain loops do, which the compiler turns into what there is.
#undef VAYU_GEMM_VECTOR
#define VAYU_GEMM_VECTOR (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2)

#include "ops/gemm/before_namespace-inl.h"
namespace vayu::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Tokens a group. AVX-512: 12 integer and 12 float accumulators, the weights, d, m and 2 temporaries of 32 registers.
constexpr int kMaxGroup = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3 ? 12 : 4;

constexpr int64_t act_block_bytes(int groups) { return 64 + 4 + 4 * groups; }  // a token, 32 inputs

#if VAYU_GEMM_VECTOR
using IntVec = hn::Vec<IntTag>;
using FloatVec = hn::Vec<FloatTag>;

HWY_INLINE IntVec broadcast_inputs(const uint8_t* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof(four));
  return hn::Set(IntTag(), four);
}

#if HWY_TARGET == HWY_AVX3_DL
// sums[t] += 4 unsigned codes times 4 signed inputs, in each of 16 rows.
template <int kTokens, int kBits, int kSteps>
HWY_INLINE void dot_steps(const uint8_t* HWY_RESTRICT codes, const uint8_t* HWY_RESTRICT inputs, IntVec* sums) {
#pragma GCC unroll 8
  for (int step = 0; step < kSteps; ++step) {
    const __m512i w = _mm512_loadu_si512(codes + step * kStepBytes);
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      sums[t] = IntVec{_mm512_dpbusd_epi32(sums[t].raw, w, broadcast_inputs(inputs + 4 * (step * kTokens + t)).raw)};
    }
  }
}
#else
#if HWY_TARGET <= HWY_AVX3
HWY_INLINE IntVec pairs_u8_s8(IntVec w, IntVec a) { return IntVec{_mm512_maddubs_epi16(w.raw, a.raw)}; }
HWY_INLINE IntVec add_s16(IntVec a, IntVec b) { return IntVec{_mm512_add_epi16(a.raw, b.raw)}; }
HWY_INLINE IntVec widen_pairs(IntVec v) { return IntVec{_mm512_madd_epi16(v.raw, _mm512_set1_epi16(1))}; }
#else
HWY_INLINE IntVec pairs_u8_s8(IntVec w, IntVec a) { return IntVec{_mm256_maddubs_epi16(w.raw, a.raw)}; }
HWY_INLINE IntVec add_s16(IntVec a, IntVec b) { return IntVec{_mm256_add_epi16(a.raw, b.raw)}; }
HWY_INLINE IntVec widen_pairs(IntVec v) { return IntVec{_mm256_madd_epi16(v.raw, _mm256_set1_epi16(1))}; }
#endif

// Products of two neighbours are summed in 16 bits, which holds 2 * 127 * max code for this many steps without
// saturating: 8 * 256 * 15, 4 * 256 * 31, 2 * 256 * 63 < 2^15. Codes of 8 bits are cut in 7 bits and the top bit.
constexpr int steps_in_s16(int bits) { return bits == 4 ? 8 : bits == 5 ? 4 : 2; }

template <int kTokens, int kBits, int kSteps>
HWY_INLINE void dot_steps(const uint8_t* HWY_RESTRICT codes, const uint8_t* HWY_RESTRICT inputs, IntVec* sums) {
  const IntTag d;
  if constexpr (kBits == 8) {
    const auto low_mask = hn::Set(d, 0x7f7f7f7f);
#pragma GCC unroll 8
    for (int step = 0; step < kSteps; ++step) {
      const auto w = hn::LoadU(d, reinterpret_cast<const int32_t*>(codes + step * kStepBytes));
      const auto low = hn::And(w, low_mask);
      const auto top = hn::AndNot(low_mask, w);
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) {
        const auto a = broadcast_inputs(inputs + 4 * (step * kTokens + t));
        sums[t] = hn::Add(sums[t], hn::Add(widen_pairs(pairs_u8_s8(low, a)), widen_pairs(pairs_u8_s8(top, a))));
      }
    }
  } else {
    constexpr int kRun = steps_in_s16(kBits);
#pragma GCC unroll 8
    for (int first = 0; first < kSteps; first += kRun) {
      IntVec narrow[kTokens];
#pragma GCC unroll 8
      for (int step = first; step < first + kRun; ++step) {
        const auto w = hn::LoadU(d, reinterpret_cast<const int32_t*>(codes + step * kStepBytes));
#pragma GCC unroll 16
        for (int t = 0; t < kTokens; ++t) {
          const auto pairs = pairs_u8_s8(w, broadcast_inputs(inputs + 4 * (step * kTokens + t)));
          narrow[t] = step == first ? pairs : add_s16(narrow[t], pairs);
        }
      }
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) sums[t] = hn::Add(sums[t], widen_pairs(narrow[t]));
    }
  }
}
#endif

// sums[t] = codes times the 16-bit inputs, whose low bytes stand 32 x kTokens behind their high bytes.
template <int kTokens, int kBits, int kSteps>
HWY_INLINE void dot_group(const uint8_t* HWY_RESTRICT codes, const uint8_t* HWY_RESTRICT high, IntVec* sums) {
  const uint8_t* low = high + 32 * kTokens;
#if HWY_TARGET == HWY_AVX3_DL
  if constexpr (kTokens <= 8) {  // registers enough for both sums: each weight is loaded once
    IntVec low_sums[kTokens];
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) low_sums[t] = hn::Zero(IntTag());
#pragma GCC unroll 8
    for (int step = 0; step < kSteps; ++step) {
      const __m512i w = _mm512_loadu_si512(codes + step * kStepBytes);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const int at = 4 * (step * kTokens + t);
        sums[t] = IntVec{_mm512_dpbusd_epi32(sums[t].raw, w, broadcast_inputs(high + at).raw)};
        low_sums[t] = IntVec{_mm512_dpbusd_epi32(low_sums[t].raw, w, broadcast_inputs(low + at).raw)};
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) sums[t] = hn::Add(hn::ShiftLeft<8>(sums[t]), low_sums[t]);
    return;
  }
#endif
  dot_steps<kTokens, kBits, kSteps>(codes, high, sums);
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) sums[t] = hn::ShiftLeft<8>(sums[t]);
  dot_steps<kTokens, kBits, kSteps>(codes, low, sums);
}

// acc (kTokens, 16) += the tile's `num_blocks` x 32 inputs.
template <int kTokens, int kBits>
void dot_quantised(const uint8_t* HWY_RESTRICT tile, int64_t num_blocks, const uint8_t* HWY_RESTRICT acts,
                   float* HWY_RESTRICT acc) {
  constexpr int kGroups = groups_of(kBits);
  constexpr int kSteps = 8 / kGroups;
  const FloatTag d;
  for (size_t lane = 0; lane < kTileRows; lane += hn::Lanes(d)) {  // one pass on AVX-512, two on AVX2
    FloatVec total[kTokens];
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) total[t] = hn::LoadU(d, acc + t * kTileRows + lane);
    const uint8_t* codes = tile + 4 * lane;
    const uint8_t* inputs = acts;
    for (int64_t block = 0; block < num_blocks; ++block) {
      const auto* w_scales = reinterpret_cast<const float*>(codes + kCodeBytes);
      const auto* a_scales = reinterpret_cast<const float*>(inputs + 64 * kTokens);
#pragma GCC unroll 2
      for (int group = 0; group < kGroups; ++group) {
        IntVec sums[kTokens];
#pragma GCC unroll 16
        for (int t = 0; t < kTokens; ++t) sums[t] = hn::Zero(IntTag());
        dot_group<kTokens, kBits, kSteps>(codes + group * kSteps * kStepBytes, inputs + group * 4 * kSteps * kTokens,
                                          sums);
        const auto scale = hn::LoadU(d, w_scales + group * kTileRows);
        const auto min = hn::LoadU(d, w_scales + (kGroups + group) * kTileRows);
#pragma GCC unroll 16
        for (int t = 0; t < kTokens; ++t) {
          const auto both = hn::Mul(scale, hn::Set(d, a_scales[t]));
          total[t] = hn::MulAdd(hn::ConvertTo(d, sums[t]), both, total[t]);
          total[t] = hn::MulAdd(min, hn::Set(d, a_scales[(1 + group) * kTokens + t]), total[t]);
        }
      }
      codes += unpacked_block_bytes(kGroups);
      inputs += kTokens * act_block_bytes(kGroups);
    }
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) hn::StoreU(total[t], d, acc + t * kTileRows + lane);
  }
}

// acc (kTokens, 16) += w (cols, 16) x (cols, kTokens)
template <int kTokens>
void dot_float(const float* HWY_RESTRICT w, int64_t cols, const float* HWY_RESTRICT x, float* HWY_RESTRICT acc) {
  const FloatTag d;
  for (size_t lane = 0; lane < kTileRows; lane += hn::Lanes(d)) {
    FloatVec total[kTokens];
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) total[t] = hn::LoadU(d, acc + t * kTileRows + lane);
    for (int64_t col = 0; col < cols; ++col) {
      const auto weights = hn::LoadU(d, w + col * kTileRows + lane);
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) total[t] = hn::MulAdd(weights, hn::Set(d, x[col * kTokens + t]), total[t]);
    }
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) hn::StoreU(total[t], d, acc + t * kTileRows + lane);
  }
}

#else  // plain loops

template <int kTokens, int kBits>
void dot_quantised(const uint8_t* HWY_RESTRICT tile, int64_t num_blocks, const uint8_t* HWY_RESTRICT acts,
                   float* HWY_RESTRICT acc) {
  constexpr int kGroups = groups_of(kBits);
  constexpr int kSteps = 8 / kGroups;
  for (int64_t block = 0; block < num_blocks; ++block) {
    const auto* w_scales = reinterpret_cast<const float*>(tile + kCodeBytes);
    const auto* a_scales = reinterpret_cast<const float*>(acts + 64 * kTokens);
    for (int group = 0; group < kGroups; ++group) {
      for (int t = 0; t < kTokens; ++t) {
        int32_t sums[kTileRows] = {};
        for (int step = group * kSteps; step < (group + 1) * kSteps; ++step) {
          const auto* high = reinterpret_cast<const int8_t*>(acts) + 4 * (step * kTokens + t);
          const int8_t* low = high + 32 * kTokens;
          for (int i = 0; i < 4 * kTileRows; ++i) {
            sums[i / 4] += tile[step * kStepBytes + i] * (256 * high[i % 4] + low[i % 4]);
          }
        }
        const float sa = a_scales[(1 + group) * kTokens + t];
        for (int r = 0; r < kTileRows; ++r) {
          float& total = acc[t * kTileRows + r];
          total += static_cast<float>(sums[r]) * (w_scales[group * kTileRows + r] * a_scales[t]);
          total += w_scales[(kGroups + group) * kTileRows + r] * sa;
        }
      }
    }
    tile += unpacked_block_bytes(kGroups);
    acts += kTokens * act_block_bytes(kGroups);
  }
}

template <int kTokens>
void dot_float(const float* HWY_RESTRICT w, int64_t cols, const float* HWY_RESTRICT x, float* HWY_RESTRICT acc) {
  for (int64_t col = 0; col < cols; ++col) {
    for (int t = 0; t < kTokens; ++t) {
      for (int r = 0; r < kTileRows; ++r) acc[t * kTileRows + r] += w[col * kTileRows + r] * x[col * kTokens + t];
    }
  }
}
#endif

// The functions above by number of tokens: kDot[tokens - 1].
using DotQuantised = void (*)(const uint8_t*, int64_t, const uint8_t*, float*);
using DotFloat = void (*)(const float*, int64_t, const float*, float*);

template <int kBits>
HWY_INLINE DotQuantised dot_quantised_for(int tokens) {
  static constexpr auto kTable = []<int... I>(std::integer_sequence<int, I...>) {
    return std::array<DotQuantised, kMaxGroup>{&dot_quantised<I + 1, kBits>...};
  }
  (std::make_integer_sequence<int, kMaxGroup>());
  return kTable[tokens - 1];
}

HWY_INLINE DotQuantised dot_quantised_for(int bits, int tokens) {
  if (bits == 6) return dot_quantised_for<6>(tokens);
#if HWY_TARGET != HWY_AVX3_DL && VAYU_GEMM_VECTOR  // the others do not care how wide a code is
  if (bits == 4) return dot_quantised_for<4>(tokens);
  if (bits == 5) return dot_quantised_for<5>(tokens);
#endif
  return dot_quantised_for<8>(tokens);
}

HWY_INLINE DotFloat dot_float_for(int tokens) {
  static constexpr auto kTable = []<int... I>(std::integer_sequence<int, I...>) {
    return std::array<DotFloat, kMaxGroup>{&dot_float<I + 1>...};
  }
  (std::make_integer_sequence<int, kMaxGroup>());
  return kTable[tokens - 1];
}

}  // namespace vayu::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
