// Byte-level BPE (tokenizer.ggml.model = gpt2): text is cut into words by a pattern, each word starts as its bytes, and
// ranked pairs of tokens join.
#include <array>
#include <optional>

#include "base/log.h"
#include "tokenizer/merge_table.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/utf8.h"
#include "tokenizer/vocab_tokenizer.h"

namespace vayu {
namespace {

constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";

// The file writes a byte as a printable character: itself where it is printable in Latin-1, else the next free code
// point from U+0100 on.
bool is_written_as_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// Byte of each code point below U+0144, or -1.
const std::array<int16_t, 0x144>& byte_of_code_point() {
  static const auto table = [] {
    std::array<int16_t, 0x144> bytes;
    bytes.fill(-1);
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      bytes[is_written_as_itself(byte) ? byte : next++] = static_cast<int16_t>(byte);
    }
    return bytes;
  }();
  return table;
}

// User-defined tokens are written as plain text, and so is a token with a character that stands for no byte.
std::string bytes_of_token(std::string_view token, TokenType type) {
  if (type == TokenType::kUserDefined) return std::string(token);
  std::string bytes;
  for (size_t pos = 0; pos < token.size();) {
    const Utf8Char c = decode_utf8(token, pos);
    const auto& table = byte_of_code_point();
    if (c.state != Utf8State::kValid || c.code_point >= table.size() || table[c.code_point] < 0) {
      return std::string(token);
    }
    bytes.push_back(static_cast<char>(table[c.code_point]));
    pos += c.length;
  }
  return bytes;
}

class ByteLevelBpe : public VocabTokenizer {
 public:
  ByteLevelBpe(Vocabulary vocab, const TokenizerSpec& spec, PrePattern pattern, MergeTable merges)
      : VocabTokenizer(std::move(vocab), spec.add_bos.value_or(pattern == PrePattern::kLlama3),
                       spec.add_eos.value_or(false)),
        pattern_(pattern),
        merges_(std::move(merges)) {
    int missing = 0;
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      byte_ids_[byte] = vocab_.find_plain({&c, 1});
      missing += byte_ids_[byte] == kNoToken;
    }
    if (missing > 0) spdlog::debug("tokenizer.ggml.tokens: {} byte values have no token", missing);
    find_whole_words();
  }

  bool strips_leading_space() const override { return false; }

 protected:
  void encode_text(std::string_view text, std::vector<TokenId>& ids) const override {
    for (size_t pos = 0; pos < text.size();) {
      const size_t end = next_word(pattern_, text, pos);
      encode_word(text.substr(pos, end - pos), ids);
      pos = end;
    }
  }

 private:
  // A token that its own bytes merge into is found by one look-up: most words of prose. With the llama-bpe pattern any
  // normal token counts: those models take a word that is a token whatever its merges say.
  void find_whole_words() {
    is_whole_word_.assign(vocab_.size(), false);
    std::vector<TokenId> ids;
    for (TokenId id = 0; id < vocab_.size(); ++id) {
      const std::string_view bytes = vocab_.bytes(id);
      if (!vocab_.is_plain(id) || bytes.empty() || vocab_.find_plain(bytes) != id) continue;
      max_whole_word_ = std::max(max_whole_word_, bytes.size());
      if (pattern_ == PrePattern::kLlama3) {
        is_whole_word_[id] = vocab_.type(id) == TokenType::kNormal;
        continue;
      }
      ids.clear();
      merge_word(bytes, ids);
      is_whole_word_[id] = ids.size() == 1 && ids[0] == id;
    }
  }

  void encode_word(std::string_view word, std::vector<TokenId>& ids) const {
    if (word.size() <= max_whole_word_) {
      const TokenId id = vocab_.find_plain(word);
      if (id != kNoToken && is_whole_word_[id]) return ids.push_back(id);
    }
    merge_word(word, ids);
  }

  // Bytes without a token are left out, as the reference does (small vocabularies lack bytes that no text of theirs
  // had); the unknown token is often a control token, which text must not produce.
  void merge_word(std::string_view word, std::vector<TokenId>& ids) const {
    const size_t start = ids.size();
    ids.resize(start + word.size());
    TokenId* symbols = ids.data() + start;
    size_t count = 0;
    for (const char c : word) {
      symbols[count] = byte_ids_[static_cast<uint8_t>(c)];
      count += symbols[count] != kNoToken;
    }
    ids.resize(start + apply_merges(merges_, symbols, count));
  }

  const PrePattern pattern_;
  const MergeTable merges_;
  std::array<TokenId, 256> byte_ids_;
  std::vector<bool> is_whole_word_;  // (vocab_size)
  size_t max_whole_word_ = 0;        // bytes
};

// Pairs "left right" by rank. The three tokens of a merge must exist; a merge into a control token is left out, since
// text must not become one.
Result<MergeTable> read_merges(const TokenizerSpec& spec, const Vocabulary& vocab) {
  if (spec.merges.empty()) return make_error(ErrorKind::kCorrupt, "{}: absent or empty", kMergesKey);
  MergeTable table;
  table.reserve(spec.merges.size());
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const std::string& merge = spec.merges[rank];
    const size_t space = merge.find(' ', 1);
    if (merge.size() > 2 * kMaxTokenBytes || space == std::string::npos || space + 1 == merge.size()) {
      return make_error(ErrorKind::kCorrupt, "{}: entry {} is not a pair of tokens", kMergesKey, rank);
    }
    const std::string left = bytes_of_token(std::string_view(merge).substr(0, space), TokenType::kNormal);
    const std::string right = bytes_of_token(std::string_view(merge).substr(space + 1), TokenType::kNormal);
    const TokenId left_id = vocab.find_plain(left);
    const TokenId right_id = vocab.find_plain(right);
    const TokenId result = vocab.find_plain(left + right);
    if (result == kNoToken && vocab.markers().find_whole(left + right) != kNoToken) continue;
    if (left_id == kNoToken || right_id == kNoToken || result == kNoToken) {
      return make_error(ErrorKind::kCorrupt, "{}: entry {} '{}' uses a token that is not in tokenizer.ggml.tokens",
                        kMergesKey, rank, merge);
    }
    table.insert(left_id, right_id, {static_cast<uint32_t>(rank), result});
  }
  return table;
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> make_byte_level_bpe(const TokenizerSpec& spec) {
  VAYU_ASSIGN_OR_RETURN(const PrePattern pattern, find_pre_pattern(spec.pre));
  VAYU_RETURN_IF_ERROR(check_added_marks(spec));
  VAYU_ASSIGN_OR_RETURN(Vocabulary vocab, Vocabulary::make(spec, bytes_of_token));
  VAYU_ASSIGN_OR_RETURN(MergeTable merges, read_merges(spec, vocab));
  return std::shared_ptr<const Tokenizer>(
      std::make_shared<ByteLevelBpe>(std::move(vocab), spec, pattern, std::move(merges)));
}

}  // namespace vayu
