// Logits in tiles of four tokens by four experts, one accumulator a pair: each logit is the same chain of additions
// whatever stands beside it.
#include <algorithm>

#include "ops/cpu/thread_pool.h"
#include "ops/moe/route_select.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/moe/route_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vayu::ops {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kTile = 4;

template <int kTokens, int kExperts>
void logit_tile(const RouteArgs& args, int64_t token, int64_t expert, float* logits) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = hn::Lanes(d);
  const int64_t hidden = args.shape.hidden;
  const float* x = args.x + token * hidden;
  const float* w = args.weight + expert * hidden;
  hn::Vec<decltype(d)> sum[kTokens][kExperts];
  for (auto& row : sum) {
    for (auto& v : row) v = hn::Zero(d);
  }
  const auto add = [&](const auto& load, int64_t i) HWY_ATTR {
    hn::Vec<decltype(d)> ws[kExperts];
    for (int e = 0; e < kExperts; ++e) ws[e] = load(w + e * hidden + i);
    for (int t = 0; t < kTokens; ++t) {
      const auto xs = load(x + t * hidden + i);
      for (int e = 0; e < kExperts; ++e) sum[t][e] = hn::MulAdd(xs, ws[e], sum[t][e]);
    }
  };
  int64_t i = 0;
  for (; i + lanes <= hidden; i += lanes) add([&](const float* p) HWY_ATTR { return hn::LoadU(d, p); }, i);
  if (i < hidden) add([&](const float* p) HWY_ATTR { return load_tail(d, p, hidden - i); }, i);
  for (int t = 0; t < kTokens; ++t) {
    for (int e = 0; e < kExperts; ++e) {
      logits[(token + t) * args.shape.num_experts + expert + e] = hn::GetLane(hn::SumOfLanes(d, sum[t][e]));
    }
  }
}

// Tokens [first, last) against experts [begin, end).
void logit_block(const RouteArgs& args, int64_t first, int64_t last, int64_t begin, int64_t end, float* logits) {
  int64_t t = first;
  for (; t + kTile <= last; t += kTile) {
    int64_t e = begin;
    for (; e + kTile <= end; e += kTile) logit_tile<kTile, kTile>(args, t, e, logits);
    for (; e < end; ++e) logit_tile<kTile, 1>(args, t, e, logits);
  }
  for (; t < last; ++t) {
    int64_t e = begin;
    for (; e + kTile <= end; e += kTile) logit_tile<1, kTile>(args, t, e, logits);
    for (; e < end; ++e) logit_tile<1, 1>(args, t, e, logits);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace vayu::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vayu::ops {
HWY_EXPORT(logit_block);

void route_cpu(const OpContext& ctx, const RouteArgs& args) {
  constexpr int64_t kBlockTokens = 16;
  constexpr int64_t kBlockExperts = 16;
  const RouterShape& shape = args.shape;
  auto* logits = static_cast<float*>(args.scratch);
  float* choice = logits + args.num_tokens * shape.num_experts;
  const auto block = HWY_DYNAMIC_DISPATCH(logit_block);
  const int64_t expert_blocks = (shape.num_experts + kBlockExperts - 1) / kBlockExperts;
  const int64_t token_blocks = (args.num_tokens + kBlockTokens - 1) / kBlockTokens;
  ctx.pool->parallel_for(expert_blocks * token_blocks, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t token = i / expert_blocks * kBlockTokens;
      const int64_t expert = i % expert_blocks * kBlockExperts;
      block(args, token, std::min(token + kBlockTokens, args.num_tokens), expert,
            std::min<int64_t>(expert + kBlockExperts, shape.num_experts), logits);
    }
  });
  ctx.pool->parallel_for(args.num_tokens, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      select_experts(shape, args.bias, logits + t * shape.num_experts, choice + t * shape.num_experts,
                     args.expert_ids + t * shape.top_k, args.expert_weights + t * shape.top_k);
    }
  });
}

}  // namespace vayu::ops
#endif
