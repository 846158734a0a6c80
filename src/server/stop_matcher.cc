#include "server/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace vayu::server {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop)
    : stops_(std::move(stops)), include_stop_(include_stop) {
  for (const std::string& stop : stops_) longest_ = std::max(longest_, stop.size());
}

// Whether a stop string ends at byte `end` of held_; the longest of them cuts the text.
bool StopMatcher::match_at(size_t end, std::string* out) {
  const std::string_view text(held_.data(), end);
  for (size_t i = 0; i < stops_.size(); ++i) {
    if (text.ends_with(stops_[i]) && (matched_ < 0 || stops_[i].size() > stops_[matched_].size())) {
      matched_ = static_cast<int>(i);
    }
  }
  if (matched_ < 0) return false;
  *out = held_.substr(0, include_stop_ ? end : end - stops_[matched_].size());
  held_.clear();
  return true;
}

std::string StopMatcher::push(std::string_view piece) {
  if (matched()) return {};
  if (stops_.empty()) return std::string(piece);
  const size_t old_size = held_.size();
  held_ += piece;
  std::string out;
  for (size_t end = old_size + 1; end <= held_.size(); ++end) {
    if (match_at(end, &out)) return out;
  }
  size_t keep = std::min(held_.size(), longest_ - 1);
  const auto begins_a_stop = [&](std::string_view suffix) {
    return std::any_of(stops_.begin(), stops_.end(), [&](const std::string& stop) {
      return stop.size() > suffix.size() && stop.starts_with(suffix);
    });
  };
  while (keep > 0 && !begins_a_stop(std::string_view(held_).substr(held_.size() - keep))) --keep;
  out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string StopMatcher::flush() { return matched() ? std::string() : std::exchange(held_, {}); }

}  // namespace vayu::server
