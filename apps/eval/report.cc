#include "apps/eval/report.h"

#include <algorithm>

namespace vayu::eval {
namespace {

using nlohmann::ordered_json;

std::vector<const TextScore*> lines_of(const EvalReport& report) {
  std::vector<const TextScore*> lines;
  for (const TextScore& text : report.texts) lines.push_back(&text);
  if (report.texts.size() > 1) lines.push_back(&report.total);
  return lines;
}

size_t path_width(const EvalReport& report) {
  size_t width = 12;
  for (const TextScore& text : report.texts) width = std::max(width, text.path.size());
  return width;
}

std::string perplexity_table(const EvalReport& report, size_t width) {
  std::string out = fmt::format("{:<{}} {:>10} {:>10} {:>10} {:>12} {:>10}\n", "text", width, "tokens", "bytes",
                                "bits/byte", "perplexity", "tokens/s");
  for (const TextScore* s : lines_of(report)) {
    out += fmt::format("{:<{}} {:>10} {:>10} {:>10.4f} {:>12.4f} {:>10.1f}\n", s->path, width, s->tokens, s->bytes,
                       s->bits_per_byte(), s->perplexity(), s->tokens_per_s());
  }
  return out;
}

std::string comparison_table(const EvalReport& report, size_t width) {
  std::string out = fmt::format("\n{:<{}} {:>12} {:>12} {:>16} {:>12} {:>12}\n", "against", width, "perplexity",
                                "reference", "top-1 agreement", "mean KL", "p99 KL");
  for (const TextScore* s : lines_of(report)) {
    out += fmt::format("{:<{}} {:>12.4f} {:>12.4f} {:>14.2f} % {:>12.6f} {:>12.6f}\n", s->path, width, s->perplexity(),
                       s->reference_perplexity(), 100 * s->agreement(), s->mean_kl(), s->p99_kl());
  }
  return out + "KL(reference || evaluated) in nats a token\n";
}

std::string expert_table(const EvalReport& report) {
  std::string out = fmt::format("\n{:>5} {:>8} {:>10} {:>8} {:>12} {:>8} {:>13}\n", "layer", "experts", "choices",
                                "busiest", "max/uniform", "Gini", "never chosen");
  for (const LayerLoad& load : report.expert_load) {
    out += fmt::format("{:>5} {:>8} {:>10} {:>8} {:>12.2f} {:>8.3f} {:>13}\n", load.layer, load.share.size(),
                       load.choices, load.busiest, load.max_over_uniform, load.gini, load.never_chosen.size());
  }
  return out;
}

ordered_json score_json(const TextScore& s, bool with_reference) {
  ordered_json out = {{"path", s.path},
                      {"tokens", s.tokens},
                      {"bytes", s.bytes},
                      {"nll_nats", s.nll},
                      {"perplexity", s.perplexity()},
                      {"bits_per_byte", s.bits_per_byte()},
                      {"elapsed_s", s.elapsed_s},
                      {"tokens_per_s", s.tokens_per_s()}};
  if (with_reference) {
    out["reference_perplexity"] = s.reference_perplexity();
    out["top1_agreement"] = s.agreement();
    out["kl_mean_nats"] = s.mean_kl();
    out["kl_p99_nats"] = s.p99_kl();
  }
  return out;
}

ordered_json load_json(const LayerLoad& load) {
  return {{"layer", load.layer},     {"choices", load.choices},
          {"busiest", load.busiest}, {"max_over_uniform", load.max_over_uniform},
          {"gini", load.gini},       {"never_chosen", load.never_chosen},
          {"share", load.share}};
}

}  // namespace

std::string format_table(const EvalReport& report) {
  std::string out = fmt::format("model    {}\n", report.evaluated.description);
  if (report.reference) out += fmt::format("against  {}\n", report.reference->description);
  out += fmt::format("windows  {} tokens, stride {}: at least {} tokens of context\n\n", report.windows.window,
                     report.windows.stride, report.windows.window - report.windows.stride);
  const size_t width = path_width(report);
  out += perplexity_table(report, width);
  if (report.reference) out += comparison_table(report, width);
  if (!report.expert_load.empty()) out += expert_table(report);
  return out;
}

ordered_json to_json(const EvalReport& report) {
  ordered_json out = {{"model", report.evaluated.config},
                      {"against", report.reference ? report.reference->config : ordered_json()},
                      {"window", report.windows.window},
                      {"stride", report.windows.stride},
                      {"max_num_batched_tokens", report.windows.max_step_tokens},
                      {"texts", ordered_json::array()}};
  for (const TextScore& text : report.texts) out["texts"].push_back(score_json(text, report.reference.has_value()));
  out["total"] = score_json(report.total, report.reference.has_value());
  out["expert_load"] = ordered_json::array();
  for (const LayerLoad& load : report.expert_load) out["expert_load"].push_back(load_json(load));
  return out;
}

}  // namespace vayu::eval
