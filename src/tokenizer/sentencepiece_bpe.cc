// SentencePiece-style BPE (tokenizer.ggml.model = llama): no words; the whole stretch starts as its characters with
// spaces as U+2581, and neighbours join while their text is a token, best score first. Characters that end up in no
// token are written as byte tokens <0xNN>.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/merge_table.h"
#include "tokenizer/utf8.h"
#include "tokenizer/vocab_tokenizer.h"

namespace vayu {
namespace {

constexpr std::string_view kScoresKey = "tokenizer.ggml.scores";

std::string bytes_of_token(std::string_view token, TokenType type) {
  if (type == TokenType::kByte) return std::string(1, static_cast<char>(parse_byte_token(token).value_or(0)));
  std::string bytes;
  for (size_t pos = 0; pos < token.size();) {
    const bool is_space = token.substr(pos, kMetaspace.size()) == kMetaspace;
    bytes.push_back(is_space ? ' ' : token[pos]);
    pos += is_space ? kMetaspace.size() : 1;
  }
  return bytes;
}

// Characters as symbols: the token of a one-character text, or a number past the vocabulary for a character that only
// occurs inside longer tokens. Both can merge.
class Characters {
 public:
  Characters(const Vocabulary& vocab) : vocab_size_(vocab.size()) {
    for (TokenId id = 0; id < vocab.size(); ++id) {
      if (!vocab.is_plain(id)) continue;
      const std::string_view bytes = vocab.bytes(id);
      for (size_t pos = 0; pos < bytes.size();) {
        const Utf8Char c = decode_utf8(bytes, pos);
        if (c.state == Utf8State::kValid && !symbols_.contains(c.code_point)) {
          add(c.code_point, vocab.find_plain(bytes.substr(pos, c.length)));
        }
        pos += c.length;
      }
    }
  }

  // Negative: in no token.
  int32_t symbol(char32_t c) const {
    if (c < ascii_.size()) return ascii_[c];
    const auto it = symbols_.find(c);
    return it == symbols_.end() ? -1 : it->second;
  }
  bool is_token(int32_t symbol) const { return symbol >= 0 && symbol < vocab_size_; }
  char32_t past_vocabulary(int32_t symbol) const { return past_vocabulary_[symbol - vocab_size_]; }

 private:
  void add(char32_t c, TokenId id) {
    if (id == kNoToken) {
      id = vocab_size_ + static_cast<int32_t>(past_vocabulary_.size());
      past_vocabulary_.push_back(c);
    }
    symbols_.emplace(c, id);
    if (c < ascii_.size()) ascii_[c] = id;
  }

  int32_t vocab_size_;
  std::vector<char32_t> past_vocabulary_;
  std::unordered_map<char32_t, int32_t> symbols_;
  std::array<int32_t, 128> ascii_ = [] {
    std::array<int32_t, 128> none;
    none.fill(-1);
    return none;
  }();
};

class SentencePieceBpe : public VocabTokenizer {
 public:
  SentencePieceBpe(Vocabulary vocab, const TokenizerSpec& spec, Characters characters, MergeTable merges)
      : VocabTokenizer(std::move(vocab), spec.add_bos.value_or(true), spec.add_eos.value_or(false)),
        adds_space_(spec.add_space_prefix.value_or(true)),
        characters_(std::move(characters)),
        merges_(std::move(merges)) {
    words_apart_ = has_no_inner_space();
    byte_ids_.fill(kNoToken);
    for (TokenId id = 0; id < vocab_.size(); ++id) {
      if (vocab_.type(id) == TokenType::kByte) byte_ids_[static_cast<uint8_t>(vocab_.bytes(id)[0])] = id;
    }
    if (vocab_.unknown_id && vocab_.type(*vocab_.unknown_id) != TokenType::kControl) unknown_ = *vocab_.unknown_id;
  }

  bool strips_leading_space() const override { return adds_space_; }

 protected:
  void encode_text(std::string_view text, std::vector<TokenId>& ids) const override {
    std::vector<int32_t> symbols;
    if (adds_space_ && characters_.symbol(' ') >= 0) symbols.push_back(characters_.symbol(' '));
    for (size_t pos = 0; pos < text.size();) {
      const size_t end = words_apart_ ? word_end(text, pos) : text.size();
      encode_piece(text.substr(pos, end - pos), symbols, ids);
      symbols.clear();
      pos = end;
    }
  }

 private:
  // Whether every token has its spaces in front. No merge then crosses from a word to the space after it, so words can
  // be merged one by one: the same ids, without the heap that a long text needs.
  bool has_no_inner_space() const {
    for (TokenId id = 0; id < vocab_.size(); ++id) {
      const std::string_view bytes = vocab_.bytes(id);
      const size_t first = bytes.find_first_not_of(' ');
      if (vocab_.is_plain(id) && first != std::string_view::npos && bytes.find(' ', first) != std::string_view::npos) {
        return false;
      }
    }
    return true;
  }

  static size_t word_end(std::string_view text, size_t pos) {
    for (size_t end = text.find(' ', pos + 1); end != std::string_view::npos; end = text.find(' ', end + 1)) {
      if (text[end - 1] != ' ' && !text.substr(0, end).ends_with(kMetaspace)) return end;
    }
    return text.size();
  }

