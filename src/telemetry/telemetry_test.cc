#include <gtest/gtest.h>

#include "telemetry/rolling_window.h"
#include "telemetry/serving_metrics.h"

namespace vayu {
namespace {

TEST(RollingLatency, PercentilesOfAUniformRangeAreRightToTheBucketWidth) {
  ManualClock clock;
  RollingLatency latency(clock);
  for (int i = 1; i <= 1000; ++i) latency.observe(i * 100);
  const LatencySummary summary = latency.summary();
  EXPECT_EQ(summary.count, 1000u);
  EXPECT_NEAR(summary.p50_ms, 50.0, 50.0 * 0.05);
  EXPECT_NEAR(summary.p90_ms, 90.0, 90.0 * 0.05);
  EXPECT_NEAR(summary.p99_ms, 99.0, 99.0 * 0.05);
}

TEST(RollingLatency, ForgetsAfterAMinute) {
  ManualClock clock;
  RollingLatency latency(clock);
  latency.observe(1000);
  clock.advance_us(59'000'000);
  latency.observe(2000);
  EXPECT_EQ(latency.summary().count, 2u);
  clock.advance_us(1'000'000);
  EXPECT_EQ(latency.summary().count, 1u);
  clock.advance_us(200'000'000);
  EXPECT_EQ(latency.summary().count, 0u);
  EXPECT_EQ(latency.summary().p99_ms, 0.0);
}

TEST(RollingLatency, TakesZeroNegativeAndHugeValues) {
  ManualClock clock;
  RollingLatency latency(clock);
  latency.observe(0);
  latency.observe(-5);
  latency.observe(INT64_MAX);
  EXPECT_EQ(latency.summary().count, 3u);
}

TEST(RollingRate, CountsTheLastTenSecondsOnly) {
  ManualClock clock;
  RollingRate rate(clock);
  for (int second = 0; second < 30; ++second) {
    rate.add(100);
    clock.advance_us(1'000'000);
  }
  EXPECT_NEAR(rate.per_second(), 100.0, 1.0);
  clock.advance_us(20'000'000);
  EXPECT_EQ(rate.per_second(), 0.0);
}

TEST(ServingMetrics, PrintsTheNamesDashboardsRead) {
  ManualClock clock;
  ServingMetrics metrics("tiny", clock);
  metrics.set_cache_config(128, 16);
  metrics.on_prompt(100);
  metrics.on_first_token(17'000);
  metrics.on_next_tokens(14'000, 2);
  metrics.on_answer_end({.queue_us = 10,
                         .prefill_us = 20,
                         .decode_us = 30,
                         .e2e_us = 60,
                         .prompt_tokens = 100,
                         .generation_tokens = 3,
                         .max_tokens = 5,
                         .n = 1,
                         .finished_reason = "stop"});
  metrics.on_abandoned("slow_reader");
  EngineSample sample;
  sample.running = 3;
  sample.total_pages = 128;
  sample.free_pages = 64;
  sample.cached_pages = 32;
  sample.prompt_tokens = 100;
  metrics.update_engine(sample);
  sample.prompt_tokens = 150;
  metrics.update_engine(sample);
  const std::string text = metrics.text();
  const std::string labels = R"({engine="0",model_name="tiny"})";
  for (const std::string& line :
       {"vllm:num_requests_running" + labels + " 3", "vllm:kv_cache_usage_perc" + labels + " 0.25",
        "vllm:prompt_tokens_total" + labels + " 150", "vllm:inter_token_latency_seconds_count" + labels + " 2",
        "vllm:request_prompt_tokens_sum" + labels + " 100",
        std::string(R"(vllm:inter_token_latency_seconds_bucket{engine="0",model_name="tiny",le="0.006"} 0)"),
        std::string(R"(vllm:inter_token_latency_seconds_bucket{engine="0",model_name="tiny",le="0.008"} 2)"),
        std::string(R"(vllm:time_to_first_token_seconds_bucket{engine="0",model_name="tiny",le="0.02"} 1)")}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
  for (const char* part : {"finished_reason=\"stop\"", "vllm:cache_config_info", "reason=\"slow_reader\""}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
}

TEST(ServingMetrics, LiveFigures) {
  ManualClock clock;
  ServingMetrics metrics("tiny", clock);
  clock.advance_us(1'000'000);
  metrics.on_first_token(40'000);
  metrics.on_next_tokens(10'000, 1);
  const LiveSummary live = metrics.live();
  EXPECT_NEAR(live.ttft.p50_ms, 40, 2);
  EXPECT_NEAR(live.itl.p95_ms, 10, 0.5);
  EXPECT_EQ(live.generation_tokens_per_s, 2.0);
  EXPECT_EQ(live.uptime_s, 1.0);
}

}  // namespace
}  // namespace vayu
