// Attention of one layer over F16 pages of 16 in random order: SmolLM2-135M (9 query heads over 3 KV heads of 64), and
// the absorbed latent attention of a 105B model (64 query heads over latents of 512 and a rotary key of 64):
//   build/src/ops/ops_bench --benchmark_filter=Attention
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

constexpr int kPageSize = 16;

struct Heads {
  int q_heads;
  int kv_heads;
  int head_dim;
  int latent_dim;
};
constexpr Heads kGqa{9, 3, 64, 0};
constexpr Heads kLatent{64, 1, 576, 512};

// `rows` rows of q_len tokens at the end of kv_len each.
void attend(benchmark::State& state, const Heads& heads, int rows, int q_len, int kv_len, int threads) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const int pages_per_row = (kv_len + kPageSize - 1) / kPageSize;
  KvLayer kv{nullptr, KvFormat::kF16, heads.kv_heads, heads.head_dim, kPageSize, heads.latent_dim};
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
  std::vector<float> q(int64_t{rows} * q_len * heads.q_heads * heads.head_dim), out(q.size());
  for (float& v : q) v = normal(random);

  ThreadPool pool(threads);
  const OpContext ctx{Backend::kCpu, &pool};
  std::vector<char> scratch(paged_attention_scratch_bytes(ctx, heads.q_heads, kv, rows * q_len, kv_len) + 64);
  PagedAttentionArgs args;
  args.q = q.data();
  args.q_stride = heads.q_heads * heads.head_dim;
  args.out = out.data();
  args.qo_indptr = qo_indptr.data();
  args.kv_indptr = kv_indptr.data();
  args.page_table = page_table.data();
  args.kv_lens = kv_lens.data();
  args.num_rows = rows;
  args.num_q_heads = heads.q_heads;
  args.scale = 1 / std::sqrt(static_cast<float>(heads.head_dim));
  args.kv = kv;
  args.scratch = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
  for (auto _ : state) {
    paged_attention(ctx, args);
    benchmark::DoNotOptimize(out.data());
  }
  const double kv_bytes = double(rows) * kv_len * kv.page_bytes() / kPageSize;
  const double pairs = double(rows) * (double(q_len) * kv_len - double(q_len) * (q_len - 1) / 2);
  using Counter = benchmark::Counter;
  state.counters["GB/s"] = Counter(kv_bytes / 1e9, Counter::kIsIterationInvariantRate);
  state.counters["GFLOP/s"] =
      Counter(pairs * heads.q_heads * (kv.head_dim + kv.v_dim()) * 2 / 1e9, Counter::kIsIterationInvariantRate);
}

void PagedAttentionDecode(benchmark::State& state) {
  attend(state, kGqa, static_cast<int>(state.range(0)), 1, static_cast<int>(state.range(1)),
         static_cast<int>(state.range(2)));
}
BENCHMARK(PagedAttentionDecode)
    ->ArgNames({"rows", "context", "threads"})
    ->ArgsProduct({{1, 8}, {128, 3600}, {1, 2}})
    ->UseRealTime();

void PagedAttentionPrefill(benchmark::State& state) {
  attend(state, kGqa, 1, static_cast<int>(state.range(0)), static_cast<int>(state.range(0)),
         static_cast<int>(state.range(1)));
}
BENCHMARK(PagedAttentionPrefill)->ArgNames({"tokens", "threads"})->ArgsProduct({{512, 4096}, {1, 2}})->UseRealTime();

void LatentAttention(benchmark::State& state) {
  attend(state, kLatent, 1, static_cast<int>(state.range(0)), static_cast<int>(state.range(1)),
         static_cast<int>(state.range(2)));
}
BENCHMARK(LatentAttention)
    ->ArgNames({"tokens", "context", "threads"})
    ->ArgsProduct({{1, 64}, {256, 4096}, {1, 2}})
    ->UseRealTime();

}  // namespace
}  // namespace vayu::ops
