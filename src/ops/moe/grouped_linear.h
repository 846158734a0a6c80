// One linear for each group of rows: y row = x row W[group]^T. Groups are experts, or heads of attention. Each group's
// weights are read once a call, and only those of groups that have rows.
#pragma once

#include <cstdint>

#include "ops/context.h"
#include "ops/gemm/matrix.h"

namespace vayu::ops {

struct GroupedLinearArgs {
  const Matrix* weight = nullptr;  // (num_groups * out, in); every group starts at a part of the matrix
  int32_t num_groups = 0;
  const int32_t* group_indptr = nullptr;  // (num_groups + 1) range of each group in the row lists
  const int32_t* x_rows = nullptr;        // (num_rows) row of x that each grouped row reads
  const int32_t* y_rows = nullptr;        // (num_rows) row of y that it writes; all different
  const float* x = nullptr;               // row r begins at x + r * x_stride and holds `in` floats
  int64_t x_stride = 0;
  float* y = nullptr;  // row r begins at y + r * y_stride and gets `out` floats
  int64_t y_stride = 0;
  void* scratch = nullptr;  // grouped_linear_scratch_bytes, 64-byte aligned
};

int64_t grouped_linear_scratch_bytes(const OpContext& ctx, int64_t max_rows, int64_t max_cols, int32_t max_groups);
// A row's result does not depend, to the last bit, on the other rows, nor on threads; with the same weights it equals
// that of linear().
void grouped_linear(const OpContext& ctx, const GroupedLinearArgs& args);

}  // namespace vayu::ops
