#include "ops/moe/route.h"

#include <algorithm>

#include "base/check.h"

namespace vayu::ops {

void route_ref(const RouteArgs& args);  // route_ref.cc
void route_cpu(const OpContext& ctx, const RouteArgs& args);

int64_t route_scratch_bytes(const OpContext&, const RouterShape& shape, int64_t max_tokens) {
  return 2 * max_tokens * shape.num_experts * static_cast<int64_t>(sizeof(float));  // logits, choice
}

void route(const OpContext& ctx, const RouteArgs& args) {
  const RouterShape& shape = args.shape;
  if (args.num_tokens == 0) return;
  VAYU_CHECK(shape.top_k > 0 && shape.top_k <= shape.num_experts, "{} of {} experts", shape.top_k, shape.num_experts);
  VAYU_CHECK(shape.num_groups > 0 && shape.num_groups <= 1024 && shape.num_experts % shape.num_groups == 0 &&
                 shape.groups_kept * (shape.num_experts / shape.num_groups) >= shape.top_k,
             "{} of {} groups", shape.groups_kept, shape.num_groups);
  VAYU_CHECK(args.x && args.weight && args.expert_ids && args.expert_weights && args.scratch, "null pointer");
  ctx.backend == Backend::kReference ? route_ref(args) : route_cpu(ctx, args);
}

void group_by_expert(const int32_t* expert_ids, int64_t num_tokens, int32_t top_k, int32_t num_experts,
                     int32_t* expert_indptr, int32_t* expert_rows) {
  const int64_t pairs = num_tokens * top_k;
  std::fill_n(expert_indptr, num_experts + 1, 0);
  for (int64_t p = 0; p < pairs; ++p) ++expert_indptr[expert_ids[p] + 1];
  for (int32_t e = 0; e < num_experts; ++e) expert_indptr[e + 1] += expert_indptr[e];
  // Each range's begin serves as its cursor, which leaves it at the next range's begin: shifted back afterwards.
  for (int64_t p = 0; p < pairs; ++p) expert_rows[expert_indptr[expert_ids[p]]++] = static_cast<int32_t>(p);
  for (int32_t e = num_experts; e > 0; --e) expert_indptr[e] = expert_indptr[e - 1];
  expert_indptr[0] = 0;
}

}  // namespace vayu::ops
