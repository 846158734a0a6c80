// Byte-level BPE (tokenizer.ggml.model = gpt2): text is cut into words by a pattern, each word starts as its bytes, and
// ranked pairs of tokens join.
#include "base/log.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/vocab_tokenizer.h"

namespace vayu {
namespace {

constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";

// User-defined tokens are written as plain text, and so is a token with a character that stands for no byte.
std::string bytes_of_token(std::string_view token, TokenType type) {
  if (type == TokenType::kUserDefined) return std::string(token);
  return from_printable(token).value_or(std::string(token));
}

class ByteLevelBpe : public VocabTokenizer {
 public:
  ByteLevelBpe(Vocabulary vocab, const TokenizerSpec& spec, PrePattern pattern, MergeTable merges)
      : VocabTokenizer(std::move(vocab), spec.add_bos.value_or(pattern == PrePattern::kLlama3),
                       spec.add_eos.value_or(false)),
        pattern_(pattern),
        model_(vocab_.pieces(), std::move(merges), options_for(pattern)) {
    if (const int missing = model_.num_missing_bytes(); missing > 0) {
      spdlog::debug("tokenizer.ggml.tokens: {} byte values have no token", missing);
    }
  }

  bool strips_leading_space() const override { return false; }

 protected:
  void encode_text(std::string_view text, std::vector<TokenId>& ids) const override {
    for (size_t pos = 0; pos < text.size();) {
      const size_t end = next_word(pattern_, text, pos);
      model_.encode(text.substr(pos, end - pos), ids);
      pos = end;
    }
  }

 private:
  // No unknown token: it is often a control token, which text must not produce. Models of the llama-bpe pattern take a
  // word that is a normal token whatever its merges say.
  BpeOptions options_for(PrePattern pattern) const {
    BpeOptions options{.raw_bytes = true};
    if (pattern == PrePattern::kLlama3) {
      options.whole_word = [this](TokenId id) { return vocab_.type(id) == TokenType::kNormal; };
    }
    return options;
  }

  const PrePattern pattern_;
  const BpeModel model_;
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
