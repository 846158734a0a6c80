// Router of a Mixture-of-Experts layer, in float from end to end: scores, choice, weights, and the order in which
// experts will read their rows. Sigmoid scores with a selection bias and group limits: DeepSeek-V3 technical report
// (2024), section 2.1.2; softmax scores: Shazeer et al., 2017.
//
//   s = score(x W^T)                     sigmoid, or softmax over the experts
//   b = s + bias                         for the choice only
//   groups: num_groups runs of num_experts / num_groups experts; a group's score is the sum of its two largest b; the
//           best groups_kept stay, the others are out (b = -inf)
//   chosen: the top_k largest b; on equal b the lowest index
//   w = s[chosen]; normalize: w /= sum(w) + 1e-20 (when top_k > 1); w *= scale
#pragma once

#include <cstdint>

#include "ops/context.h"

namespace vayu::ops {

enum class RouterScore : uint8_t { kSigmoid, kSoftmax };

struct RouterShape {
  int64_t hidden = 0;
  int32_t num_experts = 0;
  int32_t top_k = 0;        // <= num_experts
  int32_t num_groups = 1;   // divides num_experts
  int32_t groups_kept = 1;  // <= num_groups; groups_kept * num_experts / num_groups >= top_k
  RouterScore score = RouterScore::kSigmoid;
  bool normalize = true;
  float scale = 1.0f;
};

struct RouteArgs {
  RouterShape shape;
  const float* x = nullptr;       // (num_tokens, hidden)
  const float* weight = nullptr;  // (num_experts, hidden)
  const float* bias = nullptr;    // (num_experts) or null
  int64_t num_tokens = 0;
  int32_t* expert_ids = nullptr;    // (num_tokens, top_k) by falling b
  float* expert_weights = nullptr;  // (num_tokens, top_k)
  void* scratch = nullptr;          // route_scratch_bytes, 64-byte aligned
};

int64_t route_scratch_bytes(const OpContext& ctx, const RouterShape& shape, int64_t max_tokens);
// A token's result does not depend, to the last bit, on the other tokens, nor on threads. A row with a NaN gets the
// experts 0 .. top_k - 1 with NaN weights, so that whoever looks at the logits sees it.
void route(const OpContext& ctx, const RouteArgs& args);

// Rows grouped by expert: pair p = token * top_k + j is row p of the experts' outputs.
// expert_indptr: (num_experts + 1); expert_rows: (num_tokens * top_k) pairs, by expert, then ascending.
void group_by_expert(const int32_t* expert_ids, int64_t num_tokens, int32_t top_k, int32_t num_experts,
                     int32_t* expert_indptr, int32_t* expert_rows);

}  // namespace vayu::ops
