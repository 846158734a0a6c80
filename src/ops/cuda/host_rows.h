// Rows of the device formats read and written in host memory: what the plain references of the CUDA ops are made of.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/cuda/types.h"

namespace vayu::ops {

float host_float(Bf16 v);
float host_float(F8E4M3 v);
Bf16 host_bf16(float v);  // round to nearest even

std::vector<float> host_row(const ActRows& rows, int64_t row);                            // scales applied
void store_host_row(const ActRows& rows, int64_t row, const std::vector<float>& values);  // by the rule of ActRows
std::vector<float> host_weight_row(const DeviceMatrix& matrix, int64_t row);              // scales applied
double host_dot(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace vayu::ops
