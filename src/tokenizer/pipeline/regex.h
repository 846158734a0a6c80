// Regular expressions of tokenizer files (Oniguruma's dialect there), run by PCRE2 on text that may hold invalid UTF-8.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace vayu {

class Regex {
 public:
  // kUnsupported for a pattern that PCRE2 does not take, or would read differently.
  static Result<Regex> compile(std::string_view pattern);

  Regex(Regex&&) = default;
  Regex& operator=(Regex&&) = default;

  // Calls fn(begin, end) for each match, left to right; an empty match right behind another is left out.
  //
  // Work is bounded whatever pattern and text: texts up to 16 KiB run on the JIT compiler, longer ones on the
  // interpreter with a budget of steps in proportion to the text and 64 MiB of memory. Past a limit the rest counts as
  // no match.
  template <class Fn>
  void for_each_match(std::string_view text, Fn fn) const {
    Search search(*this, text);
    while (const auto match = search.next()) fn(match->first, match->second);
  }

 private:
  struct Compiled;  // pcre2_code with its match context

  class Search {
   public:
    Search(const Regex& regex, std::string_view text);
    ~Search();
    std::optional<std::pair<size_t, size_t>> next();

   private:
    void find_span(size_t begin);
    int match_at(size_t pos);
    std::optional<std::pair<size_t, size_t>> next_in_span();

    const Compiled& compiled_;
    const std::string_view text_;
    struct State;
    std::unique_ptr<State> state_;
    size_t span_begin_ = 0;
    std::string_view span_;  // valid UTF-8; bad bytes are in no match and end what a pattern can see
    size_t pos_ = 0;         // in span_
    std::optional<size_t> last_end_;
  };

  struct Free {
    void operator()(Compiled* compiled) const;
  };
  explicit Regex(std::unique_ptr<Compiled, Free> compiled) : compiled_(std::move(compiled)) {}

  std::unique_ptr<Compiled, Free> compiled_;
};

}  // namespace vayu
