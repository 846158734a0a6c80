// For tests that fill the device or count its memory: they run while nobody else uses it. Their suites end in Alone,
// and tools/gpu_tests.py runs those by themselves, with VAYU_ALONE set.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "ops/cuda/cuda_test_util.h"

#define VAYU_NEEDS_WHOLE_DEVICE()                                                         \
  VAYU_NEEDS_DEVICE();                                                                    \
  if (std::getenv("VAYU_ALONE") == nullptr) {                                             \
    GTEST_SKIP() << "VAYU_ALONE is not set, which says that nobody else uses the device"; \
  }

namespace vayu::ops {

// Stands for other processes: takes device memory until `left` bytes are free, give or take a piece of the driver's.
class Ballast {
 public:
  static constexpr int64_t kPiece = int64_t{2} << 20;

  explicit Ballast(int64_t left) {
    for (int64_t bytes = int64_t{1} << 40; bytes >= kPiece; bytes /= 2) {
      while (free_device_bytes().value() - left >= bytes) {
        void* piece = nullptr;
        if (cudaMalloc(&piece, bytes) != cudaSuccess) {
          cudaGetLastError();
          break;
        }
        pieces_.push_back(piece);
      }
    }
    EXPECT_NEAR(static_cast<double>(free_device_bytes().value()), static_cast<double>(left), 8.0 * kPiece);
  }
  ~Ballast() {
    for (void* piece : pieces_) cudaFree(piece);
  }
  Ballast(const Ballast&) = delete;
  Ballast& operator=(const Ballast&) = delete;

 private:
  std::vector<void*> pieces_;
};

}  // namespace vayu::ops
