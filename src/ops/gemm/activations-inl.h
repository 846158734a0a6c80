// Activations in the layout dot-inl.h reads: tokens in groups of at most kMaxGroup, each group interleaved.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "ops/gemm/dot-inl.h"

#if defined(VAYU_OPS_GEMM_ACTIVATIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VAYU_OPS_GEMM_ACTIVATIONS_INL_H_
#undef VAYU_OPS_GEMM_ACTIVATIONS_INL_H_
#else
#define VAYU_OPS_GEMM_ACTIVATIONS_INL_H_
#endif

#include "ops/gemm/before_namespace-inl.h"
namespace vayu::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Tokens cut in groups of nearly equal size.
struct TokenGroups {
  int64_t num_tokens = 0;
  int64_t num_groups = 0;

  TokenGroups() = default;
  explicit TokenGroups(int64_t tokens) : num_tokens(tokens), num_groups((tokens + kMaxGroup - 1) / kMaxGroup) {}
  int64_t first(int64_t group) const {
    return group * (num_tokens / num_groups) + std::min(group, num_tokens % num_groups);
  }
  int size(int64_t group) const { return static_cast<int>(first(group + 1) - first(group)); }
};

// 32 floats to integers in [-kMaxCode, kMaxCode] and their scale; an integer is 256 high + low, both in int8, so that
// the byte products of the weights serve for 16-bit activations. A block with a NaN or an infinity gets a NaN scale, so
// that every output of the row is NaN and whoever looks at the logits sees it.
struct QuantisedBlock {
  alignas(64) int8_t high[32];
  alignas(64) int8_t low[32];
  float scale;
  float sums[2];  // scale times the sum of each half
};
constexpr float kMaxCode = 127 * 256 + 127;

HWY_INLINE void quantise_block(const float* HWY_RESTRICT x, QuantisedBlock& out) {
  const FloatTag d;
  const IntTag di;
  const hn::Rebind<int8_t, FloatTag> d8;
  constexpr uint32_t kInfinityBits = 0x7f800000;
  auto peaks = hn::Zero(di);  // as bit patterns: a NaN is larger than infinity is larger than any number
  for (size_t i = 0; i < 32; i += hn::Lanes(d)) {
    peaks = hn::Max(peaks, hn::BitCast(di, hn::Abs(hn::LoadU(d, x + i))));
  }
  const auto peak_bits = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, peaks)));
  float peak;
  std::memcpy(&peak, &peak_bits, sizeof(peak));
  const bool finite = peak_bits < kInfinityBits;
  const bool zero = !finite || peak < 0x1p-100f;  // the inverse scale of a smaller peak would overflow
  out.scale = !finite ? std::numeric_limits<float>::quiet_NaN() : zero ? 0.0f : peak / kMaxCode;
  if (zero) {
    std::memset(out.high, 0, sizeof(out.high));
    std::memset(out.low, 0, sizeof(out.low));
    out.sums[0] = out.sums[1] = finite ? 0.0f : out.scale;
    return;
  }
  const auto inverse = hn::Set(d, kMaxCode / peak);
  for (size_t half = 0; half < 2; ++half) {
    auto sum = hn::Zero(di);
    for (size_t i = 16 * half; i < 16 * half + 16; i += hn::Lanes(d)) {
      const auto q = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), inverse));
      sum = hn::Add(sum, q);
      const auto high = hn::ShiftRight<8>(hn::Add(q, hn::Set(di, 128)));  // rounds, so that low fits
      hn::StoreU(hn::DemoteTo(d8, high), d8, out.high + i);
      hn::StoreU(hn::DemoteTo(d8, hn::Sub(q, hn::ShiftLeft<8>(high))), d8, out.low + i);
    }
    out.sums[half] = out.scale * static_cast<float>(hn::GetLane(hn::SumOfLanes(di, sum)));
  }
}

// rows: `tokens` pointers to cols floats, cols a multiple of 32; out: the group, act_block_bytes(groups) * tokens for
// every 32 inputs.
HWY_INLINE void quantise_group(const float* const* rows, int64_t cols, int tokens, int groups,
                               uint8_t* HWY_RESTRICT out) {
  QuantisedBlock block;
  const int64_t block_bytes = tokens * act_block_bytes(groups);
  for (int t = 0; t < tokens; ++t) {  // a token at a time: x streams, the group stays in the first-level cache
    const float* HWY_RESTRICT x = rows[t];
    uint8_t* place = out;
    for (int64_t first = 0; first < cols; first += 32, place += block_bytes) {
      quantise_block(x + first, block);
#pragma GCC unroll 8
      for (int step = 0; step < 8; ++step) {
        std::memcpy(place + 4 * (step * tokens + t), block.high + 4 * step, 4);
        std::memcpy(place + 4 * ((8 + step) * tokens + t), block.low + 4 * step, 4);
      }
      auto* scales = reinterpret_cast<float*>(place + 64 * tokens) + t;
      scales[0] = block.scale;
      scales[tokens] = groups == 1 ? block.sums[0] + block.sums[1] : block.sums[0];
      if (groups == 2) scales[2 * tokens] = block.sums[1];
    }
  }
}

// rows: `tokens` pointers to cols floats; out: (cols, tokens)
HWY_INLINE void interleave_group(const float* const* rows, int64_t cols, int tokens, float* HWY_RESTRICT out) {
  for (int t = 0; t < tokens; ++t) {
    const float* HWY_RESTRICT x = rows[t];
    for (int64_t col = 0; col < cols; ++col) out[col * tokens + t] = x[col];
  }
}

}  // namespace vayu::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
