#include "ops/moe/combine.h"

namespace vayu::ops {

void combine_experts_ref(const CombineArgs& args) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    for (int64_t i = 0; i < args.hidden; ++i) {
      double sum = 0;
      for (int32_t j = 0; j < args.top_k; ++j) {
        const int64_t pair = t * args.top_k + j;
        sum += static_cast<double>(args.weights[pair]) * args.expert_out[pair * args.hidden + i];
      }
      args.y[t * args.hidden + i] += static_cast<float>(sum);
    }
  }
}

}  // namespace vayu::ops
