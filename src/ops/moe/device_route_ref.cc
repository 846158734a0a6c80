// The definition of device_route: every step in plain loops, logits in double.
#include <bit>
#include <cmath>
#include <vector>

#include "ops/moe/device_route.h"
#include "ops/moe/route_select.h"

namespace vayu::ops {
namespace {

float value_of(Bf16 v) { return std::bit_cast<float>(uint32_t{v.bits} << 16); }

std::vector<double> joined_weights(const DeviceRouteArgs& args) {
  const RouterShape& shape = args.shape;
  std::vector<double> weight(shape.num_experts * shape.hidden);
  for (int32_t e = 0; e < shape.num_experts; ++e) {
    for (int64_t k = 0; k < shape.hidden; ++k) {
      weight[e * shape.hidden + k] = joined_router_weight(args.weight, shape.hidden, shape.num_experts, e, k);
    }
  }
  return weight;
}

// Rows by expert, then token; padding behind them.
void group_rows(const DeviceRouteArgs& args) {
  const int32_t pairs = args.num_tokens * args.shape.top_k;
  int32_t row = 0;
  for (int32_t e = 0; e < args.shape.num_experts; ++e) {
    args.expert_indptr[e] = row;
    for (int32_t p = 0; p < pairs; ++p) {
      if (args.expert_ids[p] != e) continue;
      args.sorted_tokens[row] = p / args.shape.top_k;
      args.pair_position[p] = row++;
    }
  }
  args.expert_indptr[args.shape.num_experts] = row;
  for (; row < pairs; ++row) args.sorted_tokens[row] = 0;
}

}  // namespace

void device_route_ref(const DeviceRouteArgs& args) {
  const RouterShape& shape = args.shape;
  const std::vector<double> weight = joined_weights(args);
  std::vector<float> logits(shape.num_experts);
  std::vector<float> choice(shape.num_experts);
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    int32_t* ids = args.expert_ids + t * shape.top_k;
    float* weights = args.expert_weights + t * shape.top_k;
    if (args.num_valid_tokens && t >= *args.num_valid_tokens) {
      for (int32_t j = 0; j < shape.top_k; ++j) {
        ids[j] = -1;
        weights[j] = 0;
        args.pair_position[t * shape.top_k + j] = 0;
      }
      continue;
    }
    for (int32_t e = 0; e < shape.num_experts; ++e) {
      double sum = 0;
      for (int64_t k = 0; k < shape.hidden; ++k) {
        sum += value_of(args.x[t * shape.hidden + k]) * weight[e * shape.hidden + k];
      }
      logits[e] = static_cast<float>(sum);
    }
    select_experts(shape, args.bias, logits.data(), choice.data(), ids, weights);
  }
  group_rows(args);
}

}  // namespace vayu::ops
