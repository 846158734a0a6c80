#include "apps/bench/bench_report.h"

#include <gtest/gtest.h>

namespace vayu::bench {
namespace {

RequestRecord complete(double ttft_ms, double gap_ms, int64_t output_tokens = 4) {
  RequestRecord record;
  record.ttft_ms = ttft_ms;
  record.itl_ms = {gap_ms, gap_ms, gap_ms};
  record.tpot_ms = gap_ms;
  record.e2e_ms = ttft_ms + 3 * gap_ms;
  record.num_events = 4;
  record.expected_prompt_tokens = record.prompt_tokens = 100;
  record.output_tokens = output_tokens;
  record.finish_reason = "length";
  return record;
}

RequestRecord failed(const char* label) {
  RequestRecord record;
  record.error_label = label;
  record.error_message = "why";
  return record;
}

TEST(BenchReport, CountsThroughputAndErrors) {
  RunResult result;
  result.duration_s = 2;
  result.records = {complete(10, 5), complete(30, 7), failed("http 429"), failed("http 429"), failed("timeout")};
  const Report report = make_report(result, {.output_len = 4}, {});
  EXPECT_EQ(report.num_complete, 2);
  EXPECT_EQ(report.num_failed, 3);
  EXPECT_EQ(report.errors.at("http 429"), 2);
  EXPECT_DOUBLE_EQ(report.output_throughput, 4);
  EXPECT_DOUBLE_EQ(report.prompt_throughput, 100);
  EXPECT_DOUBLE_EQ(report.ttft_ms.mean, 20);
  EXPECT_EQ(report.itl_ms.count, 6);
  EXPECT_DOUBLE_EQ(report.itl_ms.p50, 6);
  EXPECT_FALSE(report.sla_met);
  EXPECT_EQ(report.output_tokens_wrong + report.prompt_tokens_wrong + report.usage_missing, 0);
  const auto out = to_json(report, {});
  EXPECT_EQ(out["metrics"]["ttft_ms_max"], 30);
  EXPECT_EQ(out["errors"]["timeout"]["count"], 1);
  EXPECT_FALSE(out.contains("sla"));
}

TEST(BenchReport, TokenCountsAreChecked) {
  RunResult result;
  result.duration_s = 1;
  result.records = {complete(10, 5, 3), complete(10, 5, 5), complete(10, 5), complete(10, 5, -1)};
  result.records[2].prompt_tokens = 99;
  EXPECT_EQ(make_report(result, {.output_len = 4}, {}).output_tokens_wrong, 2);
  const Report report = make_report(result, {.output_len = 4, .ignore_eos = false}, {});
  EXPECT_EQ(report.output_tokens_wrong, 1);  // fewer is fine, more is not
  EXPECT_EQ(report.prompt_tokens_wrong, 1);
  EXPECT_EQ(report.usage_missing, 1);
  EXPECT_NE(format_table(report, {}).find("without usage"), std::string::npos);
}

TEST(BenchReport, SlaVerdict) {
  RunResult result;
  result.duration_s = 1;
  for (int i = 1; i <= 100; ++i) result.records.push_back(complete(i, 5));
  const auto met = [&](std::optional<double> ttft, std::optional<double> itl) {
    return *make_report(result, {.output_len = 4}, {.ttft_ms = ttft, .itl_ms = itl}).sla_met;
  };
  EXPECT_TRUE(met(95.05, {}));  // linear p95 of 1..100
  EXPECT_FALSE(met(95.0, {}));
  EXPECT_TRUE(met(96, 5));
  EXPECT_FALSE(met(96, 4.9));
  const Report report = make_report(result, {.output_len = 4}, {.ttft_ms = 50});
  EXPECT_DOUBLE_EQ(report.sla_share, 0.5);
  for (int i = 0; i < 5; ++i) result.records[i] = failed("closed");
  EXPECT_TRUE(met(1000, {}));  // 5 of 100 failed: what p95 forgives
  result.records[5] = failed("closed");
  EXPECT_FALSE(met(1000, {}));
  result.records.assign(3, failed("connect"));
  EXPECT_FALSE(met(1000, {}));  // no answer at all is not a met target
}

}  // namespace
}  // namespace vayu::bench
