// Text to token ids and back. Immutable after creation; every method is thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/types.h"
#include "tokenizer/utf8.h"

namespace vayu::loader {
class GgufFile;
}

namespace vayu {

struct EncodeOptions {
  bool parse_special = false;  // whole special tokens in the text become their ids
  bool add_special = true;     // put BOS (and EOS) where the model's own settings say so
  // With parse_special: one byte for each byte of text; a special token is recognised only where all its bytes are 1.
  // Empty: everywhere. Text around special tokens is tokenised the same either way.
  std::span<const uint8_t> trusted;
};

// One incremental decode by rules that look beyond single tokens. One thread at a time.
class DecodeRules {
 public:
  virtual ~DecodeRules() = default;
  virtual std::string push(TokenId id) = 0;  // text that is now complete, perhaps empty
  virtual std::string finish() = 0;          // the rest
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual int32_t vocab_size() const = 0;
  virtual std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const = 0;
  // Bytes of one token as they stand in the output text: a byte-level or byte-fallback token may be part of a
  // character. Special tokens give their name. Ids out of range give nothing.
  virtual std::string_view token_bytes(TokenId id) const = 0;
  // Control markers and the unknown token: left out of visible text. User-defined tokens (a tool-call tag, a run of
  // newlines) are text that callers parse or show, so they are not special.
  virtual bool is_special(TokenId id) const = 0;
  virtual std::optional<TokenId> find(std::string_view token) const = 0;  // id of a whole special or plain token
  virtual std::optional<TokenId> bos_id() const = 0;
  virtual std::span<const TokenId> end_ids() const = 0;  // every id the model file declares as an end (F06), sorted
  virtual bool adds_bos() const = 0;
  // Longest token in bytes: text of more than n times this is more than n tokens, and can be refused unencoded. 0: not
  // known.
  virtual size_t max_token_bytes() const { return 0; }
  // True for SentencePiece-style models whose decoder drops the space put in front of the first word.
  virtual bool strips_leading_space() const = 0;
  // Null where text is the tokens' bytes in a row, less that space. The tokenizer must outlive the result.
  virtual std::unique_ptr<DecodeRules> decode_rules(bool skip_special) const { return nullptr; }

  // Whole text of ids; incomplete or invalid UTF-8 becomes one U+FFFD for each maximal bad sequence.
  std::string decode(std::span<const TokenId> ids, bool skip_special = true) const;
};

// Incremental decode of one answer: pieces joined equal Tokenizer::decode of all ids, and no piece ends inside a
// character. One thread at a time.
class StreamDecoder {
 public:
  // `skip_special`: markers are left out. The tokenizer must outlive this.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
  std::string push(TokenId id);  // text that is now complete, perhaps empty
  std::string finish();          // what an answer cut inside a character leaves: one U+FFFD or nothing

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool at_start_ = true;
  Utf8Joiner joiner_;
  std::unique_ptr<DecodeRules> rules_;
};

// From a GGUF file's tokenizer.ggml.* keys (tokenizer_spec.h says what each does). Errors name the key.
Result<std::shared_ptr<const Tokenizer>> load_tokenizer(const loader::GgufFile& file);

}  // namespace vayu
