#include "tokenizer/vocabulary.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <unordered_map>

#include "tokenizer/end_markers.h"

namespace vayu {
namespace {

constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
constexpr std::string_view kTypesKey = "tokenizer.ggml.token_type";

bool is_whitespace_run(std::string_view text) {
  return !text.empty() && text.find_first_not_of(" \t\n\r\v\f") == std::string_view::npos;
}

Result<std::optional<TokenId>> checked_id(std::string_view key, std::optional<int64_t> id, int32_t vocab_size) {
  if (!id) return std::optional<TokenId>();
  if (*id < 0 || *id >= vocab_size) {
    return make_error(ErrorKind::kCorrupt, "{}: {} is outside the vocabulary of {} tokens", key, *id, vocab_size);
  }
  return std::optional<TokenId>(static_cast<TokenId>(*id));
}

Status check_unique(const std::vector<std::string>& tokens) {
  std::unordered_map<std::string_view, size_t> seen;
  seen.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto [it, is_new] = seen.emplace(tokens[i], i);
    if (!is_new) {
      return make_error(ErrorKind::kCorrupt, "{}: tokens {} and {} are both '{}'", kTokensKey, it->second, i,
                        tokens[i]);
    }
  }
  return {};
}

}  // namespace

Result<Vocabulary> Vocabulary::make(const TokenizerSpec& spec, ToBytes to_bytes) {
  Vocabulary vocab;
  VAYU_RETURN_IF_ERROR(vocab.read_tokens(spec, to_bytes));
  VAYU_RETURN_IF_ERROR(vocab.read_ids(spec));
  for (TokenId id = 0; id < vocab.size(); ++id) {
    const TokenType type = vocab.type(id);
    if (type == TokenType::kControl || type == TokenType::kUnknown || type == TokenType::kUserDefined) {
      const bool always = type == TokenType::kUserDefined && is_whitespace_run(vocab.bytes(id));
      vocab.markers_.add(vocab.bytes(id), id, always);
    }
  }
  vocab.pieces_.index([&](TokenId id) { return vocab.is_plain(id); });
  return vocab;
}

Status Vocabulary::read_tokens(const TokenizerSpec& spec, ToBytes to_bytes) {
  const size_t n = spec.tokens.size();
  if (n == 0) return make_error(ErrorKind::kCorrupt, "{}: empty", kTokensKey);
  if (n > size_t{1} << 24) return make_error(ErrorKind::kUnsupported, "{}: {} tokens, limit 2^24", kTokensKey, n);
  if (!spec.token_types.empty() && spec.token_types.size() != n) {
    return make_error(ErrorKind::kCorrupt, "{}: {} entries for {} tokens", kTypesKey, spec.token_types.size(), n);
  }
  VAYU_RETURN_IF_ERROR(check_unique(spec.tokens));
  types_.assign(n, TokenType::kNormal);
  pieces_.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    const std::string& token = spec.tokens[i];
    if (token.size() > kMaxTokenBytes) {
      return make_error(ErrorKind::kUnsupported, "{}: token {} has {} bytes, limit {}", kTokensKey, i, token.size(),
                        kMaxTokenBytes);
    }
    if (!spec.token_types.empty()) {
      const int64_t type = spec.token_types[i];
      if (type < 0 || type > static_cast<int64_t>(TokenType::kByte)) {
        return make_error(ErrorKind::kCorrupt, "{}: token {} has unknown type {}", kTypesKey, i, type);
      }
      types_[i] = type == 0 ? TokenType::kNormal : static_cast<TokenType>(type);
    }
    const bool raw = types_[i] == TokenType::kControl || types_[i] == TokenType::kUnknown;
    pieces_.add(raw ? token : to_bytes(token, types_[i]));
  }
  return {};
}

Status Vocabulary::read_ids(const TokenizerSpec& spec) {
  VAYU_ASSIGN_OR_RETURN(bos_id, checked_id("tokenizer.ggml.bos_token_id", spec.bos_id, size()));
  VAYU_ASSIGN_OR_RETURN(eos_id, checked_id("tokenizer.ggml.eos_token_id", spec.eos_id, size()));
  VAYU_ASSIGN_OR_RETURN(unknown_id, checked_id("tokenizer.ggml.unknown_token_id", spec.unknown_id, size()));
  VAYU_ASSIGN_OR_RETURN(const auto eot_id, checked_id("tokenizer.ggml.eot_token_id", spec.eot_id, size()));
  VAYU_ASSIGN_OR_RETURN(const auto eom_id, checked_id("tokenizer.ggml.eom_token_id", spec.eom_id, size()));
  for (const auto& id : {eos_id, eot_id, eom_id}) {
    if (id) end_ids.push_back(*id);
  }
  if (spec.token_types.empty()) {  // files from before token types: only the ids tell what a marker is
    for (const auto& id : {bos_id, eos_id, eot_id, eom_id}) {
      if (id) types_[*id] = TokenType::kControl;
    }
  }
  std::vector<std::pair<TokenId, std::string_view>> markers;
  for (TokenId id = 0; id < size(); ++id) {
    if (type(id) == TokenType::kControl) markers.emplace_back(id, bytes(id));
  }
  end_ids = union_of_ends(std::move(end_ids), markers);
  return {};
}

bool Vocabulary::is_special(TokenId id) const {
  return contains(id) && (types_[id] == TokenType::kControl || types_[id] == TokenType::kUnknown);
}

bool Vocabulary::is_plain(TokenId id) const {
  return types_[id] == TokenType::kNormal || types_[id] == TokenType::kUserDefined;
}

}  // namespace vayu
