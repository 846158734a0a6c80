// The definition: the file's bytes, expanded a row at a time, and a dot product in double.
#include <cstring>
#include <vector>

#include "base/check.h"
#include "ops/gemm/backends.h"

namespace vayu::ops {
namespace {

struct Part {
  DataFormat format;
  int64_t first_row;
  int64_t rows;
  std::unique_ptr<uint8_t[]> bytes;  // (rows, row_bytes(format, cols))
};

class ReferenceMatrix : public Matrix {
 public:
  ReferenceMatrix(int64_t rows, int64_t cols, std::vector<Part> parts) : Matrix(rows, cols), parts_(std::move(parts)) {}

  int64_t bytes() const override {
    int64_t sum = 0;
    for (const Part& part : parts_) sum += part.rows * row_bytes(part.format, cols_);
    return sum;
  }

  void fill(size_t part, int64_t first_row, int64_t num_rows, const void* data) override {
    const int64_t stride = row_bytes(parts_[part].format, cols_);
    std::memcpy(parts_[part].bytes.get() + first_row * stride, data, num_rows * stride);
  }

  void expand_row(int64_t row, float* out) const {
    for (const Part& part : parts_) {
      if (row < part.first_row + part.rows) {
        const int64_t offset = (row - part.first_row) * row_bytes(part.format, cols_);
        dequantize_row(part.format, part.bytes.get() + offset, out, cols_);
        return;
      }
    }
    VAYU_CHECK(false, "row {} of {}", row, rows_);
  }

 private:
  std::vector<Part> parts_;
};

const ReferenceMatrix& as_reference(const Matrix& matrix) {
  const auto* reference = dynamic_cast<const ReferenceMatrix*>(&matrix);
  VAYU_CHECK(reference != nullptr, "matrix was packed for another backend");
  return *reference;
}

}  // namespace

std::unique_ptr<Matrix> reserve_matrix_ref(int64_t cols, std::span<const PartShape> shapes) {
  std::vector<Part> parts;
  int64_t rows = 0;
  for (const PartShape& shape : shapes) {
    std::unique_ptr<uint8_t[]> bytes(new uint8_t[shape.rows * row_bytes(shape.format, cols)]);
    parts.push_back({shape.format, rows, shape.rows, std::move(bytes)});
    rows += shape.rows;
  }
  return std::make_unique<ReferenceMatrix>(rows, cols, std::move(parts));
}

void linear_ref(const LinearArgs& args) {
  const ReferenceMatrix& weight = as_reference(*args.weight);
  const int64_t rows = weight.rows();
  const int64_t cols = weight.cols();
  auto* w = static_cast<float*>(args.scratch);  // (cols)
  for (int64_t row = 0; row < rows; ++row) {
    weight.expand_row(row, w);
    for (int64_t token = 0; token < args.num_tokens; ++token) {
      const float* x = args.x + token * cols;
      double dot = 0;
      for (int64_t col = 0; col < cols; ++col) dot += static_cast<double>(x[col]) * w[col];
      float& y = args.y[token * rows + row];
      y = args.accumulate ? y + static_cast<float>(dot) : static_cast<float>(dot);
    }
  }
}

void grouped_linear_ref(const GroupedLinearArgs& args) {
  const ReferenceMatrix& weight = as_reference(*args.weight);
  const int64_t outputs = weight.rows() / args.num_groups;
  auto* w = static_cast<float*>(args.scratch);  // (cols)
  for (int32_t group = 0; group < args.num_groups; ++group) {
    for (int64_t out = 0; out < outputs; ++out) {
      weight.expand_row(group * outputs + out, w);
      for (int32_t i = args.group_indptr[group]; i < args.group_indptr[group + 1]; ++i) {
        const float* x = args.x + args.x_rows[i] * args.x_stride;
        double dot = 0;
        for (int64_t col = 0; col < weight.cols(); ++col) dot += static_cast<double>(x[col]) * w[col];
        args.y[args.y_rows[i] * args.y_stride + out] = static_cast<float>(dot);
      }
    }
  }
}

void gather_rows_ref(const Matrix& table, const int32_t* ids, float* out, int64_t num_tokens) {
  const ReferenceMatrix& reference = as_reference(table);
  for (int64_t token = 0; token < num_tokens; ++token) reference.expand_row(ids[token], out + token * table.cols());
}

}  // namespace vayu::ops
