#include "ops/gemm/matrix.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "ops/cpu/thread_pool.h"
#include "ops/gemm/backends.h"

namespace vayu::ops {
namespace {

Status check_part(const PartShape& part, int64_t cols) {
  const FormatInfo& info = format_info(part.format);
  if (part.rows <= 0 || cols <= 0) {
    return field_error(part.name, "tensor {}: shape ({}, {}) is empty", part.name, part.rows, cols);
  }
  if (info.ggml_type < 0) {
    return Error{ErrorKind::kUnsupported,
                 fmt::format("tensor {}: {} is not multiplied from here", part.name, info.name), part.name};
  }
  if (cols % info.block_size != 0) {
    return field_error(part.name, "tensor {}: {} columns are not whole {} blocks of {}", part.name, cols, info.name,
                       info.block_size);
  }
  return {};
}

}  // namespace

void Matrix::fill_scaled(size_t, int64_t, int64_t, const void*, const float*) {
  VAYU_CHECK(false, "no scales beside the rows in this backend");
}

Result<std::unique_ptr<Matrix>> reserve_matrix(const OpContext& ctx, int64_t cols, std::span<const PartShape> parts) {
  VAYU_CHECK(!parts.empty(), "a matrix of no parts");
  for (const PartShape& part : parts) VAYU_RETURN_IF_ERROR(check_part(part, cols));
  return ctx.backend == Backend::kReference ? reserve_matrix_ref(cols, parts) : reserve_matrix_cpu(cols, parts);
}

Result<std::unique_ptr<Matrix>> pack_matrix(const OpContext& ctx, std::span<const MatrixView> views) {
  VAYU_CHECK(!views.empty(), "a matrix of no parts");
  const int64_t cols = views.front().cols;
  std::vector<PartShape> shapes;
  for (const MatrixView& view : views) {
    if (view.cols != cols) {
      return field_error(view.name, "tensor {}: {} columns, but {} stacked above it has {}", view.name, view.cols,
                         views.front().name, cols);
    }
    if (!view.data) return field_error(view.name, "tensor {}: no data", view.name);
    shapes.push_back({view.format, view.rows, view.name});
  }
  VAYU_ASSIGN_OR_RETURN(auto matrix, reserve_matrix(ctx, cols, shapes));
  for (size_t i = 0; i < views.size(); ++i) {
    if (!ctx.pool) {
      matrix->fill(i, 0, views[i].rows, views[i].data);
      continue;
    }
    const int64_t stride = row_bytes(views[i].format, cols);
    ctx.pool->parallel_for((views[i].rows + kFillRows - 1) / kFillRows, 4, [&](int64_t begin, int64_t end, int) {
      const int64_t first = begin * kFillRows;
      matrix->fill(i, first, std::min(end * kFillRows, views[i].rows) - first,
                   static_cast<const std::byte*>(views[i].data) + first * stride);
    });
  }
  return matrix;
}

}  // namespace vayu::ops
