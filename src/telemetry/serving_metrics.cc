#include "telemetry/serving_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <atomic>
#include <mutex>
#include <sstream>

namespace vayu {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

// Seconds. Fine between 1 and 100 ms, where inter-token latency lives.
const Buckets kTokenGapBuckets = {0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.012,
                                  0.015, 0.02,  0.025, 0.03,  0.04,  0.05,  0.075, 0.1,  0.15,
                                  0.2,   0.3,   0.5,   1,     2,     5,     10,    40};
const Buckets kTtftBuckets = {0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1,  0.125,
                              0.15,  0.2,    0.25,  0.3,  0.4,  0.5,  0.6,  0.75, 0.9,  1.0,  1.25, 1.5,
                              2,     2.5,    5,     7.5,  10,   20,   40,   80,   160,  640};
const Buckets kPhaseBuckets = {0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1,   1.5, 2,    2.5,
                               5,     10,    15,   20,    30,   40,  50,  60,  120, 240, 480, 960, 1920, 7680};
const Buckets kLengthBuckets = {1,    2,    5,    10,   16,   32,   64,    128,   200,   256,   512,
                                1000, 1024, 2048, 3584, 4096, 8192, 16384, 32768, 65536, 131072};
const Buckets kCountBuckets = {1, 2, 5, 10, 20, 64};

double seconds(int64_t us) { return static_cast<double>(us) * 1e-6; }

}  // namespace

struct ServingMetrics::Impl {
  Impl(const std::string& model_name, const Clock& clock)
      : labels{{"model_name", model_name}, {"engine", "0"}},
        clock(clock),
        start_us(clock.now_us()),
        live_ttft(clock),
        live_itl(clock),
        live_e2e(clock),
        prompt_rate(clock),
        generation_rate(clock) {}

  prometheus::Gauge& gauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
  }
  prometheus::Counter& counter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
  }
  prometheus::Histogram& histogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels, buckets);
  }
  prometheus::Family<prometheus::Counter>& family(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }
  prometheus::Labels with(std::initializer_list<std::pair<const std::string, std::string>> extra) const {
    prometheus::Labels all = labels;
    all.insert(extra.begin(), extra.end());
    return all;
  }

  prometheus::Registry registry;
  const prometheus::Labels labels;
  const Clock& clock;
  const int64_t start_us;

  prometheus::Gauge& running = gauge("vllm:num_requests_running", "Answers being computed.");
  prometheus::Gauge& waiting = gauge("vllm:num_requests_waiting", "Answers waiting for KV pages or a place in a step.");
  prometheus::Gauge& kv_usage = gauge("vllm:kv_cache_usage_perc", "KV pages held by running answers, 0 to 1.");
  prometheus::Gauge& kv_total = gauge("vayu:kv_pages", "KV pages in the pool.");
  prometheus::Gauge& kv_free = gauge("vayu:kv_pages_free", "KV pages on the free list.");
  prometheus::Gauge& kv_cached = gauge("vayu:kv_pages_cached", "KV pages held by the prefix cache alone.");
  prometheus::Gauge& connections = gauge("vayu:http_connections", "Open HTTP connections.");
  prometheus::Counter& prompt_tokens = counter("vllm:prompt_tokens_total", "Prompt tokens computed or cached.");
  prometheus::Counter& generation_tokens = counter("vllm:generation_tokens_total", "Tokens generated.");
  prometheus::Counter& cache_queries = counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up.");
  prometheus::Counter& cache_hits = counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.");
  prometheus::Counter& cached_tokens = counter("vllm:prompt_tokens_cached_total", "Prompt tokens not recomputed.");
  prometheus::Counter& preemptions =
      counter("vllm:num_preemptions_total", "Answers that lost their pages and restarted.");
  prometheus::Counter& steps = counter("vayu:engine_steps_total", "Steps the engine has run.");
  prometheus::Counter& non_finite = counter("vayu:non_finite_rows_total", "Answers failed for non-finite logits.");
  prometheus::Histogram& ttft = histogram("vllm:time_to_first_token_seconds", "Time to first token.", kTtftBuckets);
  prometheus::Histogram& itl =
      histogram("vllm:inter_token_latency_seconds", "Time between two tokens of one answer.", kTokenGapBuckets);
  prometheus::Histogram& tpot = histogram("vllm:request_time_per_output_token_seconds",
                                          "Mean time for each token after the first, by answer.", kTokenGapBuckets);
  prometheus::Histogram& e2e = histogram("vllm:e2e_request_latency_seconds", "Arrival to last token.", kPhaseBuckets);
  prometheus::Histogram& queue =
      histogram("vllm:request_queue_time_seconds", "Arrival to first scheduled.", kPhaseBuckets);
  prometheus::Histogram& prefill =
      histogram("vllm:request_prefill_time_seconds", "First scheduled to first token.", kPhaseBuckets);
  prometheus::Histogram& decode =
      histogram("vllm:request_decode_time_seconds", "First token to last token.", kPhaseBuckets);
  prometheus::Histogram& inference =
      histogram("vllm:request_inference_time_seconds", "First scheduled to last token.", kPhaseBuckets);
  prometheus::Histogram& prompt_length =
      histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", kLengthBuckets);
  prometheus::Histogram& generation_length =
      histogram("vllm:request_generation_tokens", "Tokens of an answer.", kLengthBuckets);
  prometheus::Histogram& max_tokens =
      histogram("vllm:request_params_max_tokens", "max_tokens of a request, as applied.", kLengthBuckets);
  prometheus::Histogram& params_n = histogram("vllm:request_params_n", "n of a request.", kCountBuckets);
  prometheus::Family<prometheus::Counter>& success =
      family("vllm:request_success_total", "Answers that ended, by reason.");
  prometheus::Family<prometheus::Counter>& http = family("vayu:http_requests_total", "HTTP responses.");
  prometheus::Family<prometheus::Counter>& abandoned =
      family("vayu:answers_abandoned_total", "Requests given up before their end, by reason.");

  RollingLatency live_ttft;
  RollingLatency live_itl;
  RollingLatency live_e2e;
  RollingRate prompt_rate;
  RollingRate generation_rate;
  std::atomic<uint64_t> requests = 0;

  std::mutex engine_mutex;  // guards last
  EngineSample last;
};

