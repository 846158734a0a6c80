// Tokens of a tokenizer.json file that stand outside its model: cut out of the text as wholes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/types.h"
#include "tokenizer/marker_matcher.h"

namespace vayu {

struct AddedToken {
  std::string content;
  TokenId id = kNoToken;
  bool special = false;      // a control token: left out of visible text
  bool lstrip = false;       // takes the white space in front of it along
  bool rstrip = false;       // and behind it
  bool single_word = false;  // only where no word character touches it
  bool normalized = false;   // looked for in normalized text, as its own normalized form

  // A run of white space is found in any text; the others only where the caller allows special tokens.
  bool found_anywhere() const;
  // Whether the model may make this token out of plain text: text that merely spells a control token, or a tag such as
  // <think>, must not become it. Single characters and runs of spaces are ordinary pieces in many vocabularies.
  bool is_plain_piece() const;
};

// The added tokens that are looked for at one point: in the raw text, or in the normalized text.
class AddedTokenMatcher {
 public:
  // `form`: the text to look for. Of two tokens with one form the first stays. `token` must outlive this.
  void add(std::string_view form, const AddedToken& token);

  struct Part {
    size_t begin, end;
    const AddedToken* token;  // null: text between tokens, not empty
  };
  bool empty() const { return tokens_.empty(); }
  // The parts of a text in order. At each place the longest token that `scope` allows wins.
  std::vector<Part> cut(std::string_view text, const MarkerMatcher::Scope& scope) const;

 private:
  MarkerMatcher matcher_;  // its ids are places in tokens_
  std::vector<const AddedToken*> tokens_;
};

}  // namespace vayu
