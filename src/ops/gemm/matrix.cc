#include "ops/gemm/matrix.h"

#include "ops/gemm/backends.h"

namespace vayu::ops {
namespace {

Status check_part(const MatrixView& part, const MatrixView& first) {
  const FormatInfo& info = format_info(part.format);
  if (part.rows <= 0 || part.cols <= 0 || part.data == nullptr) {
    return field_error(part.name, "tensor {}: shape ({}, {}) is empty", part.name, part.rows, part.cols);
  }
  if (part.cols % info.block_size != 0) {
    return field_error(part.name, "tensor {}: {} columns are not whole {} blocks of {}", part.name, part.cols,
                       info.name, info.block_size);
  }
  if (part.cols != first.cols) {
    return field_error(part.name, "tensor {}: {} columns, but {} stacked above it has {}", part.name, part.cols,
                       first.name, first.cols);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Matrix>> pack_matrix(const OpContext& ctx, std::span<const MatrixView> parts) {
  VAYU_CHECK(!parts.empty(), "a matrix of no parts");
  for (const MatrixView& part : parts) VAYU_RETURN_IF_ERROR(check_part(part, parts.front()));
  return ctx.backend == Backend::kReference ? pack_matrix_ref(parts) : pack_matrix_cpu(*ctx.pool, parts);
}

}  // namespace vayu::ops
