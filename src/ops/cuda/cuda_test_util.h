// What the tests and benchmarks of the CUDA ops share. Without a device the tests are skipped; tools/gpu_proof.sh runs
// them where there is one.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "base/data_format.h"
#include "ops/cpu/op_test_util.h"
#include "ops/cuda/device.h"
#include "ops/cuda/timing.h"

#define VAYU_NEEDS_DEVICE()                                           \
  if (const auto device = ::vayu::ops::open_device(); !device.ok()) { \
    GTEST_SKIP() << device.error().message;                           \
  }

namespace vayu::ops {

// Under a sanitizer kernels take 10 to 100 times as long. tools/gpu_tests.py then sets VAYU_TEST_SHORT: fewer repeats
// and smaller sizes, of every kind of case.
inline bool short_tests() {
  static const bool wanted = std::getenv("VAYU_TEST_SHORT") != nullptr;
  return wanted;
}
template <class T>
T unless_short(T usual, T brief) {
  return short_tests() ? brief : usual;
}
template <class T>
std::vector<T> unless_short(std::initializer_list<T> usual, std::initializer_list<T> brief) {
  return short_tests() ? brief : usual;
}

// What the device gives to plain reads and to a copy, measured once: the ceilings that the speed tests name.
inline const MemorySpeed& memory_ceiling() {
  static const MemorySpeed measured = measure_memory_speed().value();
  return measured;
}
inline double read_ceiling_gb_s() { return memory_ceiling().read_gb_s; }

// An array in device memory. Made of host values, or poisoned (0xFF: NaN in every float format, -1 as integer).
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t size) : size_(size), memory_(std::move(DeviceMemory::create(bytes())).value()) {
    poison();
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(static_cast<int64_t>(values.size())) { set(values); }
  T* get() const { return reinterpret_cast<T*>(memory_.data()); }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }
  void set(const std::vector<T>& values) {
    EXPECT_TRUE(copy_to_device(memory_.data(), values.data(), bytes(), nullptr).ok());
    EXPECT_TRUE(synchronize(nullptr).ok());
  }
  void poison() {
    EXPECT_TRUE(fill_device(memory_.data(), 0xFF, bytes(), nullptr).ok());
    EXPECT_TRUE(synchronize(nullptr).ok());  // timed calls run on streams of their own
  }
  // Waits for the default stream, on which the tests run.
  std::vector<T> host() const {
    std::vector<T> values(size_);
    const Status status = copy_to_host(values.data(), memory_.data(), bytes(), nullptr);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
    const Status landed = synchronize(nullptr);
    EXPECT_TRUE(landed.ok()) << (landed.ok() ? "" : landed.error().message);
    return values;
  }

 private:
  int64_t size_;
  DeviceMemory memory_;
};

inline float as_float(Bf16 v) {
  const uint32_t bits = uint32_t{v.bits} << 16;
  float f;
  std::memcpy(&f, &bits, sizeof(f));
  return f;
}
inline float as_float(F8E4M3 v) {
  float f;
  dequantize_row(DataFormat::kF8E4M3, &v, &f, 1);
  return f;
}
inline float as_float(float v) { return v; }
template <class T>
std::vector<float> as_floats(const std::vector<T>& values) {
  std::vector<float> out(values.size());
  for (size_t i = 0; i < values.size(); ++i) out[i] = as_float(values[i]);
  return out;
}
inline std::vector<Bf16> as_bf16(const std::vector<float>& values) {
  std::vector<Bf16> out(values.size());
  quantize_row(DataFormat::kBF16, values.data(), out.data(), static_cast<int64_t>(values.size()));
  return out;
}
// Saturating round to nearest, scale 1.
inline std::vector<F8E4M3> as_f8(const std::vector<float>& values) {
  std::vector<F8E4M3> out(values.size());
  quantize_row(DataFormat::kF8E4M3, values.data(), out.data(), static_cast<int64_t>(values.size()));
  return out;
}

// |a - b| / |b| over all elements; NaN anywhere gives NaN, which no EXPECT_LT passes.
inline double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / (norm > 0 ? norm : 1));
}

}  // namespace vayu::ops
