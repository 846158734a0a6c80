#include "tokenizer/bpe_model.h"

#include <algorithm>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/utf8.h"

namespace vayu {

BpeModel::BpeModel(const PieceTable& pieces, MergeTable merges, BpeOptions options)
    : pieces_(pieces), merges_(std::move(merges)), options_(std::move(options)), whole_words_(pieces.size()) {
  unit_ids_.assign(options_.raw_bytes ? 256 : kTableSize, kNoToken);
  for (size_t i = 0; i < unit_ids_.size(); ++i) {
    std::string unit;
    if (options_.raw_bytes) {
      unit.push_back(static_cast<char>(i));
    } else {
      append_utf8(static_cast<char32_t>(i), unit);
    }
    unit_ids_[i] = pieces_.find(unit);
  }
  cuts_at_spaces_ = can_cut_at_spaces();
}

int BpeModel::num_missing_bytes() const {
  return options_.raw_bytes ? static_cast<int>(std::ranges::count(unit_ids_, kNoToken)) : 0;
}

// Where every token has its U+2581 marks in front, no merge crosses from a word to the mark after it. A text that no
// pre-tokenizer has cut can then be merged word by word: the same ids, without the heap that a long text needs.
bool BpeModel::can_cut_at_spaces() const {
  if (options_.raw_bytes || !options_.continuing_prefix.empty() || !options_.end_of_word_suffix.empty()) return false;
  if (pieces_.find(kMetaspace) == kNoToken) return false;
  for (TokenId id = 0; id < pieces_.size(); ++id) {
    const std::string_view piece = pieces_[id];
    size_t first = 0;
    while (piece.substr(first).starts_with(kMetaspace)) first += kMetaspace.size();
    if (piece.find(kMetaspace, first) != std::string_view::npos && pieces_.find(piece) != kNoToken) return false;
  }
  return true;
}

size_t BpeModel::cut_end(std::string_view word, size_t pos) const {
  size_t end = word.find(kMetaspace, pos + 1);
  while (end != std::string_view::npos && word.substr(0, end).ends_with(kMetaspace)) {
    end = word.find(kMetaspace, end + kMetaspace.size());
  }
  return std::min(end, word.size());
}

// Whether a word that is this token becomes it: most words of prose are found by this one look-up. Found out when first
// asked, since a quarter of a million tokens take a second; threads that ask at once come to the same answer.
bool BpeModel::is_whole_word(TokenId id) const {
  const uint8_t known = whole_words_[id].load(std::memory_order_relaxed);
  if (known != kUnknownWord) return known == kWhole;
  bool whole = options_.whole_word && options_.whole_word(id);
  if (!whole) {
    std::vector<TokenId> ids;
    merge(pieces_[id], ids);
    whole = ids.size() == 1 && ids[0] == id;
  }
  whole_words_[id].store(whole ? kWhole : kParts, std::memory_order_relaxed);
  return whole;
}

void BpeModel::encode(std::string_view word, std::vector<TokenId>& ids) const {
  // Under whole_word the table is about words before any cut, so parts of a cut word go by their merges.
  if (!cuts_at_spaces_) return encode_part(word, ids);
  for (size_t pos = 0; pos < word.size();) {
    const size_t end = cut_end(word, pos);
    if (options_.whole_word && end - pos < word.size()) {
      merge(word.substr(pos, end - pos), ids);
    } else {
      encode_part(word.substr(pos, end - pos), ids);
    }
    pos = end;
  }
}

void BpeModel::encode_part(std::string_view word, std::vector<TokenId>& ids) const {
  if (word.size() <= pieces_.max_bytes()) {
    const TokenId id = pieces_.find(word);
    if (id != kNoToken && is_whole_word(id)) return ids.push_back(id);
  }
  merge(word, ids);
}

void BpeModel::merge(std::string_view word, std::vector<TokenId>& ids) const {
  const size_t start = ids.size();
  if (options_.raw_bytes) {
    push_bytes(word, ids);
  } else {
    push_characters(word, ids);
  }
  ids.resize(start + apply_merges(merges_, ids.data() + start, ids.size() - start));
}

// Bytes without a token and without an unknown token are left out, as the reference does (small vocabularies lack bytes
// that no text of theirs had).
void BpeModel::push_bytes(std::string_view word, std::vector<TokenId>& ids) const {
  bool after_unknown = false;
  for (const char c : word) {
    const TokenId id = unit_ids_[static_cast<uint8_t>(c)];
    if (id != kNoToken) {
      ids.push_back(id);
    } else if (options_.unknown != kNoToken && !(after_unknown && options_.fuse_unknown)) {
      ids.push_back(options_.unknown);
    }
    after_unknown = id == kNoToken;
  }
}

void BpeModel::push_characters(std::string_view word, std::vector<TokenId>& ids) const {
  bool after_unknown = false;
  for (size_t pos = 0; pos < word.size();) {
    const Utf8Char c = decode_utf8(word, pos);
    const size_t length = c.state == Utf8State::kValid ? c.length : 1;
    const bool plain = options_.continuing_prefix.empty() && options_.end_of_word_suffix.empty();
    const bool tabled = plain && c.state == Utf8State::kValid && c.code_point < kTableSize;
    const TokenId id = tabled ? unit_ids_[c.code_point] : character_id(word, pos, length);
    if (id != kNoToken) {
      ids.push_back(id);
      after_unknown = false;
    } else if (!push_fallback(word.substr(pos, length), ids)) {
      if (options_.unknown != kNoToken && !(after_unknown && options_.fuse_unknown)) ids.push_back(options_.unknown);
      after_unknown = true;
    }
    pos += length;
  }
}

TokenId BpeModel::character_id(std::string_view word, size_t pos, size_t length) const {
  std::string key;
  if (pos > 0) key = options_.continuing_prefix;
  key += word.substr(pos, length);
  if (pos + length == word.size()) key += options_.end_of_word_suffix;
  return pieces_.find(key);
}

// The reference keeps a run of unknown characters open across byte tokens, so the run's single token may come after
// them; only a vocabulary that lacks some byte tokens could show that, and here the order of the text is kept.
bool BpeModel::push_fallback(std::string_view character, std::vector<TokenId>& ids) const {
  for (const char c : character) {
    if (options_.byte_ids[static_cast<uint8_t>(c)] == kNoToken) return false;
  }
  for (const char c : character) ids.push_back(options_.byte_ids[static_cast<uint8_t>(c)]);
  return true;
}

}  // namespace vayu
