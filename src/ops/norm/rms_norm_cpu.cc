// RMSNorm in vectors. A row is summed by one thread in a fixed order, so it does not feel the rest of the batch.
#include "ops/cpu/thread_pool.h"
#include "ops/norm/rms_norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/norm/rms_norm_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/vector_math-inl.h"

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace vayu::ops {
namespace HWY_NAMESPACE {
namespace {

// The sum of squares of x, or of residual += x.
float sum_squares(const float* HWY_RESTRICT x, float* HWY_RESTRICT residual, int64_t size) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = hn::Lanes(d);
  V sum0 = hn::Zero(d), sum1 = sum0;
  const auto value = [&](int64_t i) HWY_ATTR {
    V v = hn::LoadU(d, x + i);
    if (residual) {
      v = hn::Add(v, hn::LoadU(d, residual + i));
      hn::StoreU(v, d, residual + i);
    }
    return v;
  };
  int64_t i = 0;
  for (; i + 2 * lanes <= size; i += 2 * lanes) {
    const V a = value(i);
    const V b = value(i + lanes);
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  for (; i + lanes <= size; i += lanes) {
    const V a = value(i);
    sum0 = hn::MulAdd(a, a, sum0);
  }
  if (i < size) {
    V v = load_tail(d, x + i, size - i);
    if (residual) {
      v = hn::Add(v, load_tail(d, residual + i, size - i));
      store_tail(v, d, residual + i, size - i);
    }
    sum1 = hn::MulAdd(v, v, sum1);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
}

void norm_rows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  const hn::ScalableTag<float> d;
  const int64_t size = args.hidden;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t t = begin; t < end; ++t) {
    float* residual = args.residual ? args.residual + t * size : nullptr;
    const float sum = sum_squares(args.x + t * size, residual, size);
    const float* x = residual ? residual : args.x + t * size;
    float* y = args.y + t * size;
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(size) + args.eps);
    const auto v_scale = hn::Set(d, scale);
    int64_t i = 0;
    for (; i + lanes <= size; i += lanes) {
      hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), v_scale), hn::LoadU(d, args.weight + i)), d, y + i);
    }
    for (; i < size; ++i) y[i] = x[i] * scale * args.weight[i];
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace vayu::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vayu::ops {
HWY_EXPORT(norm_rows);

void rms_norm_cpu(const OpContext& ctx, const RmsNormArgs& args) {
  constexpr int64_t kInlineElements = 16 << 10;  // about 4 us of work: less than it pays to wake a thread for
  const auto rows = HWY_DYNAMIC_DISPATCH(norm_rows);
  if (args.num_tokens * args.hidden <= kInlineElements) return rows(args, 0, args.num_tokens);
  ctx.pool->parallel_for(args.num_tokens, 8, [&](int64_t begin, int64_t end, int) { rows(args, begin, end); });
}

}  // namespace vayu::ops
#endif
