// WordPiece: the longest piece from the left, again and again; a word that does not work out is one unknown token.
#pragma once

#include <string>

#include "tokenizer/piece_table.h"
#include "tokenizer/pipeline/byte_trie.h"
#include "tokenizer/subword_model.h"

namespace vayu {

struct WordPieceOptions {
  TokenId unknown = kNoToken;
  std::string continuing_prefix = "##";  // pieces inside a word are written with it
  size_t max_characters = 100;           // of a word; longer ones are unknown
};

class WordPieceModel : public SubwordModel {
 public:
  // `pieces` finds the tokens that text may become.
  WordPieceModel(const PieceTable& pieces, WordPieceOptions options);
  void encode(std::string_view word, std::vector<TokenId>& ids) const override;

 private:
  const WordPieceOptions options_;
  const ByteTrie trie_;
  int32_t inside_ = -1;  // node of the trie after the prefix
};

}  // namespace vayu