ServingMetrics::ServingMetrics(const std::string& model_name, const Clock& clock)
    : impl_(std::make_unique<Impl>(model_name, clock)) {
  // Series that rates are taken of must exist from the start.
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    impl_->success.Add(impl_->with({{"finished_reason", reason}}));
  }
}

ServingMetrics::~ServingMetrics() = default;

void ServingMetrics::set_cache_config(int32_t num_pages, int32_t page_size) {
  prometheus::BuildGauge()
      .Name("vllm:cache_config_info")
      .Help("KV cache configuration.")
      .Register(impl_->registry)
      .Add(impl_->with({{"num_gpu_blocks", std::to_string(num_pages)},
                        {"block_size", std::to_string(page_size)},
                        {"enable_prefix_caching", "True"}}))
      .Set(1);
}

void ServingMetrics::on_first_token(int64_t ttft_us) {
  impl_->ttft.Observe(seconds(ttft_us));
  impl_->live_ttft.observe(ttft_us);
  impl_->generation_rate.add(1);
}

void ServingMetrics::on_next_tokens(int64_t gap_us, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    impl_->itl.Observe(seconds(gap_us) / count);
    impl_->live_itl.observe(gap_us / count);
  }
  impl_->generation_rate.add(count);
}

void ServingMetrics::on_request() { ++impl_->requests; }

void ServingMetrics::on_prompt(int32_t prompt_tokens) {
  impl_->prompt_length.Observe(prompt_tokens);
  impl_->prompt_rate.add(prompt_tokens);
}

void ServingMetrics::on_answer_end(const AnswerRecord& record) {
  impl_->success.Add(impl_->with({{"finished_reason", std::string(record.finished_reason)}})).Increment();
  impl_->generation_length.Observe(record.generation_tokens);
  impl_->max_tokens.Observe(record.max_tokens);
  impl_->params_n.Observe(record.n);
  if (record.queue_us >= 0) impl_->queue.Observe(seconds(record.queue_us));
  if (record.prefill_us >= 0) impl_->prefill.Observe(seconds(record.prefill_us));
  if (record.decode_us >= 0) {
    impl_->decode.Observe(seconds(record.decode_us));
    if (record.prefill_us >= 0) impl_->inference.Observe(seconds(record.prefill_us + record.decode_us));
    if (record.generation_tokens > 1) impl_->tpot.Observe(seconds(record.decode_us) / (record.generation_tokens - 1));
  }
  if (record.e2e_us >= 0) {
    impl_->e2e.Observe(seconds(record.e2e_us));
    impl_->live_e2e.observe(record.e2e_us);
  }
}

void ServingMetrics::on_http_response(std::string_view route, int status) {
  impl_->http.Add(impl_->with({{"route", std::string(route)}, {"status", std::to_string(status)}})).Increment();
}

void ServingMetrics::on_abandoned(std::string_view reason) {
  impl_->abandoned.Add(impl_->with({{"reason", std::string(reason)}})).Increment();
}

void ServingMetrics::set_connections(int64_t open) { impl_->connections.Set(static_cast<double>(open)); }

void ServingMetrics::update_engine(const EngineSample& sample) {
  std::lock_guard lock(impl_->engine_mutex);
  const auto advance = [&](prometheus::Counter& counter, uint64_t EngineSample::*field) {
    if (sample.*field > impl_->last.*field) counter.Increment(static_cast<double>(sample.*field - impl_->last.*field));
  };
  advance(impl_->prompt_tokens, &EngineSample::prompt_tokens);
  advance(impl_->cache_queries, &EngineSample::prompt_tokens);
  advance(impl_->cache_hits, &EngineSample::cached_tokens);
  advance(impl_->cached_tokens, &EngineSample::cached_tokens);
  advance(impl_->generation_tokens, &EngineSample::generated_tokens);
  advance(impl_->preemptions, &EngineSample::preemptions);
  advance(impl_->steps, &EngineSample::steps);
  advance(impl_->non_finite, &EngineSample::non_finite_rows);
  impl_->running.Set(sample.running);
  impl_->waiting.Set(sample.waiting);
  impl_->kv_total.Set(sample.total_pages);
  impl_->kv_free.Set(sample.free_pages);
  impl_->kv_cached.Set(sample.cached_pages);
  const int32_t used = sample.total_pages - sample.free_pages - sample.cached_pages;
  impl_->kv_usage.Set(sample.total_pages > 0 ? static_cast<double>(used) / sample.total_pages : 0.0);
  impl_->last = sample;
}

std::string ServingMetrics::text() const {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, impl_->registry.Collect());
  return std::move(out).str();
}

LiveSummary ServingMetrics::live() const {
  LiveSummary live;
  live.ttft = impl_->live_ttft.summary();
  live.itl = impl_->live_itl.summary();
  live.e2e = impl_->live_e2e.summary();
  live.prompt_tokens_per_s = impl_->prompt_rate.per_second();
  live.generation_tokens_per_s = impl_->generation_rate.per_second();
  live.requests_total = impl_->requests;
  live.uptime_s = seconds(impl_->clock.now_us() - impl_->start_us);
  return live;
}

}  // namespace vayu
