// Conversion of a row, in bytes of floats a second: what a loading thread does to every weight it converts.
#include <benchmark/benchmark.h>

#include <vector>

#include "base/data_format.h"

namespace vayu {
namespace {

constexpr int64_t kCols = 4096;

std::vector<float> row() {
  std::vector<float> x(kCols);
  uint32_t state = 1;
  for (float& v : x) {
    state = state * 1664525 + 1013904223;
    v = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-33f;
  }
  return x;
}

void quantize(benchmark::State& state, DataFormat format) {
  const std::vector<float> x = row();
  std::vector<std::byte> packed(row_bytes(format, kCols));
  for (auto _ : state) {
    quantize_row(format, x.data(), packed.data(), kCols);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kCols * 4);
}

void dequantize(benchmark::State& state, DataFormat format) {
  std::vector<float> x = row();
  std::vector<std::byte> packed(row_bytes(format, kCols));
  quantize_row(format, x.data(), packed.data(), kCols);
  for (auto _ : state) {
    dequantize_row(format, packed.data(), x.data(), kCols);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kCols * 4);
}

const bool kRegistered = [] {
  for (const FormatInfo& info : all_formats()) {
    benchmark::RegisterBenchmark(fmt::format("quantize/{}", info.name).c_str(), quantize, info.format);
    benchmark::RegisterBenchmark(fmt::format("dequantize/{}", info.name).c_str(), dequantize, info.format);
  }
  return true;
}();

}  // namespace
}  // namespace vayu
