// Attention of one SmolLM2-135M layer (9 query heads over 3 KV heads of 64, F16 pages of 16), pages in random order:
//   build/src/ops/ops_bench --benchmark_filter=PagedAttention
// Decode prints the bytes of K and V read a second, prefill the multiply-adds that causality asks for (2 FLOP each).
#include <benchmark/benchmark.h>

#include <cmath>
#include <numeric>
#include <random>

#include "ops/attention/kv_element.h"
#include "ops/attention/paged_attention.h"
#include "ops/cpu/thread_pool.h"

namespace vayu::ops {
namespace {

constexpr int kQHeads = 9;
constexpr int kKvHeads = 3;
constexpr int kHeadDim = 64;
constexpr int kPageSize = 16;

// `rows` rows of q_len tokens at the end of kv_len each.
void attend(benchmark::State& state, int rows, int q_len, int kv_len, int threads) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const int pages_per_row = (kv_len + kPageSize - 1) / kPageSize;
  KvLayer kv{nullptr, KvFormat::kF16, kKvHeads, kHeadDim, kPageSize};
  std::vector<f16_t> pages(int64_t{rows} * pages_per_row * kv.page_elements());
  for (f16_t& v : pages) v = float_to_f16(normal(random));
  kv.pages = pages.data();
  std::vector<int32_t> page_table(rows * pages_per_row);
  std::iota(page_table.begin(), page_table.end(), 0);
  std::shuffle(page_table.begin(), page_table.end(), random);
  std::vector<int32_t> qo_indptr(rows + 1), kv_indptr(rows + 1), kv_lens(rows, kv_len);
  for (int r = 0; r <= rows; ++r) {
    qo_indptr[r] = r * q_len;
    kv_indptr[r] = r * pages_per_row;
  }
  std::vector<float> q(int64_t{rows} * q_len * kQHeads * kHeadDim), out(q.size());
  for (float& v : q) v = normal(random);

  ThreadPool pool(threads);
  const OpContext ctx{Backend::kCpu, &pool};
  std::vector<char> scratch(paged_attention_scratch_bytes(ctx, kQHeads, kv, rows * q_len, kv_len) + 64);
  PagedAttentionArgs args;
  args.q = q.data();
  args.q_stride = kQHeads * kHeadDim;
  args.out = out.data();
  args.qo_indptr = qo_indptr.data();
  args.kv_indptr = kv_indptr.data();
  args.page_table = page_table.data();
  args.kv_lens = kv_lens.data();
  args.num_rows = rows;
  args.num_q_heads = kQHeads;
  args.scale = 1 / std::sqrt(float{kHeadDim});
  args.kv = kv;
  args.scratch = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
  for (auto _ : state) {
    paged_attention(ctx, args);
    benchmark::DoNotOptimize(out.data());
  }
  const double kv_bytes = double(rows) * kv_len * kKvHeads * kHeadDim * 2 * sizeof(f16_t);
  const double pairs = double(rows) * (double(q_len) * kv_len - double(q_len) * (q_len - 1) / 2);
  using Counter = benchmark::Counter;
  state.counters["GB/s"] = Counter(kv_bytes / 1e9, Counter::kIsIterationInvariantRate);
  state.counters["GFLOP/s"] = Counter(pairs * kQHeads * kHeadDim * 4 / 1e9, Counter::kIsIterationInvariantRate);
}

void PagedAttentionDecode(benchmark::State& state) {
  attend(state, static_cast<int>(state.range(0)), 1, static_cast<int>(state.range(1)),
         static_cast<int>(state.range(2)));
}
BENCHMARK(PagedAttentionDecode)
    ->ArgNames({"rows", "context", "threads"})
    ->ArgsProduct({{1, 8}, {128, 3600}, {1, 2}})
    ->UseRealTime();

void PagedAttentionPrefill(benchmark::State& state) {
  attend(state, 1, static_cast<int>(state.range(0)), static_cast<int>(state.range(0)),
         static_cast<int>(state.range(1)));
}
BENCHMARK(PagedAttentionPrefill)->ArgNames({"tokens", "threads"})->ArgsProduct({{512, 4096}, {1, 2}})->UseRealTime();

}  // namespace
}  // namespace vayu::ops
