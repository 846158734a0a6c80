// The definition: logits in double, rounded once to float.
#include "ops/moe/route_select.h"

namespace vayu::ops {

void route_ref(const RouteArgs& args) {
  const RouterShape& shape = args.shape;
  auto* logits = static_cast<float*>(args.scratch);
  float* choice = logits + shape.num_experts;
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    const float* x = args.x + t * shape.hidden;
    for (int32_t e = 0; e < shape.num_experts; ++e) {
      const float* w = args.weight + e * shape.hidden;
      double sum = 0;
      for (int64_t i = 0; i < shape.hidden; ++i) sum += static_cast<double>(x[i]) * w[i];
      logits[e] = static_cast<float>(sum);
    }
    select_experts(shape, args.bias, logits, choice, args.expert_ids + t * shape.top_k,
                   args.expert_weights + t * shape.top_k);
  }
}

}  // namespace vayu::ops
