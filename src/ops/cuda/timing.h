// Timing of device work by events.
#pragma once

#include <functional>

#include "base/result.h"
#include "ops/cuda/types.h"

namespace vayu::ops {

struct TimingOptions {
  int warm_ups = 3;
  int repeats = 20;
  bool cold_l2 = true;  // the second-level cache is overwritten before each call
};

// Median time of one call in us. The calls run on a stream of their own, which `call` gets.
Result<double> median_us(const std::function<void(CudaStream)>& call, const TimingOptions& options = {});

}  // namespace vayu::ops
