// Token texts back to text: the "decoder" part of a tokenizer.json file, applied token by token.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/pipeline/json_node.h"
#include "tokenizer/pipeline/pattern.h"

namespace vayu {

// One decoder of a file.
class DecodeStep {
 public:
  struct Place {
    bool first = false;  // no token came before
    bool last = false;   // none follows
  };
  virtual ~DecodeStep() = default;
  virtual void apply(std::string& token, Place place) const = 0;
  virtual bool reads_last() const { return false; }  // needs to know whether the token is the last
  // Strip can work on a text that arrives in parts: how many of which character go at its start.
  struct Lead {
    std::string character;
    int64_t count;
  };
  virtual std::optional<Lead> lead() const { return std::nullopt; }
};

class DecodeChain {
 public:
  // Without a "decoder" the reference joins tokens with spaces.
  static DecodeChain join_with_spaces();
  static Result<DecodeChain> read(const JsonNode& node);
  // Replaces `from` by `to` in every token, then <0xNN> by the byte.
  static DecodeChain replace_then_bytes(std::string from, std::string to);

  // Bytes of one token in its place; they may be part of a character.
  std::string token_bytes(std::string_view token, DecodeStep::Place place) const;
  bool reads_last() const;
  // What is left to do on the joined text: taking leading characters away as it arrives ...
  const std::vector<DecodeStep::Lead>& leads() const { return leads_; }
  // ... or, if this says so, steps that need the whole text.
  bool needs_whole_text() const { return !whole_text_.empty(); }
  std::string finish_whole_text(std::string text) const;

 private:
  using Steps = std::vector<std::shared_ptr<const DecodeStep>>;
  void split_at_join(Steps joined);

  Steps steps_;       // by token
  Steps whole_text_;  // on the joined text, when one of them cannot work in parts
  std::vector<DecodeStep::Lead> leads_;
};

}  // namespace vayu
