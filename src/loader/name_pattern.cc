#include "loader/name_pattern.h"

#include <algorithm>

namespace vayu::loader {
namespace {

// Where a character fails, the last '*' takes one more: earlier ones need not.
bool glob(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace

bool matches_name(std::string_view pattern, std::string_view tensor_name) {
  constexpr std::string_view kEnding = ".weight";
  if (glob(pattern, tensor_name)) return true;
  return tensor_name.ends_with(kEnding) && glob(pattern, tensor_name.substr(0, tensor_name.size() - kEnding.size()));
}

bool matches_any(std::span<const std::string> patterns, std::string_view tensor_name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches_name(pattern, tensor_name); });
}

}  // namespace vayu::loader
