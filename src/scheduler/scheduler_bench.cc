// Host time of plan + commit alone: no executor runs, results are made up.
//   cmake -S . -B build -DVAYU_BENCH=ON && ninja -C build scheduler_bench && build/src/scheduler/scheduler_bench
#include <benchmark/benchmark.h>

#include <vector>

#include "scheduler/scheduler.h"

namespace vayu {
namespace {

// Args: answers decoding, tokens of context each, requests that wait meanwhile.
void BM_DecodeStep(benchmark::State& state) {
  const auto rows = static_cast<int32_t>(state.range(0));
  const auto context = static_cast<int32_t>(state.range(1));
  const ExecutorLimits limits{.vocab_size = 50000,
                              .page_size = 16,
                              .num_pages = rows * (context / 16 + 1024),
                              .max_step_tokens = 8192,
                              .max_rows = rows,
                              .max_context = 1 << 20};
  SchedulerConfig config;
  config.max_num_batched_tokens = config.chunked_prefill_size = 8192;
  config.max_num_seqs = rows;
  config.max_queued = 1 << 20;
  ManualClock clock;
  Scheduler scheduler(config, limits, clock);
  for (int32_t i = 0; i < rows + state.range(2); ++i) {
    Request request;
    request.id = static_cast<RequestId>(i + 1);
    request.prompt.assign(context, 7);
    request.prompt[0] = i;
    request.sampling.max_tokens = 1 << 20;
    if (!scheduler.add(std::move(request)).ok()) return state.SkipWithError("queue full");
  }
  Batch batch;
  scheduler.reserve(batch);
  StepOutput output;
  std::vector<SequenceDelta> deltas;
  const auto step = [&] {
    if (!scheduler.plan(batch)) return;
    output.results.assign(batch.samples.size(), {.token = 5});
    scheduler.commit(output);
    scheduler.take_deltas(deltas);
  };
  do step();
  while (batch.num_tokens() != rows);
  for (auto _ : state) step();
  state.counters["rows"] = batch.num_rows();
}
BENCHMARK(BM_DecodeStep)->Args({8, 1024, 0})->Args({64, 4096, 0})->Args({64, 4096, 1000})->Iterations(10000);

}  // namespace
}  // namespace vayu
