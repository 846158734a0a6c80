// Random weights and activations for the tests of the CUDA ops, in host and device memory alike.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "ops/cuda/cuda_test_util.h"
#include "ops/cuda/host_rows.h"

namespace vayu::ops {

// Bytes whose E4M3 values are finite and below 2, and whose BF16 values are finite. For large speed tests: past 16 MiB
// they repeat.
inline std::vector<uint8_t> random_bytes(TestRandom& random, int64_t count, bool f8) {
  std::vector<uint8_t> bytes((count + 7) / 8 * 8);
  const uint64_t mask = f8 ? 0xBFBFBFBFBFBFBFBFull : 0xBFFFBFFFBFFFBFFFull;
  const int64_t fresh = std::min<int64_t>(static_cast<int64_t>(bytes.size()), 16 << 20);
  for (int64_t i = 0; i < fresh; i += 8) {
    const uint64_t word = random.engine()() & mask;
    std::memcpy(&bytes[i], &word, 8);
  }
  for (int64_t i = fresh; i < static_cast<int64_t>(bytes.size()); i += fresh) {
    std::memcpy(&bytes[i], bytes.data(), std::min<int64_t>(fresh, static_cast<int64_t>(bytes.size()) - i));
  }
  return bytes;
}

// Past the largest prime below a million they repeat: no two rows of a matrix are alike then either.
inline std::vector<float> many_normals(TestRandom& random, int64_t count, float sigma = 1) {
  const auto fresh = static_cast<size_t>(std::min<int64_t>(count, 999983));
  std::vector<float> values = random.normals(static_cast<int64_t>(fresh), sigma);
  values.resize(count);
  for (size_t i = fresh; i < values.size(); ++i) values[i] = values[i - fresh];
  return values;
}

class TestMatrix {
 public:
  TestMatrix(TestRandom& random, int64_t rows, int64_t cols, WeightScale scale, bool fast = false)
      : bytes_(rows * cols * (scale == WeightScale::kNone ? 2 : 1)), device_bytes_(bytes_.size()) {
    const bool f8 = scale != WeightScale::kNone;
    if (fast) {
      bytes_ = random_bytes(random, static_cast<int64_t>(bytes_.size()), f8);
    } else {
      const auto values = many_normals(random, rows * cols, f8 ? 40.0f : 1.0f / std::sqrt(static_cast<float>(cols)));
      quantize_row(f8 ? DataFormat::kF8E4M3 : DataFormat::kBF16, values.data(), bytes_.data(), rows * cols);
    }
    device_bytes_.set(bytes_);
    host_ = {bytes_.data(), nullptr, scale, rows, cols};
    if (f8) {
      scales_.resize(host_.num_scales());
      for (float& v : scales_)
        v = static_cast<float>(0.5 + random.uniform()) / 40.0f / std::sqrt(static_cast<float>(cols));
      device_scales_ = std::make_unique<DeviceArray<float>>(scales_);
      host_.scales = scales_.data();
    }
    device_ = host_;
    device_.data = device_bytes_.get();
    device_.scales = device_scales_ ? device_scales_->get() : nullptr;
  }
  const DeviceMatrix& host() const { return host_; }
  const DeviceMatrix& device() const { return device_; }
  const std::vector<float>& scales() const { return scales_; }
  void set_scales(const std::vector<float>& scales) {  // as many
    std::copy(scales.begin(), scales.end(), scales_.begin());
    device_scales_->set(scales_);
  }

 private:
  std::vector<uint8_t> bytes_;
  DeviceArray<uint8_t> device_bytes_;
  std::vector<float> scales_;
  std::unique_ptr<DeviceArray<float>> device_scales_;
  DeviceMatrix host_, device_;
};

// Rows of activations; with values, or poisoned when they are an output.
class TestRows {
 public:
  TestRows(int64_t rows, int64_t cols, bool f8, int32_t scale_group)
      : bytes_(rows * cols * (f8 ? 1 : 2), 0xFF), device_bytes_(bytes_) {
    host_.cols = cols;
    host_.scale_group = f8 ? scale_group : 0;
    host_.data = bytes_.data();
    if (f8) {
      scales_.assign(rows * (scale_group ? cols / scale_group : 1), kNaN);
      device_scales_ = std::make_unique<DeviceArray<float>>(scales_);
      host_.scales = scales_.data();
    }
    device_ = host_;
    device_.data = device_bytes_.get();
    if (device_scales_) device_.scales = device_scales_->get();
  }
  TestRows(int64_t rows, int64_t cols, bool f8, int32_t scale_group, const std::vector<float>& values)
      : TestRows(rows, cols, f8, scale_group) {
    for (int64_t r = 0; r < rows; ++r) {
      store_host_row(host_, r, std::vector<float>(values.begin() + r * cols, values.begin() + (r + 1) * cols));
    }
    device_bytes_.set(bytes_);
    if (device_scales_) device_scales_->set(scales_);
  }
  const ActRows& host() const { return host_; }
  const ActRows& device() const { return device_; }
  // What the device holds, scales applied.
  std::vector<float> device_values() {
    const auto bytes = device_bytes_.host();
    std::vector<float> scales;
    ActRows copy = host_;
    copy.data = const_cast<uint8_t*>(bytes.data());
    if (device_scales_) {
      scales = device_scales_->host();
      copy.scales = scales.data();
    }
    return values_of(copy, static_cast<int64_t>(bytes.size()) / host_.cols / (host_.is_f8() ? 1 : 2));
  }
  std::vector<float> host_values() {
    return values_of(host_, static_cast<int64_t>(bytes_.size()) / host_.cols / (host_.is_f8() ? 1 : 2));
  }

 private:
  static std::vector<float> values_of(const ActRows& rows, int64_t count) {
    std::vector<float> all;
    for (int64_t r = 0; r < count; ++r) {
      const auto row = host_row(rows, r);
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
  std::vector<uint8_t> bytes_;
  DeviceArray<uint8_t> device_bytes_;
  std::vector<float> scales_;
  std::unique_ptr<DeviceArray<float>> device_scales_;
  ActRows host_, device_;
};

}  // namespace vayu::ops
