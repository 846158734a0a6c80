// Timing of device work by events.
#pragma once

#include <functional>

#include "base/result.h"
#include "ops/cuda/types.h"

namespace vayu::ops {

struct TimingOptions {
  int warm_ups = 3;
  int repeats = 20;
  bool cold_l2 = true;  // other memory is read through the second-level cache before each call
};

// Median time of one call in us. The calls run on a stream of their own, which `call` gets.
Result<double> median_us(const std::function<void(CudaStream)>& call, const TimingOptions& options = {});

// Median time of one of `count` calls captured back to back in a graph, as a decode step runs them: launches overlap
// and cost next to nothing. call(stream, i); let i choose among buffers that together exceed the second-level cache.
Result<double> chained_us(const std::function<void(CudaStream, int)>& call, int count, int repeats = 10);

// Time between two points of a stream.
class StreamTimer {
 public:
  StreamTimer();
  ~StreamTimer();
  StreamTimer(StreamTimer&& other) noexcept : begin_(other.begin_), end_(other.end_) {
    other.begin_ = other.end_ = nullptr;
  }
  StreamTimer& operator=(StreamTimer&&) = delete;
  void begin(CudaStream stream);
  void end(CudaStream stream);
  double us() const;  // once the stream has passed end()

 private:
  void* begin_ = nullptr;
  void* end_ = nullptr;
};

// What device memory gives, in GB/s: a pass of reads over 4 GiB, and a copy of 2 GiB, bytes read and written counted.
struct MemorySpeed {
  double read_gb_s = 0;
  double copy_gb_s = 0;
};
Result<MemorySpeed> measure_memory_speed();

}  // namespace vayu::ops
