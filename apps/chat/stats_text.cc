#include "apps/chat/stats_text.h"

#include <nlohmann/json.hpp>

namespace vayu::chat {

using nlohmann::json;

namespace {

std::string number(const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number()) return "-";
  return it->is_number_float() ? fmt::format("{:.1f}", it->get<double>()) : fmt::format("{}", it->get<int64_t>());
}

std::string pages(int64_t total, int64_t free, int64_t cached) {
  return fmt::format("KV pages   {} in use, {} cached, {} free of {}\n", total - free - cached, cached, free, total);
}

}  // namespace

Result<std::string> format_server_stats(const std::string& json_text) {
  const json s = json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  if (!s.is_object()) return make_error(ErrorKind::kCorrupt, "/stats is not a JSON object");
  std::string out = fmt::format("requests   {} running, {} waiting, {} in all\n", number(s, "running"),
                                number(s, "waiting"), number(s, "requests_total"));
  out += fmt::format("tokens/s   {} output, {} prompt\n", number(s, "tokens_per_s"), number(s, "prompt_tokens_per_s"));
  const json kv = s.value("kv", json::object());
  if (kv.is_object()) {
    out += fmt::format("KV pages   {} cached, {} free of {}\n", number(kv, "cached"), number(kv, "free"),
                       number(kv, "total"));
  }
  for (const auto& [key, label] : {std::pair{"ttft_ms", "TTFT"}, std::pair{"itl_ms", "ITL"}}) {
    const auto it = s.find(key);
    if (it == s.end() || !it->is_object()) continue;
    out += fmt::format("{:<10} p50 {} ms, p95 {} ms, p99 {} ms\n", label, number(*it, "p50"), number(*it, "p95"),
                       number(*it, "p99"));
  }
  return out;
}

std::string format_engine_stats(const EngineStats& s) {
  return fmt::format("requests   {} running, {} waiting\n", s.running, s.waiting) +
         pages(s.total_pages, s.free_pages, s.cached_pages) +
         fmt::format("tokens     {} prompt ({} cached), {} generated in {} steps\n", s.prompt_tokens, s.cached_tokens,
                     s.generated_tokens, s.steps);
}

}  // namespace vayu::chat