  // `symbols` may hold the space in front of the first piece.
  void encode_piece(std::string_view text, std::vector<int32_t>& symbols, std::vector<TokenId>& ids) const {
    for (size_t pos = 0; pos < text.size();) {
      const Utf8Char c = decode_utf8(text, pos);
      if (c.state == Utf8State::kValid) {
        push_character(c.code_point, ~static_cast<int32_t>(pos), symbols);
        pos += c.length;
      } else {
        symbols.push_back(~static_cast<int32_t>(pos++));
      }
    }
    symbols.resize(apply_merges(merges_, symbols.data(), symbols.size()));
    for (const int32_t symbol : symbols) push_token(symbol, text, ids);
  }

  // A character of no token becomes the complement of its place in the text, which never merges.
  // U+2581 in the text itself is a space too, as in SentencePiece.
  void push_character(char32_t c, int32_t place, std::vector<int32_t>& symbols) const {
    const int32_t symbol = characters_.symbol(c == 0x2581 ? U' ' : c);
    symbols.push_back(symbol >= 0 ? symbol : place);
  }

  void push_token(int32_t symbol, std::string_view text, std::vector<TokenId>& ids) const {
    if (characters_.is_token(symbol)) return ids.push_back(symbol);
    std::string bytes;
    if (symbol >= 0) {
      append_utf8(characters_.past_vocabulary(symbol), bytes);
    } else {
      const size_t pos = static_cast<size_t>(~symbol);
      const Utf8Char c = decode_utf8(text, pos);
      bytes = text.substr(pos, c.state == Utf8State::kValid ? c.length : 1);
    }
    push_bytes(bytes, ids);
  }

  void push_bytes(std::string_view bytes, std::vector<TokenId>& ids) const {
    for (const char c : bytes) {
      const TokenId id = byte_ids_[static_cast<uint8_t>(c)];
      if (id != kNoToken) {
        ids.push_back(id);
      } else if (unknown_ != kNoToken) {
        return ids.push_back(unknown_);
      }
    }
  }

  const bool adds_space_;
  bool words_apart_ = false;
  const Characters characters_;
  const MergeTable merges_;
  std::array<TokenId, 256> byte_ids_;
  TokenId unknown_ = kNoToken;
};

// Ranks by falling score; equal scores share a rank, so that the leftmost pair goes first.
Result<std::vector<uint32_t>> ranks_of_scores(const TokenizerSpec& spec) {
  const size_t n = spec.tokens.size();
  if (spec.scores.size() != n) {
    return make_error(ErrorKind::kCorrupt, "{}: {} entries for {} tokens", kScoresKey, spec.scores.size(), n);
  }
  for (size_t i = 0; i < n; ++i) {
    if (!std::isfinite(spec.scores[i])) {
      return make_error(ErrorKind::kCorrupt, "{}: entry {} is not a finite number", kScoresKey, i);
    }
  }
  std::vector<uint32_t> order(n), ranks(n);
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return spec.scores[a] > spec.scores[b]; });
  for (size_t i = 1; i < n; ++i) {
    ranks[order[i]] = ranks[order[i - 1]] + (spec.scores[order[i]] != spec.scores[order[i - 1]]);
  }
  return ranks;
}

// Every way to cut a token into two symbols is a merge, but user-defined tokens are not made by merging.
MergeTable make_merges(const Vocabulary& vocab, const Characters& characters, const std::vector<uint32_t>& ranks) {
  MergeTable table;
  const auto symbol_of = [&](std::string_view bytes) -> int32_t {
    const Utf8Char c = decode_utf8(bytes, 0);
    if (c.state == Utf8State::kValid && c.length == bytes.size()) return characters.symbol(c.code_point);
    return vocab.find_plain(bytes);
  };
  for (TokenId id = 0; id < vocab.size(); ++id) {
    const std::string_view bytes = vocab.bytes(id);
    if (vocab.type(id) != TokenType::kNormal || bytes.empty() || vocab.find_plain(bytes) != id) continue;
    for (size_t cut = decode_utf8(bytes, 0).length; cut < bytes.size(); cut += decode_utf8(bytes, cut).length) {
      const int32_t left = symbol_of(bytes.substr(0, cut));
      if (left < 0) continue;
      const int32_t right = symbol_of(bytes.substr(cut));
      if (right >= 0) table.insert(left, right, {ranks[id], id});
    }
  }
  return table;
}

Status check_byte_tokens(const TokenizerSpec& spec) {
  if (spec.token_types.size() != spec.tokens.size()) {
    return make_error(ErrorKind::kCorrupt, "tokenizer.ggml.token_type: {} entries for {} tokens",
                      spec.token_types.size(), spec.tokens.size());
  }
  for (size_t i = 0; i < spec.tokens.size(); ++i) {
    if (spec.token_types[i] == static_cast<int64_t>(TokenType::kByte) && !parse_byte_token(spec.tokens[i])) {
      return make_error(ErrorKind::kCorrupt, "tokenizer.ggml.tokens: token {} is of type byte but not <0xNN>", i);
    }
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> make_sentencepiece_bpe(const TokenizerSpec& spec) {
  VAYU_RETURN_IF_ERROR(check_added_marks(spec));
  VAYU_RETURN_IF_ERROR(check_byte_tokens(spec));
  VAYU_ASSIGN_OR_RETURN(const std::vector<uint32_t> ranks, ranks_of_scores(spec));
  VAYU_ASSIGN_OR_RETURN(Vocabulary vocab, Vocabulary::make(spec, bytes_of_token));
  Characters characters(vocab);
  MergeTable merges = make_merges(vocab, characters, ranks);
  return std::shared_ptr<const Tokenizer>(
      std::make_shared<SentencePieceBpe>(std::move(vocab), spec, std::move(characters), std::move(merges)));
}

}  // namespace vayu
