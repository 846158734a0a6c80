// Rewrites text before it is cut into words: the "normalizer" part of a tokenizer.json file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/pipeline/json_node.h"
#include "tokenizer/pipeline/pattern.h"

namespace vayu {

struct NormalizedText {
  std::string text;
  std::vector<uint8_t> trusted;  // (text) 1: may be part of a special token; empty: not tracked, all alike
  bool at_start = false;         // the first character stems from the first of the whole input
};

// Builds the next form of a text from ranges of the present one, in order, keeping track of trust.
class Rewriter {
 public:
  explicit Rewriter(NormalizedText& text) : from_(text) { out_.reserve(text.text.size()); }
  // Replaces from's [begin, end) by `with`; an empty range inserts. New bytes are trusted if all replaced ones are.
  void replace(size_t begin, size_t end, std::string_view with) { replace(begin, end, with, begin); }
  // `origin`: where the new bytes count as stemming from.
  void replace(size_t begin, size_t end, std::string_view with, size_t origin);
  void copy(size_t begin, size_t end);
  void finish();  // the built form takes the place of the present one

 private:
  void note_start(size_t begin);

  NormalizedText& from_;
  std::string out_;
  std::vector<uint8_t> trusted_;
  bool started_ = false, at_start_ = false;
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(NormalizedText& text) const = 0;
  // Text of n bytes gives at least n / max_shrink() bytes; 0: no such bound.
  virtual size_t max_shrink() const { return 0; }
};

using NormalizerPtr = std::shared_ptr<const Normalizer>;

// The normalizer described by a "normalizer" object. Errors name the path of the part in the file.
Result<NormalizerPtr> read_normalizer(const JsonNode& node);

NormalizerPtr make_replace(Pattern pattern, std::string content);

// Kinds with tables of their own, from their JSON objects.
Result<NormalizerPtr> make_unicode_form(std::string_view kind);         // NFC, NFD, NFKC, NFKD
Result<NormalizerPtr> read_precompiled_charsmap(const JsonNode& node);  // Precompiled
Result<NormalizerPtr> read_bert_normalizer(const JsonNode& node);

}  // namespace vayu
