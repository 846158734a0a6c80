// A checkpoint with chosen matrices in FP8, made from another one in memory: for tests.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "loader/checkpoint.h"
#include "loader/fp8_scales.h"

namespace vayu::model::testing {

// What a matrix is stored as: E4M3 (or another format, without scales) with a scale a tensor, a row or a block.
struct Recast {
  enum class Scales : uint8_t { kTensor, kRow, kBlock };
  DataFormat format = DataFormat::kBF16;
  Scales scales = Scales::kRow;
  loader::ScaleBlocks blocks;
};

inline Recast recast_f8(Recast::Scales scales) { return {DataFormat::kF8E4M3, scales, {}}; }

class F8Checkpoint final : public loader::Checkpoint {
 public:
  using Choice = std::function<Recast(const loader::CheckpointTensor&)>;

  // Scales are powers of two, and the largest element under each becomes 448: the values are exact in BF16, and the
  // rule for FP8 by row finds the same codes in them again. Vectors stay floats. exact_values: matrices hold the values
  // of those in FP8, as floats.
  F8Checkpoint(const loader::Checkpoint& source, const Choice& choose, bool exact_values = false)
      : path_(source.path()) {
    for (const loader::CheckpointTensor& tensor : source.tensors()) {
      Stored stored;
      tensors_.push_back(tensor);
      std::vector<float> values(tensor.rows() * tensor.cols());
      std::vector<std::byte> staging(tensor.bytes);
      const Status read = source.read_floats(tensor, 0, tensor.rows(), staging.data(), values.data());
      VAYU_CHECK(read.ok(), "{}", tensor.name);
      const Recast recast = tensor.shape.size() < 2 ? Recast{DataFormat::kF32, {}, {}} : choose(tensor);
      DataFormat format = recast.format;
      const bool f8 = format == DataFormat::kF8E4M3 || format == DataFormat::kF8E5M2;
      if (f8) scale_down(tensor, recast, values, stored.scales);
      store(format, tensor, values, stored.bytes);
      if (f8 && exact_values) {
        for (int64_t r = 0; r < tensor.rows(); ++r) {
          dequantize_row(format, &stored.bytes[r * tensor.cols()], &values[r * tensor.cols()], tensor.cols());
        }
        stored.scales.apply(0, tensor.rows(), tensor.cols(), values.data());
        stored.scales = {};
        format = DataFormat::kF32;
        store(format, tensor, values, stored.bytes);
      }
      tensors_.back().format = format;
      tensors_.back().bytes = static_cast<int64_t>(stored.bytes.size());
      stored_.push_back(std::move(stored));
    }
    for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
  }

  const std::string& path() const override { return path_; }
  std::span<const loader::CheckpointTensor> tensors() const override { return tensors_; }
  const loader::CheckpointTensor* find_tensor(std::string_view name) const override {
    const auto found = index_.find(std::string(name));
    return found == index_.end() ? nullptr : &tensors_[found->second];
  }
  Status read_rows(const loader::CheckpointTensor& tensor, int64_t first_row, int64_t num_rows,
                   std::byte* dst) const override {
    const int64_t stride = row_bytes(tensor.format, tensor.cols());
    std::memcpy(dst, of(tensor).bytes.data() + first_row * stride, num_rows * stride);
    return {};
  }
  Status read_floats(const loader::CheckpointTensor& tensor, int64_t first_row, int64_t num_rows, std::byte* staging,
                     float* dst) const override {
    VAYU_RETURN_IF_ERROR(Checkpoint::read_floats(tensor, first_row, num_rows, staging, dst));
    if (const loader::Fp8Scales* found = scales(tensor)) found->apply(first_row, num_rows, tensor.cols(), dst);
    return {};
  }
  const loader::Fp8Scales* scales(const loader::CheckpointTensor& tensor) const override {
    const loader::Fp8Scales& found = of(tensor).scales;
    return found.values.empty() ? nullptr : &found;
  }
  Status check_unchanged() const override { return {}; }

 private:
  struct Stored {
    std::vector<std::byte> bytes;
    loader::Fp8Scales scales;
  };
  const Stored& of(const loader::CheckpointTensor& tensor) const { return stored_[&tensor - tensors_.data()]; }

  static void store(DataFormat format, const loader::CheckpointTensor& tensor, const std::vector<float>& values,
                    std::vector<std::byte>& bytes) {
    const int64_t stride = row_bytes(format, tensor.cols());
    bytes.resize(tensor.rows() * stride);
    for (int64_t r = 0; r < tensor.rows(); ++r) {
      quantize_row(format, &values[r * tensor.cols()], &bytes[r * stride], tensor.cols());
    }
  }

  // The shape of the scale tensor.
  static std::vector<int64_t> scale_shape(const loader::CheckpointTensor& tensor, const Recast& recast) {
    std::vector<int64_t> shape(tensor.shape.begin(), tensor.shape.end() - 2);
    const int64_t rows = tensor.shape[tensor.shape.size() - 2], cols = tensor.cols();
    if (recast.scales == Recast::Scales::kTensor) return shape;
    const bool block = recast.scales == Recast::Scales::kBlock;
    shape.push_back(block ? (rows + recast.blocks.rows - 1) / recast.blocks.rows : rows);
    shape.push_back(block ? (cols + recast.blocks.cols - 1) / recast.blocks.cols : 1);
    return shape;
  }

  static void scale_down(const loader::CheckpointTensor& tensor, const Recast& recast, std::vector<float>& values,
                         loader::Fp8Scales& scales) {
    const std::vector<int64_t> shape = scale_shape(tensor, recast);
    auto laid_out = loader::Fp8Scales::layout(tensor.shape, shape, recast.blocks);
    VAYU_CHECK(laid_out.has_value(), "{}", tensor.name);
    scales = std::move(*laid_out);
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    // Each element's scale, found by letting the scales be their own numbers.
    scales.values.resize(count);
    for (int64_t i = 0; i < count; ++i) scales.values[i] = static_cast<float>(i);
    std::vector<float> number(values.size(), 1.0f);
    scales.apply(0, tensor.rows(), tensor.cols(), number.data());
    std::vector<size_t> largest(count, SIZE_MAX);
    for (size_t i = 0; i < values.size(); ++i) {
      size_t& best = largest[static_cast<size_t>(number[i])];
      if (best == SIZE_MAX || std::fabs(values[i]) > std::fabs(values[best])) best = i;
    }
    for (int64_t i = 0; i < count; ++i) {
      scales.values[i] = std::exp2(std::round(std::log2(std::fabs(values[largest[i]]) / 448.0f)));
    }
    for (size_t i = 0; i < values.size(); ++i) values[i] /= scales.values[static_cast<size_t>(number[i])];
    for (const size_t i : largest) values[i] = std::copysign(448.0f, values[i]);
  }

  std::string path_;
  std::vector<loader::CheckpointTensor> tensors_;
  std::vector<Stored> stored_;  // of each of tensors_
  std::map<std::string, size_t> index_;
};

}  // namespace vayu::model::testing
