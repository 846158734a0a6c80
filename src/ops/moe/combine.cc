#include "ops/moe/combine.h"

#include "base/check.h"

namespace vayu::ops {

void combine_experts_ref(const CombineArgs& args);  // combine_ref.cc
void combine_experts_cpu(const OpContext& ctx, const CombineArgs& args);

void combine_experts(const OpContext& ctx, const CombineArgs& args) {
  if (args.num_tokens == 0) return;
  VAYU_CHECK(args.expert_out && args.weights && args.y && args.top_k > 0 && args.hidden > 0, "nothing to combine");
  ctx.backend == Backend::kReference ? combine_experts_ref(args) : combine_experts_cpu(ctx, args);
}

}  // namespace vayu::ops
