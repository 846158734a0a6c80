// Unigram language model of one word: the cut into pieces with the best sum of scores.
#pragma once

#include <array>
#include <vector>

#include "tokenizer/piece_table.h"
#include "tokenizer/pipeline/byte_trie.h"
#include "tokenizer/subword_model.h"

namespace vayu {

struct UnigramOptions {
  std::vector<double> scores;         // (pieces) log-probabilities
  TokenId unknown = kNoToken;         // none: characters without a piece are left out
  bool byte_fallback = false;         // bytes in place of the unknown token, if all have one
  std::array<TokenId, 256> byte_ids;  // <0xNN> tokens
};

class UnigramModel : public SubwordModel {
 public:
  // `pieces` finds the tokens that text may become; it must outlive this.
  UnigramModel(const PieceTable& pieces, UnigramOptions options);
  // Time O(bytes * longest piece), 16 bytes of memory a byte.
  void encode(std::string_view word, std::vector<TokenId>& ids) const override;

 private:
  struct Step {
    double score = 0;
    uint32_t length = 0;    // bytes of the piece that ends here; 0: not reached
    TokenId id = kNoToken;  // unknown_mark_: a character without a piece
  };
  void find_best_steps(std::string_view word, std::vector<Step>& steps) const;
  void push_unknown(std::string_view run, std::vector<TokenId>& ids) const;

  const PieceTable& pieces_;
  const UnigramOptions options_;
  const ByteTrie trie_;
  double unknown_score_ = 0;
};

}  // namespace vayu
