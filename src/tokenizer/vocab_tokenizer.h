// What both kinds of BPE share: markers are cut out first, the text between them goes to encode_text.
#pragma once

#include "tokenizer/merge_table.h"
#include "tokenizer/vocabulary.h"

namespace vayu {

class VocabTokenizer : public Tokenizer {
 public:
  int32_t vocab_size() const override { return vocab_.size(); }
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override;
  std::string_view token_bytes(TokenId id) const override { return vocab_.bytes(id); }
  bool is_special(TokenId id) const override { return vocab_.is_special(id); }
  std::optional<TokenId> find(std::string_view token) const override;
  std::optional<TokenId> bos_id() const override { return vocab_.bos_id; }
  std::span<const TokenId> end_ids() const override { return vocab_.end_ids; }
  bool adds_bos() const override { return adds_bos_; }
  size_t max_token_bytes() const override { return vocab_.max_bytes(); }

 protected:
  VocabTokenizer(Vocabulary vocab, bool adds_bos, bool adds_eos)
      : vocab_(std::move(vocab)), adds_bos_(adds_bos && vocab_.bos_id), adds_eos_(adds_eos && vocab_.eos_id) {}

  // Appends the ids of a stretch of plain text, not empty and at most kMaxStretchBytes.
  virtual void encode_text(std::string_view text, std::vector<TokenId>& ids) const = 0;

  // Keeps symbol positions in 31 bits. Longer text is cut there, which may change ids at the cut.
  static constexpr size_t kMaxStretchBytes = size_t{1} << 30;

  const Vocabulary vocab_;

 private:
  void encode_stretch(std::string_view text, std::vector<TokenId>& ids) const;

  const bool adds_bos_, adds_eos_;
};

// The error when a file says yes to a key, but lacks the id that it needs.
Status check_added_marks(const TokenizerSpec& spec);

// Pairs "left right" of spec.merges by rank. The three tokens of a merge must exist; a merge into a control token is
// left out, since text must not become one.
Result<MergeTable> read_merges(const TokenizerSpec& spec, const Vocabulary& vocab, Vocabulary::ToBytes to_bytes);

// All read the parts of the spec that concern them (tokenizer_spec.h).
Result<std::shared_ptr<const Tokenizer>> make_byte_level_bpe(const TokenizerSpec& spec);
Result<std::shared_ptr<const Tokenizer>> make_sentencepiece_bpe(const TokenizerSpec& spec);
Result<std::shared_ptr<const Tokenizer>> make_escaped_bpe(const TokenizerSpec& spec);

}  // namespace vayu
