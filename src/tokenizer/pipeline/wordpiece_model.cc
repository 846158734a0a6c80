#include "tokenizer/pipeline/wordpiece_model.h"

#include "tokenizer/utf8.h"

namespace vayu {
namespace {

ByteTrie make_trie(const PieceTable& pieces) {
  std::vector<std::pair<std::string_view, TokenId>> list;
  for (TokenId id = 0; id < pieces.size(); ++id) {
    if (pieces.find(pieces[id]) == id) list.emplace_back(pieces[id], id);
  }
  return ByteTrie(std::move(list));
}

bool longer_than(std::string_view word, size_t max_characters) {
  size_t count = 0;
  for (size_t pos = 0; pos < word.size(); pos += decode_utf8(word, pos).length) {
    if (++count > max_characters) return true;
  }
  return false;
}

}  // namespace

WordPieceModel::WordPieceModel(const PieceTable& pieces, WordPieceOptions options)
    : options_(std::move(options)), trie_(make_trie(pieces)), inside_(trie_.walk(options_.continuing_prefix)) {}

void WordPieceModel::encode(std::string_view word, std::vector<TokenId>& ids) const {
  const size_t start = ids.size();
  const bool too_long = longer_than(word, options_.max_characters);
  for (size_t pos = 0; pos < word.size() && !too_long;) {
    TokenId best = kNoToken;
    size_t best_end = pos;
    int32_t node = pos == 0 ? ByteTrie::kRoot : inside_;
    for (size_t end = pos; node >= 0 && end < word.size();) {
      node = trie_.child(node, static_cast<uint8_t>(word[end++]));
      if (node < 0 || trie_.id(node) == kNoToken) continue;
      best = trie_.id(node);
      best_end = end;
    }
    if (best == kNoToken) break;
    ids.push_back(best);
    pos = best_end;
    if (pos == word.size()) return;
  }
  ids.resize(start);
  ids.push_back(options_.unknown);
}

}  // namespace vayu
