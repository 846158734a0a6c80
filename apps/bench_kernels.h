// `vayu bench kernels`: what is measured (bench_kernels_cuda.cc) and what is printed of it (bench_kernels.cc).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "ops/cuda/timing.h"

namespace vayu::bench {

// Matrix units of an H200 at the clocks it holds on random data, TFLOP/s: 8192-cubed products through cuBLASLt with
// PyTorch 2.11, BF16 769 to 800, FP8 with one scale a tensor 1,430 to 1,477 (the datasheet's 989 and 1,979 are for the
// highest clock).
constexpr double kBf16Tflops = 800;
constexpr double kF8Tflops = 1430;

struct KernelBenchOptions {
  std::string model = "sarvam-30b";  // a built-in geometry
  std::vector<int32_t> prompts;      // tokens of prompts that are measured alone
  std::vector<int32_t> decode_rows;
  int32_t context = 3650;  // of decode rows, the new token included
  bool f8 = true;
  bool kv_f8 = true;
  uint64_t seed = 0;
};

// The least an operator must do.
struct OperatorCost {
  double bytes = 0;  // of device memory: inputs read once, outputs written once
  double flops = 0;
  double peak_tflops = kBf16Tflops;
};

struct OperatorTime {
  std::string name;
  double us = 0;
  OperatorCost cost;
  bool in_layer = true;  // counts into the sum of a layer
};

struct ShapeResult {
  std::string name;  // prefill_3584, decode_32
  int32_t tokens = 0;
  int32_t context = 0;         // of a decode row
  double experts_touched = 0;  // mean of the layers and steps whose experts are timed
  std::vector<OperatorTime> operators;
  double layer_us = 0;  // one of several layers back to back in a graph
  double sum_us = 0;    // of the operators in a layer, each alone with a cold cache
};

struct KernelBenchResult {
  std::string device;
  ops::MemorySpeed memory;
  std::vector<ShapeResult> shapes;
};

Result<KernelBenchResult> measure_kernels(const KernelBenchOptions& options);

}  // namespace vayu::bench
