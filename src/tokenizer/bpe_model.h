// Byte-pair encoding of one word: it starts as its bytes or its characters, and ranked pairs of neighbours join.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "tokenizer/merge_table.h"
#include "tokenizer/piece_table.h"
#include "tokenizer/subword_model.h"

namespace vayu {

struct BpeOptions {
  bool raw_bytes = false;                          // start from bytes; else from characters
  TokenId unknown = kNoToken;                      // for a character without a token; none: it is left out
  bool fuse_unknown = false;                       // one unknown token for a run of such characters
  std::string continuing_prefix;                   // in front of every character but the first when looked up ("##")
  std::string end_of_word_suffix;                  // behind the last character when looked up ("</w>")
  std::array<TokenId, 256> byte_ids = no_bytes();  // <0xNN> tokens: a character without a token becomes its bytes
  // Words that are a token become it whatever the merges say, if this is set and true for the token.
  std::function<bool(TokenId)> whole_word;

  static std::array<TokenId, 256> no_bytes() {
    std::array<TokenId, 256> none;
    none.fill(kNoToken);
    return none;
  }
};

class BpeModel : public SubwordModel {
 public:
  // `pieces` finds the tokens that text may become, in the form that words have; it must outlive this.
  BpeModel(const PieceTable& pieces, MergeTable merges, BpeOptions options);

  void encode(std::string_view word, std::vector<TokenId>& ids) const override;
  int num_missing_bytes() const;  // raw_bytes: byte values without a token

 private:
  bool is_whole_word(TokenId id) const;
  bool can_cut_at_spaces() const;
  size_t cut_end(std::string_view word, size_t pos) const;
  void encode_part(std::string_view word, std::vector<TokenId>& ids) const;
  void merge(std::string_view word, std::vector<TokenId>& ids) const;
  void push_bytes(std::string_view word, std::vector<TokenId>& ids) const;
  void push_characters(std::string_view word, std::vector<TokenId>& ids) const;
  TokenId character_id(std::string_view word, size_t pos, size_t length) const;
  bool push_fallback(std::string_view character, std::vector<TokenId>& ids) const;

  static constexpr char32_t kTableSize = 0x3000;  // Latin to Hangul Jamo, with every Indic block

  const PieceTable& pieces_;
  const MergeTable merges_;
  const BpeOptions options_;
  std::vector<TokenId> unit_ids_;  // raw_bytes: (256), else (kTableSize): token of a byte or a character
  enum WholeWord : uint8_t { kUnknownWord, kWhole, kParts };
  mutable std::vector<std::atomic<uint8_t>> whole_words_;  // (pieces) WholeWord
  bool cuts_at_spaces_ = false;
};

}  // namespace vayu
