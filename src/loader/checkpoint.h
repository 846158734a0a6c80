// A checkpoint as a model sees it: named tensors, and how to read rows of them. A GGUF file, a safetensors folder and
// seeded random weights are all one. Immutable after open; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/data_format.h"
#include "base/result.h"

namespace vayu::ops {
struct SeededRows;  // ops/gemm/seeded_rows.h
}

namespace vayu::loader {

class Fp8Scales;  // loader/fp8_scales.h

struct CheckpointTensor {
  std::string name;
  std::vector<int64_t> shape;  // outermost first: a (out, in) matrix is {out, in}
  DataFormat format = DataFormat::kF32;
  int64_t bytes = 0;

  int64_t cols() const { return shape.empty() ? 1 : shape.back(); }
  int64_t rows() const {  // of the tensor seen as a matrix: all dimensions but the last
    int64_t n = 1;
    for (size_t i = 0; i + 1 < shape.size(); ++i) n *= shape[i];
    return n;
  }
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  virtual const std::string& path() const = 0;  // for messages
  // Weights only: the scales of quantised tensors belong to their tensor and are not listed.
  virtual std::span<const CheckpointTensor> tensors() const = 0;
  virtual const CheckpointTensor* find_tensor(std::string_view name) const = 0;  // null when absent

  // Rows [first_row, first_row + num_rows) as stored: num_rows * row_bytes(format, cols) bytes to dst, by an ordinary
  // read: a file that was cut since open is an error (kIo), never a signal.
  virtual Status read_rows(const CheckpointTensor& tensor, int64_t first_row, int64_t num_rows,
                           std::byte* dst) const = 0;
  // The same as floats, with the scales of FP8 tensors applied. dst: (num_rows, cols). staging: num_rows *
  // row_bytes(format, cols) bytes, where the stored form passes through.
  virtual Status read_floats(const CheckpointTensor& tensor, int64_t first_row, int64_t num_rows, std::byte* staging,
                             float* dst) const;
  // The scales of FP8 codes, which read_rows leaves out and read_floats applies; null: the codes are the values.
  virtual const Fp8Scales* scales(const CheckpointTensor& tensor) const { return nullptr; }
  bool has_scales(const CheckpointTensor& tensor) const { return scales(tensor) != nullptr; }

  // The rule that gives a tensor's values, when one does: whoever can, makes them in place. Element 0 is the tensor's.
  virtual const ops::SeededRows* seeded(const CheckpointTensor& tensor) const { return nullptr; }

  // kIo when a file's size or time of change differs from what open saw: ask once after the last read.
  virtual Status check_unchanged() const = 0;
};

}  // namespace vayu::loader
