// Rows of a BF16 table by ids in device memory: y[i] = table[id], id = ids[i], or prev_tokens[prev_index[i]] where
// prev_index[i] >= 0. An id outside the table gives a row of zeros.
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
  // Ids that an earlier step sampled and the host does not know: both or neither.
  const int32_t* prev_index = nullptr;   // (num_rows)
  const int32_t* prev_tokens = nullptr;  // as many as prev_index reaches
};

void gather_rows_ref(const GatherRowsArgs& args);  // host pointers
void gather_rows_cuda(CudaStream stream, const GatherRowsArgs& args);

}  // namespace vayu::ops
