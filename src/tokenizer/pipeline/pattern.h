// What a Split or Replace looks for: a string, a regular expression, or one of the published patterns that a
// hand-written scanner knows.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/pipeline/json_node.h"
#include "tokenizer/pipeline/regex.h"
#include "tokenizer/pre_tokenizer.h"

namespace vayu {

class Pattern {
 public:
  static Pattern literal(std::string text) {
    Pattern pattern;
    pattern.literal_ = std::move(text);
    return pattern;
  }
  static Pattern scanned(PrePattern scanner) {
    Pattern pattern;
    pattern.scanner_ = scanner;
    return pattern;
  }
  // Picks the scanner where there is one.
  static Result<Pattern> regex(std::string_view source);
  // node["pattern"]: {"String": text} or {"Regex": source}.
  static Result<Pattern> read(const JsonNode& node);

  // Calls fn(begin, end) for each match, left to right; matches do not overlap.
  template <class Fn>
  void for_each_match(std::string_view text, Fn fn) const {
    if (scanner_) {
      for (size_t pos = 0; pos < text.size();) {
        const size_t end = next_word(*scanner_, text, pos);
        fn(pos, end);
        pos = end;
      }
    } else if (regex_) {
      regex_->for_each_match(text, fn);
    } else {
      for (size_t pos = text.find(literal_); pos != std::string_view::npos; pos = text.find(literal_, pos)) {
        fn(pos, pos + literal_.size());
        pos += literal_.size();
      }
    }
  }

  const std::string& literal_text() const { return literal_; }  // empty for the other kinds

 private:
  std::string literal_;
  std::optional<PrePattern> scanner_;
  std::shared_ptr<const Regex> regex_;
};

}  // namespace vayu
