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
  std::vector<uint8_t> bytes;  // (rows, row_bytes(format, cols))
};

class ReferenceMatrix : public Matrix {
 public:
  ReferenceMatrix(int64_t rows, int64_t cols, std::vector<Part> parts) : Matrix(rows, cols), parts_(std::move(parts)) {}

  int64_t bytes() const override {
    int64_t sum = 0;
    for (const Part& part : parts_) sum += static_cast<int64_t>(part.bytes.size());
    return sum;
  }

  void expand_row(int64_t row, float* out) const {
    for (const Part& part : parts_) {
      if (row < part.first_row + part.rows) {
        const int64_t offset = (row - part.first_row) * row_bytes(part.format, cols_);
        dequantize_row(part.format, part.bytes.data() + offset, out, cols_);
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

std::unique_ptr<Matrix> pack_matrix_ref(std::span<const MatrixView> parts) {
  std::vector<Part> kept;
  int64_t rows = 0;
  for (const MatrixView& view : parts) {
    const auto* bytes = static_cast<const uint8_t*>(view.data);
    kept.push_back({view.format, rows, view.rows, {bytes, bytes + view.rows * row_bytes(view.format, view.cols)}});
    rows += view.rows;
  }
  return std::make_unique<ReferenceMatrix>(rows, parts.front().cols, std::move(kept));
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

void gather_rows_ref(const Matrix& table, const int32_t* ids, float* out, int64_t num_tokens) {
  const ReferenceMatrix& reference = as_reference(table);
  for (int64_t token = 0; token < num_tokens; ++token) reference.expand_row(ids[token], out + token * table.cols());
}

}  // namespace vayu::ops
