// Rows of a BF16 table by ids in device memory: y[i] = table[ids[i]]; an id outside the table gives a row of zeros.
#pragma once

#include "ops/cuda/types.h"

namespace vayu::ops {

struct GatherRowsArgs {
  const Bf16* table = nullptr;   // (table_rows, cols)
  const int32_t* ids = nullptr;  // (num_rows)
  Bf16* y = nullptr;             // (num_rows, cols)
  int64_t table_rows = 0;
  int64_t num_rows = 0;
  int64_t cols = 0;  // a multiple of 8
};

void gather_rows_ref(const GatherRowsArgs& args);  // host pointers
void gather_rows_cuda(CudaStream stream, const GatherRowsArgs& args);

}  // namespace vayu::ops
