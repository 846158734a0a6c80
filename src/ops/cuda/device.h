// Device memory and streams for code without CUDA headers. A failed CUDA call is a Status; a sticky fault (a device
// that is lost, an illegal address) stays in the context, so every later call fails too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"
#include "ops/cuda/types.h"

struct CUevent_st;

namespace vayu::ops {

struct DeviceInfo {
  std::string name;
  int32_t compute_major = 0;
  int32_t compute_minor = 0;
  int32_t num_sms = 0;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
  int32_t l2_bytes = 0;
};

// Device 0 of this process, made current. kNotFound without a driver or a device, kUnavailable where one fails,
// kUnsupported for one that is not Hopper (compute capability 9.0), each with what was found: see device_choice.h.
Result<DeviceInfo> open_device();
Result<int64_t> free_device_bytes();  // of the open device, by all processes that share it

// Memory of the device, or pinned memory of the host. Freed with the object.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  static Result<DeviceMemory> create(int64_t bytes);         // zeroed; kResourceExhausted with both numbers
  static Result<DeviceMemory> create_pinned(int64_t bytes);  // of the host, visible to the device
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void swap(DeviceMemory& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(pinned_, other.pinned_);
  }
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  bool pinned_ = false;
};

// A point of one stream that others wait for. Recording and waiting may be captured into a graph; errors are found by
// last_launch().
class StreamEvent {
 public:
  StreamEvent() = default;
  static Result<StreamEvent> create();
  ~StreamEvent();
  StreamEvent(StreamEvent&& other) noexcept { std::swap(event_, other.event_); }
  StreamEvent& operator=(StreamEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  void record(CudaStream stream) const;     // behind all that the stream was given so far
  void hold_back(CudaStream stream) const;  // what the stream is given from here on waits for the point last recorded

 private:
  CUevent_st* event_ = nullptr;
};

Result<CudaStream> create_stream();
void destroy_stream(CudaStream stream);
Status copy_to_device(void* device, const void* host, int64_t bytes, CudaStream stream);  // async when host is pinned
Status copy_to_host(void* host, const void* device, int64_t bytes, CudaStream stream);    // async when host is pinned
Status fill_device(void* device, uint8_t byte, int64_t bytes, CudaStream stream);
Status synchronize(CudaStream stream);
// The error of the last launch on this thread, if any; `what` names the operation.
Status last_launch(const char* what);

}  // namespace vayu::ops
