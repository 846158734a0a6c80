#include "ops/sampling/sample_passes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/sampling/sample_passes.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/vector_math-inl.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace vayu::ops {
namespace HWY_NAMESPACE {
namespace {

LogitScan scan_logits(const float* logits, int64_t size, float* maxima) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = hn::Lanes(d);
  const V lowest = hn::Set(d, -INFINITY);
  const V highest = hn::Set(d, FLT_MAX);
  LogitScan scan;
  auto good = hn::Eq(lowest, lowest);
  V max = lowest;
  for (int64_t begin = 0; begin < size; begin += kVectorsPerMaximum * lanes) {
    const int64_t end = std::min(begin + kVectorsPerMaximum * lanes, size);
    V group_max = lowest;
    int64_t i = begin;
    for (; i + lanes <= end; i += lanes) {
      const V v = hn::LoadU(d, logits + i);
      good = hn::And(good, hn::Le(v, highest));  // false for NaN and +inf
      group_max = hn::Max(group_max, v);
    }
    if (i < end) {
      const V v = hn::IfThenElse(hn::FirstN(d, end - i), load_tail(d, logits + i, end - i), lowest);
      good = hn::And(good, hn::Le(v, highest));
      group_max = hn::Max(group_max, v);
    }
    hn::StoreU(group_max, d, maxima + scan.num_maxima);
    scan.num_maxima += lanes;
    max = hn::Max(max, group_max);
  }
  scan.max = hn::GetLane(hn::MaxOfLanes(d, max));
  scan.usable = hn::AllTrue(d, good) && scan.max >= -FLT_MAX;
  return scan;
}

int64_t find_first(const float* logits, int64_t size, float value) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = hn::Lanes(d);
  const auto wanted = hn::Set(d, value);
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    const intptr_t lane = hn::FindFirstTrue(d, hn::Eq(hn::LoadU(d, logits + i), wanted));
    if (lane >= 0) return i + lane;
  }
  while (i + 1 < size && logits[i] != value) ++i;
  return i;
}

// Adds the lanes of v to sums in double.
template <class D, class DD>
HWY_INLINE void add_as_double(D d, DD dd, hn::Vec<D> v, hn::Vec<DD>& low, hn::Vec<DD>& high) {
#if HWY_TARGET == HWY_SCALAR
  low = hn::Add(low, hn::PromoteTo(dd, v));
#else
  const hn::Half<D> half;
  low = hn::Add(low, hn::PromoteTo(dd, hn::LowerHalf(half, v)));
  high = hn::Add(high, hn::PromoteTo(dd, hn::UpperHalf(half, v)));
#endif
}

double sum_weights(const float* logits, int64_t size, float max, float inverse_temperature, float* weights) {
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<double> dd;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = hn::Lanes(d);
  const V v_max = hn::Set(d, max);
  const V inverse = hn::Set(d, inverse_temperature);
  auto low = hn::Zero(dd), high = hn::Zero(dd);
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    const V weight = exp_vector(d, hn::Mul(hn::Sub(hn::LoadU(d, logits + i), v_max), inverse));
    if (weights) hn::StoreU(weight, d, weights + i);
    add_as_double(d, dd, weight, low, high);
  }
  if (i < size) {
    const V x = hn::Mul(hn::Sub(load_tail(d, logits + i, size - i), v_max), inverse);
    const V weight = hn::IfThenElseZero(hn::FirstN(d, size - i), exp_vector(d, x));
    if (weights) store_tail(weight, d, weights + i, size - i);
    add_as_double(d, dd, weight, low, high);
  }
  return hn::GetLane(hn::SumOfLanes(dd, hn::Add(low, high)));
}

int64_t collect_keys(const float* values, int64_t size, float threshold, const float* logits, uint64_t* keys) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = hn::Lanes(d);
  const auto bound = hn::Set(d, threshold);
  int64_t count = 0;
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    if (hn::AllFalse(d, hn::Ge(hn::LoadU(d, values + i), bound))) continue;
    for (int64_t j = i; j < i + lanes; ++j) {
      keys[count] = candidate_key(logits[j], j);
      count += values[j] >= threshold;
    }
  }
  for (; i < size; ++i) {
    if (values[i] >= threshold) keys[count++] = candidate_key(logits[i], i);
  }
  return count;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace vayu::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vayu::ops {
HWY_EXPORT(scan_logits);
HWY_EXPORT(find_first);
HWY_EXPORT(sum_weights);
HWY_EXPORT(collect_keys);

LogitScan scan_logits(const float* logits, int64_t size, float* maxima) {
  return HWY_DYNAMIC_DISPATCH(scan_logits)(logits, size, maxima);
}
int64_t find_first(const float* logits, int64_t size, float value) {
  return HWY_DYNAMIC_DISPATCH(find_first)(logits, size, value);
}
double sum_weights(const float* logits, int64_t size, float max, float inverse_temperature, float* weights) {
  return HWY_DYNAMIC_DISPATCH(sum_weights)(logits, size, max, inverse_temperature, weights);
}
int64_t collect_keys(const float* values, int64_t size, float threshold, const float* logits, uint64_t* keys) {
  return HWY_DYNAMIC_DISPATCH(collect_keys)(values, size, threshold, logits, keys);
}

}  // namespace vayu::ops
#endif
