// What a run came to: figures, SLA verdict, table and JSON.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "apps/bench/bench_runner.h"
#include "apps/bench/stats.h"

namespace vayu::bench {

struct SlaLimits {
  std::optional<double> ttft_ms, itl_ms;
  double percentile = 95;  // of all TTFTs, of all ITL gaps
};

struct Report {
  int64_t num_requests = 0, num_complete = 0, num_failed = 0;
  double duration_s = 0;
  int64_t prompt_tokens = 0, output_tokens = 0, cached_tokens = 0;  // of complete answers; usage, else what was asked
  double request_throughput = 0, output_throughput = 0, prompt_throughput = 0;  // a second, complete answers only
  Summary ttft_ms, itl_ms, tpot_ms, e2e_ms;                                     // complete answers only
  int64_t max_in_flight = 0;
  bool interrupted = false;
  std::map<std::string, int64_t> errors;        // label -> count
  std::map<std::string, std::string> examples;  // label -> one message
  // Checks of token counts over complete answers.
  int64_t usage_missing = 0, prompt_tokens_wrong = 0, output_tokens_wrong = 0;
  double tokens_per_event = 0;  // 1 when every token came in an event of its own; more makes ITL look better than it is

  std::optional<bool> sla_met;             // none: no limit was given
  double sla_ttft_ms = 0, sla_itl_ms = 0;  // at the SLA's percentile
  double sla_share = 0;  // share of all requests that are complete with TTFT and TPOT inside the limits
};

Report make_report(const RunResult& result, const RunOptions& options, const SlaLimits& sla);
std::string format_table(const Report& report, const SlaLimits& sla);

// {"name", "command", "started_at", "hardware", "config", "metrics": {name: number}, "errors", "checks", "sla"}.
// metrics is flat: ttft_ms_p95, output_tokens_per_s, ...
nlohmann::ordered_json to_json(const Report& report, const SlaLimits& sla);
nlohmann::ordered_json to_json(const RequestRecord& record);

}  // namespace vayu::bench
