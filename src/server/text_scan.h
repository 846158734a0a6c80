// Small helpers for parsers of text that arrives in pieces.
#pragma once

#include <algorithm>
#include <string_view>

namespace vayu::server {

constexpr std::string_view kBlank = " \t\r\n";

inline size_t leading_space(std::string_view text) { return std::min(text.find_first_not_of(kBlank), text.size()); }

// Whether more text could make `text` into `mark`, which it is not yet.
inline bool is_proper_prefix(std::string_view text, std::string_view mark) {
  return !text.empty() && text.size() < mark.size() && mark.starts_with(text);
}

// Bytes at the end of `text` that may be the beginning of `mark`.
inline size_t partial_suffix(std::string_view text, std::string_view mark) {
  if (mark.empty()) return 0;
  for (size_t size = std::min(text.size(), mark.size() - 1); size > 0; --size) {
    if (mark.starts_with(text.substr(text.size() - size))) return size;
  }
  return 0;
}

}  // namespace vayu::server
