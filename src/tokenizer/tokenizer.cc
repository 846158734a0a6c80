#include "tokenizer/tokenizer.h"

namespace vayu {

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  StreamDecoder decoder(*this, skip_special);
  std::string text;
  for (const TokenId id : ids) text += decoder.push(id);
  return text += decoder.finish();
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special), rules_(tokenizer.decode_rules(skip_special)) {}

std::string StreamDecoder::push(TokenId id) {
  if (rules_ != nullptr) return rules_->push(id);
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  std::string_view bytes = tokenizer_->token_bytes(id);
  if (bytes.empty()) return {};
  if (at_start_ && tokenizer_->strips_leading_space() && bytes.front() == ' ') bytes.remove_prefix(1);
  at_start_ = false;
  return joiner_.push(bytes);
}

std::string StreamDecoder::finish() { return rules_ != nullptr ? rules_->finish() : joiner_.finish(); }

}  // namespace vayu
