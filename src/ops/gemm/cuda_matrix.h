// Weight matrices in device memory: BF16, or FP8 E4M3 whose rows arrive either in BF16 and are quantised with one scale
// a row, or as the codes and scales of a checkpoint.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/result.h"
#include "ops/cuda/device.h"
#include "ops/cuda/types.h"
#include "ops/gemm/matrix.h"

namespace vayu::ops {

struct CudaMatrixShape {
  WeightScale scale = WeightScale::kNone;
  int64_t cols = 0;
  // Gate over up, each this many rows (repeated: expert over expert), become the interleaved form of DeviceMatrix, ffn
  // padded with zero rows to a multiple of kScaleGroup; 0: rows stay in their order.
  int32_t gate_up_ffn = 0;
  // Columns are padded with zeros to a multiple of 16, or with pad_cols to one of kScaleGroup (the down projection
  // behind a padded gate-up).
  bool pad_cols = false;
};

inline int64_t padded_ffn(int64_t ffn) { return (ffn + kScaleGroup - 1) / kScaleGroup * kScaleGroup; }

// Where the rows of a stack lie in the device's matrix.
struct MatrixPlaces {
  int64_t rows = 0;  // of the stack
  int64_t ffn = 0;   // gate_up_ffn

  int64_t device_rows() const { return ffn == 0 ? rows : rows / ffn * padded_ffn(ffn); }
  int64_t of(int64_t row) const {
    if (ffn == 0) return row;
    const int64_t pair = row / (2 * ffn), inner = row % (2 * ffn);
    const int64_t output = inner % ffn;
    return pair * 2 * padded_ffn(ffn) + output / kGateUpInterleave * 2 * kGateUpInterleave +
           output % kGateUpInterleave + (inner >= ffn ? kGateUpInterleave : 0);
  }
  // How many rows from this one on lie one behind the other there too.
  int64_t run(int64_t row) const {
    if (ffn == 0) return rows - row;
    const int64_t output = row % ffn;
    return std::min<int64_t>(kGateUpInterleave - output % kGateUpInterleave, ffn - output);
  }
};

// The device's matrix for a stack of `rows` rows, without its memory; and the memory it takes.
inline DeviceMatrix device_matrix_shape(const CudaMatrixShape& shape, int64_t rows) {
  const int64_t unit = shape.pad_cols ? kScaleGroup : 16;
  DeviceMatrix matrix;
  matrix.scale = shape.scale;
  matrix.rows = MatrixPlaces{rows, shape.gate_up_ffn}.device_rows();
  matrix.cols = (shape.cols + unit - 1) / unit * unit;
  return matrix;
}
inline int64_t device_matrix_bytes(const CudaMatrixShape& shape, int64_t rows) {
  const DeviceMatrix matrix = device_matrix_shape(shape, rows);
  return matrix.rows * matrix.row_bytes() + matrix.num_scales() * int64_t{sizeof(float)};
}

// What rows go through on their way into matrices: places that the threads which fill them take in turn. All is taken
// when it is made, so that filling cannot fail for want of memory. What else fails on the way, as where the device is
// lost, is kept here: Matrix::fill has no result.
class WeightStaging {
 public:
  static constexpr int64_t kPlaceBytes = int64_t{8} << 20;  // of device memory, and as much pinned memory
  struct Place {
    CudaStream stream = nullptr;
    DeviceMemory host, device;  // pinned rows as they arrive, and BF16 rows before they are quantised
  };
  static Result<std::unique_ptr<WeightStaging>> create(int32_t num_places);  // kResourceExhausted with the bytes
  WeightStaging() = default;
  WeightStaging(const WeightStaging&) = delete;
  WeightStaging& operator=(const WeightStaging&) = delete;
  ~WeightStaging();

  void keep(Status outcome);  // the first failure stays
  Status failure() const;     // ok: all rows are in place

  // A place for as long as this lives; waits until one is free.
  class Lease {
   public:
    explicit Lease(WeightStaging& staging) : staging_(staging), place_(staging.take()) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() { staging_.give_back(place_); }
    const Place& operator*() const { return *place_; }

   private:
    WeightStaging& staging_;
    const Place* place_;
  };

 private:
  const Place* take();
  void give_back(const Place* place);

  std::vector<Place> places_;
  mutable std::mutex mutex_;
  Status failure_;
  std::condition_variable freed_;
  std::vector<const Place*> free_;
};

class CudaMatrix : public Matrix {
 public:
  // Parts in BF16, of a matrix in FP8 with a scale a row quantised as they come; or in E4M3, filled with fill_scaled
  // (blocks: all parts, their 64-row blocks whole in the device's matrix; cols a multiple of kScaleGroup).
  // `staging` must live until the matrix is filled, and says whether that failed; null: the matrix has one of its own,
  // and a failure ends the process.
  // Errors: kResourceExhausted with the bytes.
  static Result<std::unique_ptr<Matrix>> create(const CudaMatrixShape& shape, std::span<const PartShape> parts,
                                                WeightStaging* staging = nullptr);
  virtual const DeviceMatrix& view() const = 0;

 protected:
  using Matrix::Matrix;
};

// The device memory behind a matrix that CudaMatrix::create made.
const DeviceMatrix& device_view(const Matrix& matrix);

}  // namespace vayu::ops
