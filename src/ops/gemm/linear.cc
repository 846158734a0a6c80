#include "ops/gemm/linear.h"

#include "base/check.h"
#include "ops/gemm/backends.h"

namespace vayu::ops {

int64_t linear_scratch_bytes(const OpContext& ctx, int64_t max_tokens, int64_t max_cols) {
  if (ctx.backend == Backend::kCpu) return linear_scratch_bytes_cpu(max_tokens, max_cols);
  return max_cols * static_cast<int64_t>(sizeof(float));
}

void linear(const OpContext& ctx, const LinearArgs& args) {
  if (args.num_tokens == 0) return;
  VAYU_CHECK(args.weight && args.x && args.y && args.scratch && args.num_tokens > 0, "linear of {} tokens",
             args.num_tokens);
  ctx.backend == Backend::kCpu ? linear_cpu(*ctx.pool, args) : linear_ref(args);
}

void gather_rows(const OpContext& ctx, const Matrix& table, const int32_t* ids, float* out, int64_t num_tokens) {
  for (int64_t i = 0; i < num_tokens; ++i) {
    VAYU_CHECK(ids[i] >= 0 && ids[i] < table.rows(), "row {} of a table of {}", ids[i], table.rows());
  }
  ctx.backend == Backend::kCpu ? gather_rows_cpu(*ctx.pool, table, ids, out, num_tokens)
                               : gather_rows_ref(table, ids, out, num_tokens);
}

}  // namespace vayu::ops
