// One row of logits through the sampler, on one thread:
//   build/src/ops/ops_bench --benchmark_filter=Sample
// The floor is one read of the row: GB/s counts its bytes once.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "ops/cpu/thread_pool.h"
#include "ops/sampling/sample.h"

namespace vayu::ops {
namespace {

enum Way : int64_t { kGreedy, kTemperature, kTopP, kTopK, kGreedyWithLogprobs, kPenalties };

SamplingParams make_params(int64_t way) {
  SamplingParams params;
  if (way == kGreedy || way == kGreedyWithLogprobs) params.temperature = 0;
  if (way == kTopP) params.top_p = 0.95f;
  if (way == kTopK) params.top_k = 40;
  if (way == kGreedyWithLogprobs) params.logprobs = 5;
  if (way == kPenalties) params.repetition_penalty = 1.1f;
  return params;
}

void Sample(benchmark::State& state) {
  const int64_t vocab_size = state.range(0);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(vocab_size);
  for (float& l : logits) l = normal(random);
  std::vector<TokenId> tokens(1000);
  for (TokenId& id : tokens) id = static_cast<TokenId>(random() % vocab_size);
  ThreadPool pool(1);
  const OpContext ctx{Backend::kCpu, &pool};
  std::vector<char> scratch(sample_scratch_bytes(ctx, vocab_size) + 64);
  const SamplingParams params = make_params(state.range(1));
  SampleTask task;
  task.params = &params;
  task.tokens = tokens;
  task.prompt_len = 500;
  SampleResult result;
  SampleArgs args{
      logits.data(), vocab_size, &task,
      &result,       1,          scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64};
  for (auto _ : state) {
    ++task.output_index;
    sample(ctx, args);
    benchmark::DoNotOptimize(result);
  }
  const char* names[] = {"greedy", "temperature", "top_p", "top_k", "greedy + 5 logprobs", "repetition penalty"};
  state.SetLabel(names[state.range(1)]);
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(vocab_size) * sizeof(float) / 1e9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(Sample)
    ->ArgNames({"vocab", "way"})
    ->ArgsProduct({{49152, 262144}, {kGreedy, kTemperature, kTopP, kTopK, kGreedyWithLogprobs, kPenalties}});

}  // namespace
}  // namespace vayu::ops
