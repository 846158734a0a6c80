#include "tokenizer/pipeline/word_cutter.h"

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/pipeline/split_words.h"
#include "tokenizer/unicode_class.h"

namespace vayu {
namespace {

class Split : public WordCutter {
 public:
  Split(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void apply(Words& words) const override {
    std::vector<Words::Word> out;
    for (const Words::Word& word : words.words) {
      WordSplitter splitter(word, behavior_, invert_, out);
      pattern_.for_each_match(std::string_view(words.text).substr(word.begin, word.end - word.begin),
                              [&](size_t begin, size_t end) { splitter.match(word.begin + begin, word.begin + end); });
      splitter.finish();
    }
    words.words = std::move(out);
  }
  bool drops_text() const override { return behavior_ == SplitBehavior::kRemoved; }

 private:
  const Pattern pattern_;
  const SplitBehavior behavior_;
  const bool invert_;
};

// Rewrites every word: fn(word, text of the word, out) appends its new text.
template <class Fn>
void rewrite_words(Words& words, Fn fn) {
  std::string text;
  text.reserve(words.text.size());
  for (Words::Word& word : words.words) {
    const size_t begin = text.size();
    fn(word, std::string_view(words.text).substr(word.begin, word.end - word.begin), text);
    word.begin = begin;
    word.end = text.size();
  }
  words.text = std::move(text);
}

class PrefixSpace : public WordCutter {
 public:
  void apply(Words& words) const override {
    rewrite_words(words, [](const Words::Word&, std::string_view word, std::string& out) {
      if (word.front() != ' ') out.push_back(' ');
      out += word;
    });
  }
};

class PrintableBytes : public WordCutter {
 public:
  void apply(Words& words) const override {
    rewrite_words(words, [](const Words::Word&, std::string_view word, std::string& out) {
      for (const char c : word) append_printable(static_cast<uint8_t>(c), out);
    });
  }
};

class Metaspace : public WordCutter {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  Metaspace(std::string replacement, Prepend prepend, bool split)
      : replacement_(std::move(replacement)), prepend_(prepend), split_(split) {}

  void apply(Words& words) const override {
    rewrite_words(words, [&](const Words::Word& word, std::string_view text, std::string& out) {
      const bool marked = text.front() == ' ' || text.starts_with(replacement_);
      if (!marked && (prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && word.at_start))) {
        out += replacement_;
      }
      for (const char c : text) c == ' ' ? void(out += replacement_) : out.push_back(c);
    });
    if (!split_) return;
    const char32_t mark = decode_utf8(replacement_, 0).code_point;
    split_at_characters(words, SplitBehavior::kMergedWithNext, [mark](char32_t c) { return c == mark; });
  }

 private:
  const std::string replacement_;
  const Prepend prepend_;
  const bool split_;
};

// Splits by a class of characters.
class SplitCharacters : public WordCutter {
 public:
  SplitCharacters(bool (*matches)(char32_t), SplitBehavior behavior) : matches_(matches), behavior_(behavior) {}
  void apply(Words& words) const override { split_at_characters(words, behavior_, matches_); }
  bool drops_text() const override { return behavior_ == SplitBehavior::kRemoved; }

 private:
  bool (*const matches_)(char32_t);
  const SplitBehavior behavior_;
};

// Runs of word characters, and runs of what is neither that nor white space: \w+|[^\w\s]+
class WordRuns : public WordCutter {
 public:
  void apply(Words& words) const override {
    split_at_characters(words, SplitBehavior::kRemoved, [](char32_t c) { return is_space(c) && !is_word_char(c); });
    split_at_characters(words, SplitBehavior::kContiguous, is_word_char);
  }
  bool drops_text() const override { return true; }
};

class CutterSequence : public WordCutter {
 public:
  explicit CutterSequence(std::vector<WordCutterPtr> steps) : steps_(std::move(steps)) {}
  void apply(Words& words) const override {
    for (const WordCutterPtr& step : steps_) step->apply(words);
  }
  bool drops_text() const override {
    return std::ranges::any_of(steps_, [](const WordCutterPtr& step) { return step->drops_text(); });
  }

