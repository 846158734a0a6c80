#include "ops/cpu/thread_pool.h"
#include "ops/moe/combine.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/moe/combine_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vayu::ops {
namespace HWY_NAMESPACE {
namespace {

void combine_tokens(const CombineArgs& args, int64_t begin, int64_t end) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t t = begin; t < end; ++t) {
    const float* weights = args.weights + t * args.top_k;
    const float* out = args.expert_out + t * args.top_k * args.hidden;
    float* y = args.y + t * args.hidden;
    const auto sum_at = [&](int64_t i, const auto& load) HWY_ATTR {
      auto sum = hn::Mul(hn::Set(d, weights[0]), load(out + i));
      for (int32_t j = 1; j < args.top_k; ++j) {
        sum = hn::MulAdd(hn::Set(d, weights[j]), load(out + j * args.hidden + i), sum);
      }
      return hn::Add(load(y + i), sum);
    };
    int64_t i = 0;
    for (; i + lanes <= args.hidden; i += lanes) {
      hn::StoreU(sum_at(i, [&](const float* p) HWY_ATTR { return hn::LoadU(d, p); }), d, y + i);
    }
    const int64_t rest = args.hidden - i;
    if (rest > 0) store_tail(sum_at(i, [&](const float* p) HWY_ATTR { return load_tail(d, p, rest); }), d, y + i, rest);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace vayu::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vayu::ops {
HWY_EXPORT(combine_tokens);

void combine_experts_cpu(const OpContext& ctx, const CombineArgs& args) {
  const auto combine = HWY_DYNAMIC_DISPATCH(combine_tokens);
  ctx.pool->parallel_for(args.num_tokens, 4, [&](int64_t begin, int64_t end, int) { combine(args, begin, end); });
}

}  // namespace vayu::ops
#endif
