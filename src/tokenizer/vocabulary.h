// The part of a tokenizer that does not depend on how text is cut: tokens, their types and bytes, markers and ends.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/types.h"
#include "tokenizer/marker_matcher.h"
#include "tokenizer/piece_table.h"
#include "tokenizer/tokenizer_spec.h"

namespace vayu {

// Longest token accepted, in bytes of the file's form. Real vocabularies stay under 1,100 (runs of spaces).
constexpr size_t kMaxTokenBytes = 4096;

class Vocabulary {
 public:
  // Turns the file's form of a normal or user-defined token into the bytes it stands for in text.
  using ToBytes = std::string (*)(std::string_view token, TokenType type);

  // Checks tokens, types and special ids of `spec`. Reads spec.tokens, token_types and ids.
  static Result<Vocabulary> make(const TokenizerSpec& spec, ToBytes to_bytes);

  int32_t size() const { return static_cast<int32_t>(types_.size()); }
  bool contains(TokenId id) const { return id >= 0 && id < size(); }
  // `id` may be out of range in these two.
  std::string_view bytes(TokenId id) const { return contains(id) ? pieces_[id] : std::string_view(); }
  bool is_special(TokenId id) const;
  TokenType type(TokenId id) const { return types_[id]; }  // id in range
  // Plain text can become such a token by merging.
  bool is_plain(TokenId id) const;

  size_t max_bytes() const { return pieces_.max_bytes(); }  // of the longest token
  // Id of a plain token by its bytes, kNoToken if none; of two spellings of the same bytes the lower id.
  TokenId find_plain(std::string_view bytes) const { return pieces_.find(bytes); }
  const PieceTable& pieces() const { return pieces_; }  // bytes; plain tokens are indexed
  const MarkerMatcher& markers() const { return markers_; }

  std::optional<TokenId> bos_id, eos_id, unknown_id;
  std::vector<TokenId> end_ids;  // sorted

 private:
  Status read_tokens(const TokenizerSpec& spec, ToBytes to_bytes);
  Status read_ids(const TokenizerSpec& spec);

  PieceTable pieces_;             // bytes
  std::vector<TokenType> types_;  // (size)
  MarkerMatcher markers_;
};

}  // namespace vayu
