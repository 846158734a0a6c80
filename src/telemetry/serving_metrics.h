// What the server counts, under the names that vLLM's dashboards read (labels model_name and engine), with latency
// buckets fine enough to see a P95 of 10 to 30 ms. Also the rolling figures behind /stats.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "telemetry/rolling_window.h"

namespace vayu {

// Engine state at one moment; counters never fall.
struct EngineSample {
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t total_pages = 0;
  int32_t free_pages = 0;
  int32_t cached_pages = 0;
  uint64_t steps = 0;
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t generated_tokens = 0;
  uint64_t preemptions = 0;
  uint64_t non_finite_rows = 0;
};

// One answer when it has ended. Times are microseconds; negative: not known.
struct AnswerRecord {
  int64_t queue_us = -1;    // arrival to first scheduled
  int64_t prefill_us = -1;  // first scheduled to first token
  int64_t decode_us = -1;   // first to last token
  int64_t e2e_us = -1;      // arrival to end
  int32_t prompt_tokens = 0;
  int32_t generation_tokens = 0;
  int32_t max_tokens = 0;
  int32_t n = 1;
  std::string_view finished_reason;  // stop, length, abort, error
};

struct LiveSummary {
  LatencySummary ttft;
  LatencySummary itl;
  LatencySummary e2e;
  double prompt_tokens_per_s = 0;
  double generation_tokens_per_s = 0;
  uint64_t requests_total = 0;  // HTTP requests that reached the engine
  double uptime_s = 0;
};

// Thread-safe. The clock must outlive this.
class ServingMetrics {
 public:
  ServingMetrics(const std::string& model_name, const Clock& clock);
  ~ServingMetrics();

  void set_cache_config(int32_t num_pages, int32_t page_size);
  void on_first_token(int64_t ttft_us);
  void on_next_tokens(int64_t gap_us, int32_t count);  // `count` tokens came together, `gap_us` after the one before
  void on_request();
  void on_prompt(int32_t prompt_tokens);
  void on_answer_end(const AnswerRecord& record);
  void on_http_response(std::string_view route, int status);
  // Why an answer was given up: disconnect, slow_reader, write_timeout, failed.
  void on_abandoned(std::string_view reason);
  void set_connections(int64_t open);
  void update_engine(const EngineSample& sample);

  std::string text() const;  // Prometheus text format 0.0.4
  LiveSummary live() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vayu
