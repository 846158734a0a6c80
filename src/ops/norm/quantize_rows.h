// BF16 rows in device memory to FP8 rows with one scale a row (the scale rule of ActRows).
#pragma once

#include "ops/cuda/types.h"

namespace vayu::ops {

struct QuantizeRowsArgs {
  const Bf16* x = nullptr;  // (num_rows, y.cols), rows x_stride elements apart
  int64_t x_stride = 0;     // a multiple of 8
  int64_t num_rows = 0;
  ActRows y;  // FP8, one scale a row; cols a multiple of 16, at most 16384
};

void quantize_rows_ref(const QuantizeRowsArgs& args);  // host pointers
void quantize_rows_cuda(CudaStream stream, const QuantizeRowsArgs& args);

}  // namespace vayu::ops
