// Experts of a Mixture-of-Experts layer (hidden 2048, inner width 768, top 6 of 128) through grouped_linear, beside one
// linear() that reads as many bytes for as many rows:
//   build-bench/src/ops/ops_bench --benchmark_filter='Experts|Read'
// GB/s counts the weights of the experts that have rows, once a call; Same reads a dense matrix of that size. The
// layer's 128 experts are far larger than the caches, and a call goes on where the last one stopped.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "base/data_format.h"
#include "ops/cpu/thread_pool.h"
#include "ops/gemm/linear.h"
#include "ops/moe/grouped_linear.h"
#include "ops/moe/route.h"

namespace vayu::ops {
namespace {

constexpr int32_t kExperts = 128;
constexpr int32_t kTopK = 6;
constexpr int64_t kHidden = 2048;
constexpr int64_t kOutputs = 2 * 768;  // gate over up
constexpr int64_t kDraws = 8;          // batches of choices that take turns

std::vector<float> random_floats(int64_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

// num_experts matrices (kOutputs, kHidden), all rows alike.
std::unique_ptr<Matrix> expert_weights(const OpContext& ctx, DataFormat format, int32_t num_experts) {
  const auto row = random_floats(kHidden);
  const int64_t stride = row_bytes(format, kHidden);
  std::vector<uint8_t> expert(kOutputs * stride);
  for (int64_t r = 0; r < kOutputs; ++r) quantize_row(format, row.data(), expert.data() + r * stride, kHidden);
  const std::vector<PartShape> parts(num_experts, {format, kOutputs, "experts"});
  auto weight = std::move(reserve_matrix(ctx, kHidden, parts)).value();
  for (int32_t e = 0; e < num_experts; ++e) weight->fill(e, 0, kOutputs, expert.data());
  return weight;
}

struct Choices {
  std::vector<int32_t> indptr, rows, tokens;
  int32_t used = 0;  // experts with rows
};

// skewed: half of the tokens have expert 0 among theirs.
Choices draw_choices(std::mt19937& random, int64_t num_tokens, bool skewed) {
  std::vector<int32_t> ids(num_tokens * kTopK);
  for (int64_t t = 0; t < num_tokens; ++t) {
    std::vector<int32_t> experts(kExperts);
    for (int32_t e = 0; e < kExperts; ++e) experts[e] = e;
    std::shuffle(experts.begin() + 1, experts.end(), random);
    std::copy_n(experts.begin() + (skewed && t % 2 == 0 ? 0 : 1), kTopK, &ids[t * kTopK]);
  }
  Choices choices{std::vector<int32_t>(kExperts + 1), std::vector<int32_t>(ids.size()), {}};
  group_by_expert(ids.data(), num_tokens, kTopK, kExperts, choices.indptr.data(), choices.rows.data());
  for (int32_t row : choices.rows) choices.tokens.push_back(row / kTopK);
  for (int32_t e = 0; e < kExperts; ++e) choices.used += choices.indptr[e + 1] > choices.indptr[e];
  return choices;
}

class Scratch {
 public:
  explicit Scratch(int64_t bytes) : memory_(std::aligned_alloc(64, (bytes + 63) / 64 * 64)) {}
  ~Scratch() { std::free(memory_); }
  void* get() const { return memory_; }

 private:
  void* memory_;
};

void report(benchmark::State& state, double bytes, double rows) {
  state.counters["GB/s"] = benchmark::Counter(1e-9 * bytes, benchmark::Counter::kIsRate);
  state.counters["GMAC/s"] = benchmark::Counter(1e-9 * rows * kOutputs * kHidden, benchmark::Counter::kIsRate);
}

void bench_experts(benchmark::State& state, DataFormat format, bool skewed) {
  const int64_t num_tokens = state.range(0);
  const int64_t num_rows = num_tokens * kTopK;
  ThreadPool pool(static_cast<int>(state.range(1)));
  const OpContext ctx{Backend::kCpu, &pool};
  const auto weight = expert_weights(ctx, format, kExperts);
  const auto x = random_floats(num_tokens * kHidden);
  std::vector<float> y(num_rows * kOutputs);
  const Scratch scratch(grouped_linear_scratch_bytes(ctx, num_rows, kHidden, kExperts));
  std::mt19937 random(2);
  std::vector<Choices> draws;
  for (int64_t i = 0; i < kDraws; ++i) draws.push_back(draw_choices(random, num_tokens, skewed));
  double bytes = 0;
  size_t next = 0;
  for (auto _ : state) {
    const Choices& choices = draws[next++ % kDraws];
    grouped_linear(ctx, {weight.get(), kExperts, choices.indptr.data(), choices.tokens.data(), choices.rows.data(),
                         x.data(), kHidden, y.data(), kOutputs, scratch.get()});
    bytes += static_cast<double>(choices.used) * kOutputs * row_bytes(format, kHidden);
  }
  report(state, bytes, static_cast<double>(state.iterations() * num_rows));
}

// One token through a matrix of kTopK experts' size: what decoding would take if the experts were a dense layer.
void bench_same(benchmark::State& state, DataFormat format) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  const OpContext ctx{Backend::kCpu, &pool};
  std::vector<std::unique_ptr<Matrix>> weights;
  for (int64_t i = 0; i < kDraws; ++i) weights.push_back(expert_weights(ctx, format, kTopK));
  const auto x = random_floats(kHidden);
  std::vector<float> y(kTopK * kOutputs);
  const Scratch scratch(linear_scratch_bytes(ctx, 1, kHidden));
  double bytes = 0;
  size_t next = 0;
  for (auto _ : state) {
    const Matrix& weight = *weights[next++ % kDraws];
    linear(ctx, {&weight, x.data(), y.data(), 1, false, scratch.get()});
    bytes += static_cast<double>(weight.bytes());
  }
  report(state, bytes, static_cast<double>(state.iterations() * kTopK));
}

const int kRegistered = [] {
  for (DataFormat format : {DataFormat::kQ4_K, DataFormat::kQ8_0, DataFormat::kBF16}) {
    const std::string name(format_info(format).name);
    benchmark::RegisterBenchmark(("Experts/" + name).c_str(), bench_experts, format, false)
        ->ArgNames({"tokens", "threads"})
        ->ArgsProduct({{1, 8, 64}, {1, 2}})
        ->UseRealTime();
    benchmark::RegisterBenchmark(("ExpertsSame/" + name).c_str(), bench_same, format)
        ->ArgName("threads")
        ->Arg(1)
        ->Arg(2)
        ->UseRealTime();
  }
  benchmark::RegisterBenchmark("ExpertsSkewed/Q4_K", bench_experts, DataFormat::kQ4_K, true)
      ->ArgNames({"tokens", "threads"})
      ->ArgsProduct({{512}, {1, 2}})
      ->UseRealTime();
  return 0;
}();

}  // namespace
}  // namespace vayu::ops
