// Residual add, RMS norm and quantisation of rows in device memory, one pass:
//   s = bf16(residual + delta);  residual = s;  y = s / sqrt(mean(s^2) + eps) * weight   (Zhang and Sennrich, 2019)
// The sum is rounded to BF16 before it is normed, so that the residual alone defines everything behind it. Norm in
// float. A row whose sum of squares is not finite becomes NaN, all of it; no other row does.
#pragma once

#include <cstdint>

#include "ops/cuda/types.h"

namespace vayu::ops {

constexpr int64_t kMaxNormHidden = 16384;

struct AddNormArgs {
  Bf16* residual = nullptr;          // (num_tokens, hidden); updated in place when there is a delta and no row_ids
  const Bf16* delta = nullptr;       // (num_tokens, hidden) or null: nothing is added
  const int32_t* row_ids = nullptr;  // (num_rows) or null: row i of y comes from token row_ids[i] and the residual is
                                     // left alone; a negative id gives a row of zeros
  const float* weight = nullptr;     // (hidden)
  float eps = 1e-6f;
  int64_t num_rows = 0;    // num_tokens when row_ids is null
  int64_t hidden = 0;      // a multiple of 8, at most kMaxNormHidden
  ActRows y;               // (num_rows, hidden) BF16, or FP8 with one scale a row
  Bf16* y_bf16 = nullptr;  // (num_rows, hidden) or null: y once more, rounded to BF16 (the router's input)
};

void add_norm_ref(const AddNormArgs& args);  // host pointers
void add_norm_cuda(CudaStream stream, const AddNormArgs& args);

}  // namespace vayu::ops
