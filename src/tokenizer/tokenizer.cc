#include "tokenizer/tokenizer.h"

#include "tokenizer/utf8.h"

namespace vayu {

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  StreamDecoder decoder(*this, skip_special);
  std::string text;
  for (const TokenId id : ids) text += decoder.push(id);
  return text += decoder.finish();
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special) {}

std::string StreamDecoder::push(TokenId id) {
  std::string text;
  if (skip_special_ && tokenizer_->is_special(id)) return text;
  std::string_view bytes = tokenizer_->token_bytes(id);
  if (bytes.empty()) return text;
  if (at_start_ && tokenizer_->strips_leading_space() && bytes.front() == ' ') bytes.remove_prefix(1);
  at_start_ = false;
  pending_.append(bytes);
  pending_.erase(0, append_valid_utf8(pending_, text));
  return text;
}

std::string StreamDecoder::finish() {
  // What waits is the right beginning of one character, hence a single maximal bad sequence.
  std::string text(pending_.empty() ? std::string_view() : kReplacementUtf8);
  pending_.clear();
  return text;
}

}  // namespace vayu
