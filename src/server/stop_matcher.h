// Finds stop strings in text that arrives in pieces, and holds back what may yet become one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vayu::server {

// The match that is complete first wins (of two that end together, the longer), so the result does not depend on how
// the text was cut into pieces.
class StopMatcher {
 public:
  // `stops`: none empty. With `include_stop` the matched string stays in the text.
  StopMatcher(std::vector<std::string> stops, bool include_stop);

  // Takes the next piece; returns text that can be sent now. After a match nothing more comes out.
  std::string push(std::string_view piece);
  // The text has ended without a match: what was held back.
  std::string flush();

  bool matched() const { return matched_ >= 0; }
  const std::string& matched_stop() const { return stops_[matched_]; }

 private:
  bool match_at(size_t end, std::string* out);

  const std::vector<std::string> stops_;
  const bool include_stop_;
  size_t longest_ = 0;
  std::string held_;  // the longest suffix of the text so far that begins a stop string
  int matched_ = -1;
};

}  // namespace vayu::server
