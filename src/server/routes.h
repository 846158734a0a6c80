// The routes, and how a request target becomes one. Closed by default: only routes marked open are served without a
// key.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vayu::server {

enum class RouteId {
  kPage,
  kHealth,
  kReady,
  kVersion,
  kMetrics,
  kStats,
  kModels,
  kModel,
  kCompletions,
  kChat,
  kTokenize,
  kDetokenize,
  kProfile
};

struct Route {
  RouteId id;
  std::string_view method;   // GET (which HEAD may use as well) or POST
  std::string_view path;     // a trailing "/*" takes any non-empty rest
  bool open = false;         // no key needed
  bool needs_model = false;  // 503 until a model is attached
};

std::span<const Route> route_table();
const Route* find_route(std::string_view path);
std::string allowed_methods(const Route& route);

// Path of a request target (origin or absolute form): query dropped, percent-encoding undone once, repeated slashes and
// dot segments resolved, trailing slash dropped. Nothing if it is malformed or holds NUL or other control characters.
std::optional<std::string> normalise_target(std::string_view target);

// Index of the key that an Authorization header presents ("Bearer <key>", scheme in any case). The time does not depend
// on how much of a key is right.
std::optional<size_t> find_api_key(std::string_view authorization, std::span<const std::string> keys);

}  // namespace vayu::server
