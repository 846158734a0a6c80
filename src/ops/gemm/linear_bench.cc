// Speed of the CPU linear at the shapes of SmolLM2-135M, beside the two ceilings of this machine:
//   lk build-bench/src/ops/ops_bench --benchmark_filter='Linear|Read'
// GB/s counts the packed weights once a call, GMAC/s rows * cols * tokens. The weights are one stretch of memory of at
// least 64 MiB walked in turn, so that a call does not find its own in the second-level cache.
#include <benchmark/benchmark.h>

#include <memory>
#include <random>
#include <vector>

#include "base/data_format.h"
#include "ops/cpu/thread_pool.h"
#include "ops/gemm/linear.h"

namespace vayu::ops {
namespace {

constexpr int64_t kWalkBytes = int64_t{64} << 20;

struct Shape {
  const char* name;
  DataFormat format;
  int64_t rows;
  int64_t cols;
};

constexpr Shape kShapes[] = {
    {"qkv", DataFormat::kQ4_1, 960, 576},        {"o", DataFormat::kQ4_1, 576, 576},
    {"gate_up", DataFormat::kQ4_1, 3072, 576},   {"down", DataFormat::kQ4_1, 576, 1536},
    {"head", DataFormat::kQ8_0, 49152, 576},     {"down_Q4_0", DataFormat::kQ4_0, 576, 1536},
    {"down_Q4_K", DataFormat::kQ4_K, 576, 1536}, {"down_Q6_K", DataFormat::kQ6_K, 576, 1536},
    {"down_BF16", DataFormat::kBF16, 576, 1536}, {"down_F32", DataFormat::kF32, 576, 1536},
};

std::vector<float> random_floats(int64_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

void bench_linear(benchmark::State& state, const Shape& shape) {
  const int64_t tokens = state.range(0);
  ThreadPool pool(static_cast<int>(state.range(1)));
  const OpContext ctx{Backend::kCpu, &pool};
  const auto row = random_floats(shape.cols);
  const int64_t stride = row_bytes(shape.format, shape.cols);
  std::vector<uint8_t> file(shape.rows * stride);
  for (int64_t r = 0; r < shape.rows; ++r) quantize_row(shape.format, row.data(), file.data() + r * stride, shape.cols);
  const MatrixView view{file.data(), shape.format, shape.rows, shape.cols, shape.name};
  std::vector<std::unique_ptr<Matrix>> weights;
  int64_t bytes = 0;
  do {
    weights.push_back(std::move(pack_matrix(ctx, {&view, 1})).value());
    bytes += weights.back()->bytes();
  } while (bytes < kWalkBytes && tokens <= 64);
  const auto x = random_floats(tokens * shape.cols);
  std::vector<float> y(tokens * shape.rows);
  void* scratch = std::aligned_alloc(64, (linear_scratch_bytes(ctx, tokens, shape.cols) + 63) / 64 * 64);
  size_t next = 0;
  for (auto _ : state) {
    linear(ctx, {weights[next].get(), x.data(), y.data(), tokens, false, scratch});
    next = (next + 1) % weights.size();
  }
  std::free(scratch);
  const auto calls = static_cast<double>(state.iterations());
  const double macs = static_cast<double>(shape.rows * shape.cols * tokens);
  state.counters["GB/s"] = benchmark::Counter(1e-9 * calls * weights[0]->bytes(), benchmark::Counter::kIsRate);
  state.counters["GMAC/s"] = benchmark::Counter(1e-9 * calls * macs, benchmark::Counter::kIsRate);
}

void bench_pack(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  const std::vector<uint8_t> file(row_bytes(DataFormat::kQ4_1, 576) * 3072, 0x11);
  const MatrixView view{file.data(), DataFormat::kQ4_1, 3072, 576, "gate_up"};
  for (auto _ : state) benchmark::DoNotOptimize(pack_matrix({Backend::kCpu, &pool}, {&view, 1}));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(file.size()));
}

// The ceiling of a single-token linear: summing 64 MiB, that is reading it.
void bench_read(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  const std::vector<uint64_t> data(kWalkBytes / 8, 1);
  std::vector<uint64_t> sums(64 * pool.num_threads());
  for (auto _ : state) {
    pool.parallel_for(static_cast<int64_t>(data.size()), 1 << 14, [&](int64_t begin, int64_t end, int worker) {
      uint64_t sum[8] = {};  // eight chains: a lone one would wait for the adder, not for memory
      for (int64_t i = begin; i < end; i += 8) {
        for (int j = 0; j < 8; ++j) sum[j] += data[i + j];
      }
      for (uint64_t s : sum) sums[64 * worker] += s;
    });
  }
  benchmark::DoNotOptimize(sums.data());
  state.SetBytesProcessed(state.iterations() * kWalkBytes);
}

BENCHMARK(bench_read)->Name("Read64MiB")->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(bench_pack)->Name("PackQ4_1")->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();

const int kRegistered = [] {
  for (const Shape& shape : kShapes) {
    auto* bench = benchmark::RegisterBenchmark((std::string("Linear/") + shape.name).c_str(), bench_linear, shape);
    bench->ArgNames({"tokens", "threads"})->ArgsProduct({{1, 8, 512}, {1, 2}})->UseRealTime();
  }
  return 0;
}();

}  // namespace
}  // namespace vayu::ops
