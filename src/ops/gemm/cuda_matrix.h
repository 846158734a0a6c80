// Weight matrices in device memory: BF16, or FP8 E4M3 with one scale a row, quantised while they are filled.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "ops/cuda/types.h"
#include "ops/gemm/matrix.h"

namespace vayu::ops {

struct CudaMatrixShape {
  bool f8 = false;  // else BF16
  int64_t cols = 0;
  // Gate over up, each this many rows (repeated: expert over expert), become the interleaved form of DeviceMatrix, ffn
  // padded with zero rows to a multiple of kScaleGroup; 0: rows stay in their order.
  int32_t gate_up_ffn = 0;
};

inline int64_t padded_ffn(int64_t ffn) { return (ffn + kScaleGroup - 1) / kScaleGroup * kScaleGroup; }

class CudaMatrix : public Matrix {
 public:
  // Parts in BF16. Columns are padded with zeros to a multiple of 16, or with pad_cols to one of kScaleGroup (the
  // down projection behind a padded gate-up). Errors: kResourceExhausted with the bytes.
  static Result<std::unique_ptr<Matrix>> create(const CudaMatrixShape& shape, bool pad_cols,
                                                std::span<const PartShape> parts);
  virtual const DeviceMatrix& view() const = 0;

 protected:
  using Matrix::Matrix;
};

// The device memory behind a matrix that CudaMatrix::create made.
const DeviceMatrix& device_view(const Matrix& matrix);

}  // namespace vayu::ops
