// Norm and rotation of one head, shared by the ops that write keys.
#if defined(VAYU_OPS_ROPE_ROTATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VAYU_OPS_ROPE_ROTATION_INL_H_
#undef VAYU_OPS_ROPE_ROTATION_INL_H_
#else
#define VAYU_OPS_ROPE_ROTATION_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "hwy/highway.h"
#include "ops/cpu/vector_math-inl.h"
#include "ops/rope/rope_kv_write.h"

HWY_BEFORE_NAMESPACE();
namespace vayu::ops {
namespace HWY_NAMESPACE {

constexpr int kPairBlock = 128;  // pairs whose sines are held at a time

struct Rotation {
  HWY_ALIGN float cos[kPairBlock];
  HWY_ALIGN float sin[kPairBlock];
};

// Sine and cosine of |x| up to 2^22 or so, good to float precision: x = n pi/2 + r in double, Taylor series of r in
// [-pi/4, pi/4] (error below 3e-14). pi/2 in two doubles; n times the first rounds, but the fused product does not.
template <class D, class V>
HWY_INLINE void sin_cos(D d, V x, V& sin, V& cos) {
  const V n = hn::Round(hn::Mul(x, hn::Set(d, 0.63661977236758134308)));
  V r = hn::NegMulAdd(n, hn::Set(d, 1.57079632679489655800), x);
  r = hn::NegMulAdd(n, hn::Set(d, 6.12323399573676603587e-17), r);
  const V r2 = hn::Mul(r, r);
  V s = hn::MulAdd(r2, hn::Set(d, 1.0 / 6227020800), hn::Set(d, -1.0 / 39916800));
  s = hn::MulAdd(s, r2, hn::Set(d, 1.0 / 362880));
  s = hn::MulAdd(s, r2, hn::Set(d, -1.0 / 5040));
  s = hn::MulAdd(s, r2, hn::Set(d, 1.0 / 120));
  s = hn::MulAdd(s, r2, hn::Set(d, -1.0 / 6));
  s = hn::MulAdd(hn::Mul(s, r2), r, r);
  V c = hn::MulAdd(r2, hn::Set(d, -1.0 / 87178291200), hn::Set(d, 1.0 / 479001600));
  c = hn::MulAdd(c, r2, hn::Set(d, -1.0 / 3628800));
  c = hn::MulAdd(c, r2, hn::Set(d, 1.0 / 40320));
  c = hn::MulAdd(c, r2, hn::Set(d, -1.0 / 720));
  c = hn::MulAdd(c, r2, hn::Set(d, 1.0 / 24));
  c = hn::MulAdd(c, r2, hn::Set(d, -0.5));
  c = hn::MulAdd(c, r2, hn::Set(d, 1.0));
  // Quarter turns: n mod 4 in {0, 1, 2, 3} gives sin = s, c, -s, -c and cos = c, -s, -c, s.
  const V quarter = hn::NegMulAdd(hn::Floor(hn::Mul(n, hn::Set(d, 0.25))), hn::Set(d, 4.0), n);
  const auto odd = hn::Or(hn::Eq(quarter, hn::Set(d, 1.0)), hn::Eq(quarter, hn::Set(d, 3.0)));
  const V sin_abs = hn::IfThenElse(odd, c, s);
  const V cos_abs = hn::IfThenElse(odd, s, c);
  sin = hn::IfThenElse(hn::Ge(quarter, hn::Set(d, 2.0)), hn::Neg(sin_abs), sin_abs);
  const auto cos_negative = hn::Or(hn::Eq(quarter, hn::Set(d, 1.0)), hn::Eq(quarter, hn::Set(d, 2.0)));
  cos = hn::IfThenElse(cos_negative, hn::Neg(cos_abs), cos_abs);
}

// The angles of `count` pairs at one position: a float product, as in the models' reference code.
HWY_INLINE void compute_rotation(const float* inv_freq, float attention_factor, int32_t position, int count,
                                 Rotation& rotation) {
  const hn::ScalableTag<double> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  HWY_ALIGN double angles[kPairBlock + 8] = {};
  HWY_ALIGN double sines[kPairBlock + 8];
  HWY_ALIGN double cosines[kPairBlock + 8];
  for (int i = 0; i < count; ++i) angles[i] = static_cast<float>(position) * inv_freq[i];
  for (int i = 0; i < count; i += lanes) {
    hn::Vec<decltype(d)> s, c;
    sin_cos(d, hn::Load(d, angles + i), s, c);
    hn::Store(s, d, sines + i);
    hn::Store(c, d, cosines + i);
  }
  for (int i = 0; i < count; ++i) {
    rotation.cos[i] = static_cast<float>(cosines[i]) * attention_factor;
    rotation.sin[i] = static_cast<float>(sines[i]) * attention_factor;
  }
}

// a[i], b[i] are the two halves of pair i.
HWY_INLINE void rotate_split(float* HWY_RESTRICT a, float* HWY_RESTRICT b, const Rotation& rotation, int count) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto rotate = [&](auto va, auto vb, auto c, auto s, auto& out_a, auto& out_b) HWY_ATTR {
    out_a = hn::NegMulAdd(vb, s, hn::Mul(va, c));
    out_b = hn::MulAdd(va, s, hn::Mul(vb, c));
  };
  hn::Vec<decltype(d)> out_a, out_b;
  int i = 0;
  for (; i + lanes <= count; i += lanes) {
    rotate(hn::LoadU(d, a + i), hn::LoadU(d, b + i), hn::LoadU(d, rotation.cos + i), hn::LoadU(d, rotation.sin + i),
           out_a, out_b);
    hn::StoreU(out_a, d, a + i);
    hn::StoreU(out_b, d, b + i);
  }
  const int rest = count - i;
  if (rest == 0) return;
  rotate(load_tail(d, a + i, rest), load_tail(d, b + i, rest), load_tail(d, rotation.cos + i, rest),
         load_tail(d, rotation.sin + i, rest), out_a, out_b);
  store_tail(out_a, d, a + i, rest);
  store_tail(out_b, d, b + i, rest);
}

HWY_INLINE void rotate_interleaved(float* pairs, const Rotation& rotation, int count) {
  for (int i = 0; i < count; ++i) {
    const float a = pairs[2 * i];
    const float b = pairs[2 * i + 1];
    pairs[2 * i] = a * rotation.cos[i] - b * rotation.sin[i];
    pairs[2 * i + 1] = b * rotation.cos[i] + a * rotation.sin[i];
  }
}

HWY_INLINE void norm_head(float* head, const float* weight, int head_dim, float eps) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  int i = 0;
  for (; i + lanes <= head_dim; i += lanes) sum = hn::MulAdd(hn::LoadU(d, head + i), hn::LoadU(d, head + i), sum);
  if (i < head_dim) {
    const auto v = load_tail(d, head + i, head_dim - i);
    sum = hn::MulAdd(v, v, sum);
  }
  const float total = hn::GetLane(hn::SumOfLanes(d, sum));
  const float scale = 1.0f / std::sqrt(total / static_cast<float>(head_dim) + eps);
  for (i = 0; i + lanes <= head_dim; i += lanes) {
    const auto scaled = hn::Mul(hn::LoadU(d, head + i), hn::Set(d, scale));
    hn::StoreU(hn::Mul(scaled, hn::LoadU(d, weight + i)), d, head + i);
  }
  for (; i < head_dim; ++i) head[i] = head[i] * scale * weight[i];
}

// Rotates `num_heads` heads `stride` floats apart; heads points at the part of the first head that is rotated.
HWY_INLINE void rotate_heads(const float* inv_freq, float attention_factor, RopePairing pairing, int rotary_dim,
                             float* heads, int num_heads, int64_t stride, int32_t position) {
  const int half = rotary_dim / 2;
  Rotation rotation;
  for (int begin = 0; begin < half; begin += kPairBlock) {
    const int count = std::min(kPairBlock, half - begin);
    compute_rotation(inv_freq + begin, attention_factor, position, count, rotation);
    for (int h = 0; h < num_heads; ++h) {
      float* head = heads + h * stride;
      if (pairing == RopePairing::kHalfSplit) {
        rotate_split(head + begin, head + half + begin, rotation, count);
      } else {
        rotate_interleaved(head + 2 * begin, rotation, count);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace vayu::ops
HWY_AFTER_NAMESPACE();

#endif  // VAYU_OPS_ROPE_ROTATION_INL_H_
