#include "ops/moe/grouped_linear.h"

#include "base/check.h"
#include "ops/gemm/backends.h"

namespace vayu::ops {

int64_t grouped_linear_scratch_bytes(const OpContext& ctx, int64_t max_rows, int64_t max_cols, int32_t max_groups) {
  if (ctx.backend == Backend::kReference) return max_cols * static_cast<int64_t>(sizeof(float));
  return grouped_linear_scratch_bytes_cpu(max_rows, max_cols, max_groups);
}

void grouped_linear(const OpContext& ctx, const GroupedLinearArgs& args) {
  VAYU_CHECK(args.num_groups > 0 && args.weight->rows() % args.num_groups == 0, "{} rows in {} groups",
             args.weight->rows(), args.num_groups);
  if (ctx.backend == Backend::kReference) return grouped_linear_ref(args);
  grouped_linear_cpu(*ctx.pool, args);
}

}  // namespace vayu::ops
