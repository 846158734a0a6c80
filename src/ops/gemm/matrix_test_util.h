// Random matrices in any format, for the tests of whatever multiplies with them.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/data_format.h"
#include "ops/gemm/matrix.h"

namespace vayu::ops {

// Formats that are multiplied from; FP8 is converted at load.
inline std::vector<DataFormat> matrix_formats() {
  std::vector<DataFormat> formats;
  for (const FormatInfo& info : all_formats()) {
    if (info.ggml_type >= 0) formats.push_back(info.format);
  }
  return formats;
}

struct TestMatrix {
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<MatrixView> views;
  int64_t rows = 0;
};

template <class Random>
TestMatrix random_matrix(Random& random, std::span<const DataFormat> formats, std::span<const int64_t> rows,
                         int64_t cols) {
  TestMatrix m;
  std::normal_distribution<float> normal(0.1f, 1.0f);
  for (size_t i = 0; i < formats.size(); ++i) {
    std::vector<uint8_t>& bytes = m.bytes.emplace_back(rows[i] * row_bytes(formats[i], cols));
    std::vector<float> row(cols);
    for (int64_t r = 0; r < rows[i]; ++r) {
      for (float& v : row) v = normal(random);
      quantize_row(formats[i], row.data(), bytes.data() + r * row_bytes(formats[i], cols), cols);
    }
    m.rows += rows[i];
  }
  for (size_t i = 0; i < formats.size(); ++i) {
    m.views.push_back({m.bytes[i].data(), formats[i], rows[i], cols, "part" + std::to_string(i)});
  }
  return m;
}

}  // namespace vayu::ops
