#include "server/routes.h"

#include <algorithm>
#include <array>

namespace vayu::server {
namespace {

constexpr std::array kRoutes = {
    Route{RouteId::kPage, "GET", "/", true, false},
    Route{RouteId::kHealth, "GET", "/health", true, false},
    Route{RouteId::kReady, "GET", "/ready", true, false},
    Route{RouteId::kVersion, "GET", "/version", false, false},
    Route{RouteId::kMetrics, "GET", "/metrics", false, false},
    Route{RouteId::kStats, "GET", "/stats", false, false},
    Route{RouteId::kModels, "GET", "/v1/models", false, true},
    Route{RouteId::kModel, "GET", "/v1/models/*", false, true},
    Route{RouteId::kCompletions, "POST", "/v1/completions", false, true},
    Route{RouteId::kChat, "POST", "/v1/chat/completions", false, true},
    Route{RouteId::kTokenize, "POST", "/tokenize", false, true},
    Route{RouteId::kDetokenize, "POST", "/detokenize", false, true},
    Route{RouteId::kProfile, "POST", "/debug/profile", false, true},
};

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::string> percent_decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hex_digit(text[i + 1]);
    const int low = hex_digit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

bool starts_with_ignoring_case(std::string_view text, std::string_view lower_prefix) {
  return text.size() >= lower_prefix.size() && std::equal(lower_prefix.begin(), lower_prefix.end(), text.begin(),
                                                          [](char a, char b) { return a == ascii_lower(b); });
}

bool equal_in_constant_time(std::string_view given, std::string_view key) {
  // Walks the given text, whose length its sender knows; a key of another length differs in any case.
  unsigned difference = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |=
        static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(key[i % std::max<size_t>(key.size(), 1)]);
  }
  return difference == 0 && !key.empty();
}

}  // namespace

std::span<const Route> route_table() { return kRoutes; }

const Route* find_route(std::string_view path) {
  for (const Route& route : kRoutes) {
    if (route.path.ends_with("/*")) {
      const std::string_view stem = route.path.substr(0, route.path.size() - 1);
      if (path.size() > stem.size() && path.starts_with(stem)) return &route;
    } else if (path == route.path) {
      return &route;
    }
  }
  return nullptr;
}

std::string allowed_methods(const Route& route) {
  return route.method == "GET" ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
}

std::optional<std::string> normalise_target(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (starts_with_ignoring_case(target, scheme)) {
      const size_t slash = target.find_first_of("/?#", scheme.size());
      target = slash == std::string_view::npos ? "/" : target.substr(slash);
      break;
    }
  }
  target = target.substr(0, target.find_first_of("?#"));
  const auto decoded = percent_decode(target.empty() ? "/" : target);
  if (!decoded || decoded->front() != '/') return std::nullopt;
  if (std::any_of(decoded->begin(), decoded->end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; })) {
    return std::nullopt;
  }
  std::vector<std::string_view> segments;
  for (size_t begin = 1; begin <= decoded->size();) {
    const size_t end = std::min(decoded->find('/', begin), decoded->size());
    const std::string_view segment(decoded->data() + begin, end - begin);
    begin = end + 1;
    if (segment.empty() || segment == ".") continue;
    if (segment != "..") {
      segments.push_back(segment);
    } else if (!segments.empty()) {
      segments.pop_back();
    }
  }
  std::string path;
  for (const std::string_view segment : segments) path.append("/").append(segment);
  return path.empty() ? "/" : path;
}

std::optional<size_t> find_api_key(std::string_view authorization, std::span<const std::string> keys) {
  constexpr std::string_view kScheme = "bearer ";
  if (!starts_with_ignoring_case(authorization, kScheme)) return std::nullopt;
  std::string_view given = authorization.substr(kScheme.size());
  given.remove_prefix(std::min(given.find_first_not_of(' '), given.size()));
  given = given.substr(0, given.find_last_not_of(" \t") + 1);
  std::optional<size_t> found;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (equal_in_constant_time(given, keys[i])) found = i;
  }
  return found;
}

}  // namespace vayu::server
