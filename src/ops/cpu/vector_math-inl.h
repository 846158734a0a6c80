// Vector helpers the CPU ops share; included once for each Highway target. Where a product feeds a sum, MulAdd is
// written out: the compiler must have no freedom to fuse one instance of a formula and not another, or results would
// depend on the tile a token happens to fall into.
#if defined(VAYU_OPS_CPU_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VAYU_OPS_CPU_VECTOR_MATH_INL_H_
#undef VAYU_OPS_CPU_VECTOR_MATH_INL_H_
#else
#define VAYU_OPS_CPU_VECTOR_MATH_INL_H_
#endif

#include <cstring>

#include "base/half.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace vayu::ops {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// exp(x) within 1.5 ulp: exactly 1 at 0, exactly 0 below -87.33 (smallest normal result), clamped above 88.37; NaN
// stays NaN. x = n ln 2 + r, and exp(r) = 1 + r + r^2 q(r) with q interpolated at Chebyshev nodes (relative
// error 1.1e-8).
template <class D, class V>
HWY_INLINE V exp_vector(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V too_big = hn::Set(d, 88.376f);
  const V bounded = hn::IfThenElse(hn::Gt(x, too_big), too_big, x);
  const V n = hn::Round(hn::Mul(bounded, hn::Set(d, 1.44269504f)));
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), bounded);  // ln 2 in two parts; n times the first is exact
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  V q = hn::MulAdd(hn::Set(d, 0.00139262131f), r, hn::Set(d, 0.00836320315f));
  q = hn::MulAdd(q, r, hn::Set(d, 0.0416665561f));
  q = hn::MulAdd(q, r, hn::Set(d, 0.166665763f));
  q = hn::MulAdd(q, r, hn::Set(d, 0.5f));
  const V exp_r = hn::Add(hn::MulAdd(hn::Mul(q, r), r, r), hn::Set(d, 1.0f));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127))));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.33f)), hn::Mul(exp_r, power));
}

// One vector of floats from memory of any KV format.
template <class D>
HWY_INLINE hn::Vec<D> load_as_float(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> load_as_float(D d, const hwy::float16_t* p) {
#if HWY_TARGET >= HWY_SSE4  // no F16C, and Highway's emulation knows no infinity
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = f16_to_float(reinterpret_cast<const f16_t*>(p)[i]);
  return hn::Load(d, lanes);
#else
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), p));
#endif
}
template <class D>
HWY_INLINE hn::Vec<D> load_as_float(D d, const hwy::bfloat16_t* p) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> du16;
  const auto bits = hn::PromoteTo(du, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(p)));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

// Rounds `count` floats to nearest even into a KV format.
inline void convert_floats(const float* src, float* dst, int64_t count) {
  std::memcpy(dst, src, count * sizeof(float));
}
inline void convert_floats(const float* src, hwy::float16_t* dst, int64_t count) {
  int64_t i = 0;
#if HWY_TARGET < HWY_SSE4
  const hn::ScalableTag<float> d;
  const int64_t lanes = hn::Lanes(d);
  for (; i + lanes <= count; i += lanes) {
    const hn::Rebind<hwy::float16_t, decltype(d)> d16;
    hn::StoreU(hn::DemoteTo(d16, hn::LoadU(d, src + i)), d16, dst + i);
  }
#endif
  for (; i < count; ++i) reinterpret_cast<f16_t*>(dst)[i] = float_to_f16(src[i]);
}
inline void convert_floats(const float* src, hwy::bfloat16_t* dst, int64_t count) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint16_t, decltype(d)> du16;
  const int64_t lanes = hn::Lanes(d);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto v = hn::LoadU(d, src + i);
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu))));
    const auto nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
    const auto is_nan = hn::RebindMask(du, hn::Ne(v, v));
    hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di, hn::IfThenElse(is_nan, nan, rounded))), du16,
               reinterpret_cast<uint16_t*>(dst) + i);
  }
  for (; i < count; ++i) reinterpret_cast<bf16_t*>(dst)[i] = float_to_bf16(src[i]);
}

// The last `count` < Lanes(d) floats of a row; lanes past them are zero.
template <class D>
HWY_INLINE hn::Vec<D> load_tail(D d, const float* p, int64_t count) {
  HWY_ALIGN float lanes[hn::MaxLanes(d)] = {};
  std::memcpy(lanes, p, count * sizeof(float));
  return hn::Load(d, lanes);
}
template <class D>
HWY_INLINE void store_tail(hn::Vec<D> v, D d, float* p, int64_t count) {
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  std::memcpy(p, lanes, count * sizeof(float));
}

}  // namespace HWY_NAMESPACE
}  // namespace vayu::ops
HWY_AFTER_NAMESPACE();

#endif  // VAYU_OPS_CPU_VECTOR_MATH_INL_H_
