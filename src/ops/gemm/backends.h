// What each backend of the matrix ops provides to matrix.cc and linear.cc, which have checked the arguments.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "ops/gemm/linear.h"
#include "ops/gemm/matrix.h"

namespace vayu::ops {

std::unique_ptr<Matrix> pack_matrix_ref(std::span<const MatrixView> parts);
void linear_ref(const LinearArgs& args);
void gather_rows_ref(const Matrix& table, const int32_t* ids, float* out, int64_t num_tokens);

std::unique_ptr<Matrix> pack_matrix_cpu(ThreadPool& pool, std::span<const MatrixView> parts);
int64_t linear_scratch_bytes_cpu(int64_t max_tokens, int64_t max_cols);
void linear_cpu(ThreadPool& pool, const LinearArgs& args);
void gather_rows_cpu(ThreadPool& pool, const Matrix& table, const int32_t* ids, float* out, int64_t num_tokens);

}  // namespace vayu::ops
