// Anonymous memory straight from the kernel: zeroed, page-aligned, resident only where touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/result.h"

namespace vayu::model {

class AnonymousMemory {
 public:
  AnonymousMemory() = default;
  static Result<AnonymousMemory> create(int64_t bytes);  // bytes >= 0; kResourceExhausted when the kernel refuses
  ~AnonymousMemory();
  AnonymousMemory(AnonymousMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AnonymousMemory& operator=(AnonymousMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace vayu::model
