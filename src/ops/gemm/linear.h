// y = x W^T. The CPU backend rounds the rows of x to 16 bits in blocks of 32 on the fly when W is quantised; its
// result for a row does not depend, to the last bit, on the other rows of the call, nor on threads.
#pragma once

#include <cstdint>

#include "ops/context.h"
#include "ops/gemm/matrix.h"

namespace vayu::ops {

struct LinearArgs {
  const Matrix* weight = nullptr;
  const float* x = nullptr;  // (num_tokens, weight->cols())
  float* y = nullptr;        // (num_tokens, weight->rows())
  int64_t num_tokens = 0;
  bool accumulate = false;  // y += instead of y =
  void* scratch = nullptr;  // linear_scratch_bytes(ctx, max num_tokens, max cols), 64-byte aligned
};

int64_t linear_scratch_bytes(const OpContext& ctx, int64_t max_tokens, int64_t max_cols);
void linear(const OpContext& ctx, const LinearArgs& args);

// out row i = row ids[i] of the table, as floats: embedding from the same memory a tied head multiplies from.
// ids: (num_tokens), each in [0, table.rows()); out: (num_tokens, table.cols()).
void gather_rows(const OpContext& ctx, const Matrix& table, const int32_t* ids, float* out, int64_t num_tokens);

}  // namespace vayu::ops
