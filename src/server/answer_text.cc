#include "server/answer_text.h"

#include "base/check.h"

namespace vayu::server {

AnswerText::AnswerText(const Tokenizer& tokenizer, AnswerTextOptions options)
    : decoder_(tokenizer, options.skip_special),
      matcher_(std::move(options.stop), options.include_stop_str),
      min_tokens_(options.min_tokens) {}

std::string AnswerText::push(TokenId token, bool is_end_mark) {
  VAYU_CHECK(!stopped(), "token pushed after a stop string matched");
  ++num_tokens_;
  if (is_end_mark) return {};
  std::string text = decoder_.push(token);
  return num_tokens_ <= min_tokens_ ? text : matcher_.push(text);
}

std::string AnswerText::finish() {
  if (stopped()) return {};
  std::string text = matcher_.push(decoder_.finish());
  return text + matcher_.flush();
}

}  // namespace vayu::server
