#include "apps/bench/bench_report.h"

#include <algorithm>

namespace vayu::bench {

using nlohmann::ordered_json;

namespace {

struct Samples {
  std::vector<double> ttft_ms, itl_ms, tpot_ms, e2e_ms;
};

void add_complete(const RequestRecord& record, const RunOptions& options, Report& report, Samples& samples) {
  ++report.num_complete;
  samples.e2e_ms.push_back(record.e2e_ms);
  if (record.ttft_ms >= 0) samples.ttft_ms.push_back(record.ttft_ms);
  if (record.tpot_ms >= 0) samples.tpot_ms.push_back(record.tpot_ms);
  samples.itl_ms.insert(samples.itl_ms.end(), record.itl_ms.begin(), record.itl_ms.end());
  const bool usage = record.output_tokens >= 0;
  report.output_tokens += usage ? record.output_tokens : record.num_events;
  report.prompt_tokens += usage ? record.prompt_tokens : std::max<int64_t>(0, record.expected_prompt_tokens);
  report.cached_tokens += record.cached_tokens;
  if (!usage) {
    ++report.usage_missing;
    return;
  }
  const int64_t expected = record.expected_prompt_tokens;
  if (expected >= 0 && record.prompt_tokens != expected) ++report.prompt_tokens_wrong;
  const bool right =
      options.ignore_eos ? record.output_tokens == options.output_len : record.output_tokens <= options.output_len;
  if (!right) ++report.output_tokens_wrong;
}

void judge(const RunResult& result, const SlaLimits& sla, Samples& samples, Report& report) {
  if (!sla.ttft_ms && !sla.itl_ms) return;
  const auto at = [&](std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    return values.empty() ? 0.0 : percentile(values, sla.percentile);
  };
  report.sla_ttft_ms = at(samples.ttft_ms);
  report.sla_itl_ms = at(samples.itl_ms);
  int64_t inside = 0;
  for (const RequestRecord& record : result.records) {
    inside += record.error_label.empty() && record.ttft_ms >= 0 && (!sla.ttft_ms || record.ttft_ms <= *sla.ttft_ms) &&
              (!sla.itl_ms || record.tpot_ms <= *sla.itl_ms);
  }
  if (report.num_requests > 0)
    report.sla_share = static_cast<double>(inside) / static_cast<double>(report.num_requests);
  // A failed request is one that never met its target: errors beyond what the percentile forgives break the promise.
  const double failed_share =
      report.num_requests > 0 ? static_cast<double>(report.num_failed) / report.num_requests : 1;
  report.sla_met = !samples.ttft_ms.empty() && failed_share <= 1 - sla.percentile / 100 + 1e-12 &&
                   (!sla.ttft_ms || report.sla_ttft_ms <= *sla.ttft_ms) &&
                   (!sla.itl_ms || report.sla_itl_ms <= *sla.itl_ms);
}

std::string summary_row(const char* name, const Summary& s) {
  if (s.count == 0) return fmt::format("{:<10} {:>10}\n", name, "-");
  return fmt::format("{:<10} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f}\n", name, s.mean, s.p50, s.p90,
                     s.p95, s.p99, s.max);
}

void add_summary(ordered_json& metrics, const std::string& name, const Summary& s) {
  metrics[name + "_count"] = s.count;
  if (s.count == 0) return;
  metrics[name + "_mean"] = s.mean;
  metrics[name + "_min"] = s.min;
  metrics[name + "_p50"] = s.p50;
  metrics[name + "_p90"] = s.p90;
  metrics[name + "_p95"] = s.p95;
  metrics[name + "_p99"] = s.p99;
  metrics[name + "_max"] = s.max;
}

}  // namespace

Report make_report(const RunResult& result, const RunOptions& options, const SlaLimits& sla) {
  Report report;
  Samples samples;
  int64_t events = 0;
  report.num_requests = static_cast<int64_t>(result.records.size());
  report.duration_s = result.duration_s;
  report.max_in_flight = result.max_in_flight;
  report.interrupted = result.interrupted;
  for (const RequestRecord& record : result.records) {
    if (record.error_label.empty()) {
      add_complete(record, options, report, samples);
      events += record.num_events;
    } else {
      ++report.num_failed;
      ++report.errors[record.error_label];
      report.examples.emplace(record.error_label, record.error_message);
    }
  }
  if (events > 0) report.tokens_per_event = static_cast<double>(report.output_tokens) / static_cast<double>(events);
  if (report.duration_s > 0) {
    report.request_throughput = static_cast<double>(report.num_complete) / report.duration_s;
    report.output_throughput = static_cast<double>(report.output_tokens) / report.duration_s;
    report.prompt_throughput = static_cast<double>(report.prompt_tokens) / report.duration_s;
  }
  judge(result, sla, samples, report);
  report.ttft_ms = summarize(std::move(samples.ttft_ms));
  report.itl_ms = summarize(std::move(samples.itl_ms));
  report.tpot_ms = summarize(std::move(samples.tpot_ms));
  report.e2e_ms = summarize(std::move(samples.e2e_ms));
  return report;
}

std::string format_table(const Report& r, const SlaLimits& sla) {
  std::string out;
  out += fmt::format("requests      {} complete, {} failed in {:.2f} s (at most {} in flight){}\n", r.num_complete,
                     r.num_failed, r.duration_s, r.max_in_flight, r.interrupted ? ", interrupted" : "");
  out += fmt::format("tokens        {} prompt ({} cached), {} output\n", r.prompt_tokens, r.cached_tokens,
                     r.output_tokens);
  out += fmt::format("throughput    {:.2f} requests/s, {:.1f} output tokens/s, {:.1f} prompt tokens/s\n\n",
                     r.request_throughput, r.output_throughput, r.prompt_throughput);
  out += fmt::format("{:<10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "ms", "mean", "p50", "p90", "p95", "p99",
                     "max");
  out += summary_row("TTFT", r.ttft_ms) + summary_row("ITL", r.itl_ms) + summary_row("TPOT", r.tpot_ms) +
         summary_row("E2E", r.e2e_ms);
  for (const auto& [label, count] : r.errors) {
    out += fmt::format("\nfailed: {} x {} ({})", count, label, r.examples.at(label));
  }
  if (!r.errors.empty()) out += '\n';
  if (r.usage_missing > 0)
    out += fmt::format("\ncheck: {} answers came without usage; tokens counted by events\n", r.usage_missing);
  if (r.prompt_tokens_wrong > 0)
    out += fmt::format("\ncheck: {} answers count another prompt length than asked\n", r.prompt_tokens_wrong);
  if (r.output_tokens_wrong > 0)
    out += fmt::format("\ncheck: {} answers have another output length than asked\n", r.output_tokens_wrong);
  if (r.tokens_per_event > 1.05) {
    out += fmt::format("\ncheck: {:.2f} tokens an event: ITL is the gap between events, TPOT the time a token\n",
                       r.tokens_per_event);
  }
  if (r.sla_met) {
    out += fmt::format("\nSLA {}:", *r.sla_met ? "met" : "MISSED");
    if (sla.ttft_ms) out += fmt::format(" p{:g} TTFT {:.1f} of {:g} ms", sla.percentile, r.sla_ttft_ms, *sla.ttft_ms);
    if (sla.itl_ms)
      out += fmt::format("{} p{:g} ITL {:.2f} of {:g} ms", sla.ttft_ms ? "," : "", sla.percentile, r.sla_itl_ms,
                         *sla.itl_ms);
    out += fmt::format("; {:.1f} % of requests inside\n", 100 * r.sla_share);
  }
  return out;
}

ordered_json to_json(const Report& r, const SlaLimits& sla) {
  ordered_json metrics = {{"requests", r.num_requests},
                          {"complete", r.num_complete},
                          {"failed", r.num_failed},
                          {"duration_s", r.duration_s},
                          {"max_in_flight", r.max_in_flight},
                          {"prompt_tokens", r.prompt_tokens},
                          {"cached_tokens", r.cached_tokens},
                          {"output_tokens", r.output_tokens},
                          {"requests_per_s", r.request_throughput},
                          {"output_tokens_per_s", r.output_throughput},
                          {"prompt_tokens_per_s", r.prompt_throughput},
                          {"tokens_per_event", r.tokens_per_event}};
  add_summary(metrics, "ttft_ms", r.ttft_ms);
  add_summary(metrics, "itl_ms", r.itl_ms);
  add_summary(metrics, "tpot_ms", r.tpot_ms);
  add_summary(metrics, "e2e_ms", r.e2e_ms);
  ordered_json errors = ordered_json::object();
  for (const auto& [label, count] : r.errors) errors[label] = {{"count", count}, {"example", r.examples.at(label)}};
  ordered_json out = {{"metrics", std::move(metrics)},
                      {"errors", std::move(errors)},
                      {"checks",
                       {{"usage_missing", r.usage_missing},
                        {"prompt_tokens_wrong", r.prompt_tokens_wrong},
                        {"output_tokens_wrong", r.output_tokens_wrong}}},
                      {"interrupted", r.interrupted}};
  if (r.sla_met) {
    out["sla"] = {
        {"met", *r.sla_met},          {"percentile", sla.percentile},
        {"ttft_ms", r.sla_ttft_ms},   {"ttft_limit_ms", sla.ttft_ms ? ordered_json(*sla.ttft_ms) : ordered_json()},
        {"itl_ms", r.sla_itl_ms},     {"itl_limit_ms", sla.itl_ms ? ordered_json(*sla.itl_ms) : ordered_json()},
        {"share_inside", r.sla_share}};
  }
  return out;
}

ordered_json to_json(const RequestRecord& record) {
  ordered_json out = {{"start_s", record.start_s},
                      {"ttft_ms", record.ttft_ms},
                      {"tpot_ms", record.tpot_ms},
                      {"e2e_ms", record.e2e_ms},
                      {"itl_ms", record.itl_ms},
                      {"prompt_tokens", record.prompt_tokens},
                      {"output_tokens", record.output_tokens},
                      {"cached_tokens", record.cached_tokens},
                      {"finish_reason", record.finish_reason}};
  if (!record.error_label.empty()) out["error"] = {{"label", record.error_label}, {"message", record.error_message}};
  return out;
}

}  // namespace vayu::bench
