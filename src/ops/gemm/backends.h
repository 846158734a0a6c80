// What each backend of the matrix ops provides to matrix.cc and linear.cc, which have checked the arguments.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "ops/gemm/linear.h"
#include "ops/gemm/matrix.h"
#include "ops/moe/grouped_linear.h"

namespace vayu::ops {

std::unique_ptr<Matrix> reserve_matrix_ref(int64_t cols, std::span<const PartShape> parts);
void linear_ref(const LinearArgs& args);
void grouped_linear_ref(const GroupedLinearArgs& args);
void gather_rows_ref(const Matrix& table, const int32_t* ids, float* out, int64_t num_tokens);

std::unique_ptr<Matrix> reserve_matrix_cpu(int64_t cols, std::span<const PartShape> parts);
int64_t linear_scratch_bytes_cpu(int64_t max_tokens, int64_t max_cols);
void linear_cpu(ThreadPool& pool, const LinearArgs& args);
int64_t grouped_linear_scratch_bytes_cpu(int64_t max_rows, int64_t max_cols, int32_t max_groups);
void grouped_linear_cpu(ThreadPool& pool, const GroupedLinearArgs& args);
void gather_rows_cpu(ThreadPool& pool, const Matrix& table, const int32_t* ids, float* out, int64_t num_tokens);

}  // namespace vayu::ops