 private:
  const std::vector<WordCutterPtr> steps_;
};

using Steps = std::vector<WordCutterPtr>;

Result<SplitBehavior> read_behavior(const JsonNode& node, SplitBehavior otherwise) {
  VAYU_ASSIGN_OR_RETURN(const std::string_view name, node.get_string_or("behavior", ""));
  if (name.empty()) return otherwise;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return node.get("behavior")->unknown_kind(name);
}

Status read_split(const JsonNode& node, Steps& steps) {
  VAYU_ASSIGN_OR_RETURN(Pattern pattern, Pattern::read(node));
  VAYU_ASSIGN_OR_RETURN(const SplitBehavior behavior, read_behavior(node, SplitBehavior::kIsolated));
  VAYU_ASSIGN_OR_RETURN(const bool invert, node.get_bool_or("invert", false));
  steps.push_back(make_split(std::move(pattern), behavior, invert));
  return {};
}

Status read_byte_level(const JsonNode& node, Steps& steps) {
  VAYU_ASSIGN_OR_RETURN(const bool prefix, node.get_bool_or("add_prefix_space", true));
  VAYU_ASSIGN_OR_RETURN(const bool use_regex, node.get_bool_or("use_regex", true));
  if (prefix) steps.push_back(std::make_shared<PrefixSpace>());
  if (use_regex) steps.push_back(make_split(Pattern::scanned(PrePattern::kGpt2), SplitBehavior::kIsolated, false));
  steps.push_back(std::make_shared<PrintableBytes>());
  return {};
}

Status read_metaspace(const JsonNode& node, Steps& steps) {
  VAYU_ASSIGN_OR_RETURN(const std::string_view replacement, node.get_string_or("replacement", kMetaspace));
  if (replacement.empty() || decode_utf8(replacement, 0).length != replacement.size()) {
    return node.get("replacement")->corrupt("not one character");
  }
  VAYU_ASSIGN_OR_RETURN(const bool prefix, node.get_bool_or("add_prefix_space", true));  // files before prepend_scheme
  VAYU_ASSIGN_OR_RETURN(const std::string_view scheme,
                        node.get_string_or("prepend_scheme", prefix ? "always" : "never"));
  VAYU_ASSIGN_OR_RETURN(const bool split, node.get_bool_or("split", true));
  using Prepend = Metaspace::Prepend;
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    return node.get("prepend_scheme")->unknown_kind(scheme);
  }
  const Prepend prepend = scheme == "always" ? Prepend::kAlways : scheme == "first" ? Prepend::kFirst : Prepend::kNever;
  steps.push_back(std::make_shared<Metaspace>(std::string(replacement), prepend, split));
  return {};
}

Status read_cutter(const JsonNode& node, Steps& steps);

Status read_sequence(const JsonNode& node, Steps& steps) {
  VAYU_ASSIGN_OR_RETURN(const JsonNode list, node.get("pretokenizers"));
  VAYU_ASSIGN_OR_RETURN(const auto items, list.items());
  for (const JsonNode& item : items) VAYU_RETURN_IF_ERROR(read_cutter(item, steps));
  return {};
}

Status read_digits(const JsonNode& node, Steps& steps) {
  VAYU_ASSIGN_OR_RETURN(const bool apart, node.get_bool_or("individual_digits", false));
  const auto behavior = apart ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
  steps.push_back(std::make_shared<SplitCharacters>(is_number, behavior));
  return {};
}

Status read_cutter(const JsonNode& node, Steps& steps) {
  VAYU_ASSIGN_OR_RETURN(const std::string_view kind, node.get_string("type"));
  if (kind == "Sequence") return read_sequence(node, steps);
  if (kind == "Split") return read_split(node, steps);
  if (kind == "ByteLevel") return read_byte_level(node, steps);
  if (kind == "Metaspace") return read_metaspace(node, steps);
  if (kind == "Digits") return read_digits(node, steps);
  if (kind == "Whitespace") {
    steps.push_back(std::make_shared<WordRuns>());
  } else if (kind == "WhitespaceSplit") {
    steps.push_back(std::make_shared<SplitCharacters>(is_space, SplitBehavior::kRemoved));
  } else if (kind == "Punctuation") {
    VAYU_ASSIGN_OR_RETURN(const SplitBehavior behavior, read_behavior(node, SplitBehavior::kIsolated));
    steps.push_back(std::make_shared<SplitCharacters>(is_punctuation, behavior));
  } else if (kind == "BertPreTokenizer") {
    steps.push_back(std::make_shared<SplitCharacters>(is_space, SplitBehavior::kRemoved));
    steps.push_back(std::make_shared<SplitCharacters>(is_punctuation, SplitBehavior::kIsolated));
  } else {
    return node.unknown_kind(kind);
  }
  return {};
}

}  // namespace

WordCutterPtr make_split(Pattern pattern, SplitBehavior behavior, bool invert) {
  return std::make_shared<Split>(std::move(pattern), behavior, invert);
}

Result<WordCutting> read_word_cutting(const JsonNode& node, bool may_be_raw) {
  Steps steps;
  VAYU_RETURN_IF_ERROR(read_cutter(node, steps));
  WordCutting cutting;
  cutting.raw_bytes =
      may_be_raw && !steps.empty() && dynamic_cast<const PrintableBytes*>(steps.back().get()) != nullptr;
  if (cutting.raw_bytes) steps.pop_back();
  if (!steps.empty()) cutting.cutter = std::make_shared<CutterSequence>(std::move(steps));
  return cutting;
}

}  // namespace vayu
