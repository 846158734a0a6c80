// Cuts normalized text into the words that the model sees: the "pre_tokenizer" part of a tokenizer.json file.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/pipeline/json_node.h"
#include "tokenizer/pipeline/pattern.h"

namespace vayu {

struct Words {
  struct Word {
    size_t begin, end;
    bool at_start;  // its first character stems from the first of the whole input
  };
  std::string text;
  std::vector<Word> words;  // in order, not empty; text between them is gone
};

class WordCutter {
 public:
  virtual ~WordCutter() = default;
  virtual void apply(Words& words) const = 0;
  virtual bool drops_text() const { return false; }  // some text may get into no word
};

using WordCutterPtr = std::shared_ptr<const WordCutter>;

struct WordCutting {
  WordCutterPtr cutter;  // null: the whole text is one word
  // The last step writes bytes as printable characters. It is left to the model then, which starts from bytes.
  bool raw_bytes = false;
};

// The cutter described by a "pre_tokenizer" object; `may_be_raw`: the model can start from bytes. Errors name the path
// of the part in the file.
Result<WordCutting> read_word_cutting(const JsonNode& node, bool may_be_raw);

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

WordCutterPtr make_split(Pattern pattern, SplitBehavior behavior, bool invert);

}  // namespace vayu
