// BF16 rows in device memory to FP8 rows with one scale a row (the scale rule of ActRows).
#pragma once

#include "ops/cuda/types.h"

namespace vayu::ops {

constexpr int64_t kMaxQuantizedCols = 16384;

struct QuantizeRowsArgs {
  const Bf16* x = nullptr;  // (num_rows, y.cols), rows x_stride elements apart
  int64_t x_stride = 0;     // a multiple of 8
  int64_t num_rows = 0;
  ActRows y;  // FP8, one scale a row; cols a multiple of 16, with one scale tried at most kMaxQuantizedCols
  // Scales tried for each row, 1 or kScaleSteps: the rule's times 2^(i / kScaleSteps), i ascending from 0. The one
  // whose row has the least sum of squared errors is taken, the first of equals. Searching lowers the error of weights,
  // whose rows have few large elements, and takes about ten times as long.
  int32_t scale_steps = 1;
};

constexpr int32_t kScaleSteps = 16;
// 2^(1/16). Factor i is the product of i of these in float, so that host and device try the same.
constexpr float kScaleStep = 1.0442737824274138f;

void quantize_rows_ref(const QuantizeRowsArgs& args);  // host pointers
void quantize_rows_cuda(CudaStream stream, const QuantizeRowsArgs& args);

}  // namespace vayu::ops
