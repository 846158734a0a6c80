// SwiGLU in vectors, with the exponential of ops/cpu/vector_math-inl.h.
#include "ops/activation/silu_mul.h"
#include "ops/cpu/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/activation/silu_mul_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vayu::ops {
namespace HWY_NAMESPACE {
namespace {

template <class D, class V>
HWY_INLINE V silu_mul_vector(D d, V gate, V up) {
  return hn::Mul(hn::Div(gate, hn::Add(hn::Set(d, 1.0f), exp_vector(d, hn::Neg(gate)))), up);
}

void silu_mul_rows(const float* gate_up, float* y, int64_t width, int64_t begin, int64_t end) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t t = begin; t < end; ++t) {
    const float* gate = gate_up + t * 2 * width;
    const float* up = gate + width;
    float* out = y + t * width;
    int64_t i = 0;
    for (; i + lanes <= width; i += lanes) {
      hn::StoreU(silu_mul_vector(d, hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, out + i);
    }
    const int64_t rest = width - i;
    if (rest > 0)
      store_tail(silu_mul_vector(d, load_tail(d, gate + i, rest), load_tail(d, up + i, rest)), d, out + i, rest);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace vayu::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vayu::ops {
HWY_EXPORT(silu_mul_rows);

void silu_mul_cpu(const OpContext& ctx, const float* gate_up, float* y, int64_t num_tokens, int64_t width) {
  constexpr int64_t kInlineElements = 8 << 10;  // a few microseconds of work: less than it pays to wake a thread for
  const auto rows = HWY_DYNAMIC_DISPATCH(silu_mul_rows);
  if (num_tokens * width <= kInlineElements) return rows(gate_up, y, width, 0, num_tokens);
  ctx.pool->parallel_for(num_tokens, 8, [&](int64_t begin, int64_t end, int) { rows(gate_up, y, width, begin, end); });
}

}  // namespace vayu::ops
#endif
