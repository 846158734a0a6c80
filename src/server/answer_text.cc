#include "server/answer_text.h"

#include <algorithm>

#include "base/check.h"

namespace vayu::server {

AnswerText::AnswerText(const Tokenizer& tokenizer, AnswerTextOptions options)
    : tokenizer_(tokenizer),
      skip_special_(options.skip_special),
      marks_(std::move(options.marks)),
      decoder_(tokenizer, options.skip_special),
      matcher_(std::move(options.stop), options.include_stop_str),
      min_tokens_(options.min_tokens) {}

std::string AnswerText::decode(TokenId token) {
  if (!skip_special_ || !std::binary_search(marks_.begin(), marks_.end(), token)) return decoder_.push(token);
  std::string text = decoder_.finish();
  decoder_ = StreamDecoder(tokenizer_, skip_special_);
  return text.append(tokenizer_.token_bytes(token));
}

std::string AnswerText::push(TokenId token, bool is_end_mark) {
  VAYU_CHECK(!stopped(), "token pushed after a stop string matched");
  ++num_tokens_;
  if (is_end_mark) return {};
  std::string text = decode(token);
  return num_tokens_ <= min_tokens_ ? text : matcher_.push(text);
}

std::string AnswerText::finish() {
  if (stopped()) return {};
  std::string text = matcher_.push(decoder_.finish());
  return text + matcher_.flush();
}

}  // namespace vayu::server
