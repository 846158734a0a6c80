// Byte-level BPE (tokenizer.ggml.model = gpt2): text is cut into words by a pattern, each word starts as its bytes, and
// ranked pairs of tokens join.
#include "base/log.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/vocab_tokenizer.h"

namespace vayu {
namespace {

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

}  // namespace

Result<std::shared_ptr<const Tokenizer>> make_byte_level_bpe(const TokenizerSpec& spec) {
  VAYU_ASSIGN_OR_RETURN(const PrePattern pattern, find_pre_pattern(spec.pre));
  VAYU_RETURN_IF_ERROR(check_added_marks(spec));
  VAYU_ASSIGN_OR_RETURN(Vocabulary vocab, Vocabulary::make(spec, bytes_of_token));
  VAYU_ASSIGN_OR_RETURN(MergeTable merges, read_merges(spec, vocab, bytes_of_token));
  return std::shared_ptr<const Tokenizer>(
      std::make_shared<ByteLevelBpe>(std::move(vocab), spec, pattern, std::move(merges)));
}

}  // namespace vayu
