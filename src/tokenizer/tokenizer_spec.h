// What a tokenizer is made of, in the terms of GGUF's tokenizer.ggml.* keys; load_tokenizer fills this from a file and
// tests write it by hand.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace vayu {

// Values as in tokenizer.ggml.token_type.
enum class TokenType : uint8_t {
  kUndefined = 0,  // treated as normal
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // made only by whole-marker matching, never by merges: plain text cannot become a control id
  kUserDefined = 4,  // whole-marker matching; a run of white space is matched in any text, others as control tokens are
  kUnused = 5,
  kByte = 6,  // <0xNN>
};

struct TokenizerSpec {
  std::string model;  // "gpt2": BPE by merges, byte-level unless pre says otherwise; "llama": SentencePiece-style BPE
  // gpt2: name of the pre-tokenizer pattern (pre_tokenizer.h), or sarvam-moe (escaped_bpe.cc)
  std::string pre = "default";
  std::vector<std::string> tokens;  // (vocab_size) gpt2: bytes written as printable characters; llama: U+2581 for space
  std::vector<float> scores;        // (vocab_size) llama: higher merges first; unused by gpt2
  std::vector<int64_t> token_types;  // (vocab_size), or empty: all normal
  std::vector<std::string> merges;   // gpt2: "left right", best first
  std::optional<int64_t> bos_id, eos_id, eot_id, eom_id, unknown_id;
  std::optional<bool> add_bos;           // absent: true for llama and for the llama-bpe pattern
  std::optional<bool> add_eos;           // absent: false
  std::optional<bool> add_space_prefix;  // llama; absent: true
};

// Checks the spec and builds the tables. Errors are kCorrupt or kUnsupported and name the tokenizer.ggml key.
//
// end_ids() of the result is the union of eos_id, eot_id, eom_id and of every control token whose text is one of the
// well-known ends of a turn or of a text (</s>, <|im_end|>, <|eot_id|>, <|endoftext|>, ...; list in end_markers.cc).
Result<std::shared_ptr<const Tokenizer>> make_tokenizer(TokenizerSpec spec);

}  // namespace vayu
