#include "ops/gemm/linear.h"

#include "ops/gemm/backends.h"

namespace vayu::ops {

int64_t linear_scratch_bytes(const OpContext& ctx, int64_t max_tokens, int64_t max_cols) {
  return max_cols * static_cast<int64_t>(sizeof(float));
}

void linear(const OpContext& ctx, const LinearArgs& args) { linear_ref(args); }

void gather_rows(const OpContext& ctx, const Matrix& table, const int32_t* ids, float* out, int64_t num_tokens) {
  gather_rows_ref(table, ids, out, num_tokens);
}

}  // namespace vayu::ops
