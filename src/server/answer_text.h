// Text of one answer from its token ids: streaming decode, then stop strings. The same object serves streams and
// non-streams, so the two cannot differ.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/stop_matcher.h"
#include "tokenizer/tokenizer.h"

namespace vayu::server {

struct AnswerTextOptions {
  std::vector<std::string> stop;
  bool include_stop_str = false;
  bool skip_special = true;
  std::vector<TokenId> marks;  // special tokens that are shown whatever skip_special says, sorted
  int32_t min_tokens = 0;      // text of the first min_tokens tokens takes no part in a stop match
};

class AnswerText {
 public:
  // The tokenizer must outlive this.
  AnswerText(const Tokenizer& tokenizer, AnswerTextOptions options);

  // Takes the next token; `is_end_mark`: it ended the answer and its own text is not shown. Returns text that can be
  // sent now, whole characters only. Once stopped() nothing more may be pushed.
  std::string push(TokenId token, bool is_end_mark);
  // The answer has ended: held-back text, and U+FFFD for a character that was cut.
  std::string finish();

  bool stopped() const { return matcher_.matched(); }
  const std::string& matched_stop() const { return matcher_.matched_stop(); }
  int32_t num_tokens() const { return num_tokens_; }  // up to and with the one that completed the match

 private:
  std::string decode(TokenId token);

  const Tokenizer& tokenizer_;
  const bool skip_special_;
  const std::vector<TokenId> marks_;
  StreamDecoder decoder_;
  StopMatcher matcher_;
  const int32_t min_tokens_;
  int32_t num_tokens_ = 0;
};

}  // namespace vayu::server
