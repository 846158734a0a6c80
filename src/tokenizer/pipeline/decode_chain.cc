#include "tokenizer/pipeline/decode_chain.h"

#include <algorithm>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/utf8.h"

namespace vayu {
namespace {

using Place = DecodeStep::Place;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::string out;
  size_t done = 0;
  for (size_t pos = text.find(from); pos != std::string::npos; pos = text.find(from, done)) {
    out.append(text, done, pos - done);
    out += to;
    done = pos + from.size();
  }
  if (done > 0) text = out.append(text, done);
}

class PrintableToBytes : public DecodeStep {
 public:
  void apply(std::string& token, Place) const override {
    if (auto bytes = from_printable(token)) token = std::move(*bytes);
  }
};

class ByteFallback : public DecodeStep {
 public:
  void apply(std::string& token, Place) const override {
    if (const auto byte = parse_byte_token(token)) token.assign(1, static_cast<char>(*byte));
  }
};

class MetaspaceToSpace : public DecodeStep {
 public:
  MetaspaceToSpace(std::string mark, bool drops_first) : mark_(std::move(mark)), drops_first_(drops_first) {}
  void apply(std::string& token, Place place) const override {
    replace_all(token, mark_, place.first && drops_first_ ? "" : " ");
  }

 private:
  const std::string mark_;
  const bool drops_first_;
};

class ReplacePattern : public DecodeStep {
 public:
  ReplacePattern(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::string& token, Place) const override {
    std::string out;
    size_t done = 0;
    pattern_.for_each_match(token, [&](size_t begin, size_t end) {
      out.append(token, done, begin - done);
      out += content_;
      done = end;
    });
    token = out.append(token, done);
  }

 private:
  const Pattern pattern_;
  const std::string content_;
};

class StripCharacter : public DecodeStep {
 public:
  StripCharacter(std::string character, int64_t start, int64_t stop)
      : character_(std::move(character)), start_(start), stop_(stop) {}
  void apply(std::string& token, Place) const override {
    size_t begin = 0, end = token.size();
    for (int64_t i = 0; i < start_ && token.compare(begin, character_.size(), character_) == 0; ++i) {
      begin += character_.size();
    }
    for (int64_t i = 0; i < stop_ && end - begin >= character_.size(); ++i) {
      if (token.compare(end - character_.size(), character_.size(), character_) != 0) break;
      end -= character_.size();
    }
    token = token.substr(begin, end - begin);
  }
  std::optional<Lead> lead() const override {
    return stop_ == 0 ? std::optional<Lead>(Lead{character_, start_}) : std::nullopt;
  }

 private:
  const std::string character_;
  const int64_t start_, stop_;
};

class WordPieces : public DecodeStep {
 public:
  WordPieces(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void apply(std::string& token, Place place) const override {
    if (!place.first) {
      if (token.starts_with(prefix_)) {
        token.erase(0, prefix_.size());
      } else {
        token.insert(0, " ");
      }
    }
    if (cleanup_) clean_up(token);
  }

 private:
  // English spacing as BERT's own tools undo it.
  static void clean_up(std::string& token) {
    static constexpr std::pair<std::string_view, std::string_view> kChanges[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : kChanges) replace_all(token, from, to);
  }

  const std::string prefix_;
  const bool cleanup_;
};

class WordEnds : public DecodeStep {
 public:
  explicit WordEnds(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(std::string& token, Place place) const override { replace_all(token, suffix_, place.last ? "" : " "); }
  bool reads_last() const override { return true; }

 private:
  const std::string suffix_;
};

class SpaceBetween : public DecodeStep {
 public:
  void apply(std::string& token, Place place) const override {
    if (!place.first) token.insert(0, " ");
  }
};

using StepPtr = std::shared_ptr<const DecodeStep>;

Result<StepPtr> read_strip(const JsonNode& node) {
  VAYU_ASSIGN_OR_RETURN(const std::string_view character, node.get_string("content"));
  VAYU_ASSIGN_OR_RETURN(const int64_t start, node.get_int_or("start", 0));
  VAYU_ASSIGN_OR_RETURN(const int64_t stop, node.get_int_or("stop", 0));
  if (character.empty() || decode_utf8(character, 0).length != character.size()) {
    return node.get("content")->corrupt("not one character");
  }
  if (start < 0 || stop < 0) return node.corrupt("negative count");
  return StepPtr(std::make_shared<StripCharacter>(std::string(character), start, stop));
}

Result<StepPtr> read_metaspace(const JsonNode& node) {
  VAYU_ASSIGN_OR_RETURN(const std::string_view mark, node.get_string_or("replacement", kMetaspace));
  VAYU_ASSIGN_OR_RETURN(const bool prefix, node.get_bool_or("add_prefix_space", true));
  VAYU_ASSIGN_OR_RETURN(const std::string_view scheme,
                        node.get_string_or("prepend_scheme", prefix ? "always" : "never"));
  if (mark.empty()) return node.get("replacement")->corrupt("empty");
  return StepPtr(std::make_shared<MetaspaceToSpace>(std::string(mark), scheme != "never"));
}

Result<StepPtr> read_replace(const JsonNode& node) {
  VAYU_ASSIGN_OR_RETURN(Pattern pattern, Pattern::read(node));
  VAYU_ASSIGN_OR_RETURN(const std::string_view content, node.get_string("content"));
  return StepPtr(std::make_shared<ReplacePattern>(std::move(pattern), std::string(content)));
}

Result<StepPtr> read_wordpiece(const JsonNode& node) {
  VAYU_ASSIGN_OR_RETURN(const std::string_view prefix, node.get_string_or("prefix", "##"));
  VAYU_ASSIGN_OR_RETURN(const bool cleanup, node.get_bool_or("cleanup", true));
  return StepPtr(std::make_shared<WordPieces>(std::string(prefix), cleanup));
}

Result<StepPtr> read_bpe_decoder(const JsonNode& node) {
  VAYU_ASSIGN_OR_RETURN(const std::string_view suffix, node.get_string_or("suffix", "</w>"));
  if (suffix.empty()) return node.get("suffix")->corrupt("empty");
  return StepPtr(std::make_shared<WordEnds>(std::string(suffix)));
}

// Null: Fuse.
Result<StepPtr> read_step(const JsonNode& node, std::string_view kind) {
  if (kind == "ByteLevel") return StepPtr(std::make_shared<PrintableToBytes>());
  if (kind == "ByteFallback") return StepPtr(std::make_shared<ByteFallback>());
  if (kind == "Fuse") return StepPtr();
  if (kind == "Metaspace") return read_metaspace(node);
  if (kind == "Replace") return read_replace(node);
  if (kind == "Strip") return read_strip(node);
  if (kind == "WordPiece") return read_wordpiece(node);
  if (kind == "BPEDecoder") return read_bpe_decoder(node);
  return node.unknown_kind(kind);
}

// Steps in order; `join` becomes the number of steps before the tokens are joined into one text.
Status read_steps(const JsonNode& node, std::vector<StepPtr>& steps, std::optional<size_t>& join) {
  VAYU_ASSIGN_OR_RETURN(const std::string_view kind, node.get_string("type"));
  if (kind == "Sequence") {
    VAYU_ASSIGN_OR_RETURN(const JsonNode list, node.get("decoders"));
    VAYU_ASSIGN_OR_RETURN(const auto items, list.items());
    for (const JsonNode& item : items) VAYU_RETURN_IF_ERROR(read_steps(item, steps, join));
    return {};
  }
  VAYU_ASSIGN_OR_RETURN(StepPtr step, read_step(node, kind));
  const bool joins = kind == "ByteLevel" || kind == "Fuse";
  if (step != nullptr) steps.push_back(std::move(step));
  if (joins && !join) join = steps.size();
  return {};
}

}  // namespace

DecodeChain DecodeChain::join_with_spaces() {
  DecodeChain chain;
  chain.steps_.push_back(std::make_shared<SpaceBetween>());
  return chain;
}

DecodeChain DecodeChain::replace_then_bytes(std::string from, std::string to) {
  DecodeChain chain;
  chain.steps_.push_back(std::make_shared<ReplacePattern>(Pattern::literal(std::move(from)), std::move(to)));
  chain.steps_.push_back(std::make_shared<ByteFallback>());
  return chain;
}

Result<DecodeChain> DecodeChain::read(const JsonNode& node) {
  DecodeChain chain;
  std::optional<size_t> join;
  VAYU_RETURN_IF_ERROR(read_steps(node, chain.steps_, join));
  if (join && *join < chain.steps_.size()) {
    Steps after(chain.steps_.begin() + *join, chain.steps_.end());
    chain.steps_.resize(*join);
    chain.split_at_join(std::move(after));
  }
  return chain;
}

void DecodeChain::split_at_join(Steps joined) {
  const bool in_parts = std::ranges::all_of(joined, [](const StepPtr& step) { return step->lead().has_value(); });
  if (!in_parts) {
    whole_text_ = std::move(joined);
    return;
  }
  for (const StepPtr& step : joined) leads_.push_back(*step->lead());
}

std::string DecodeChain::token_bytes(std::string_view token, Place place) const {
  std::string text(token);
  for (const StepPtr& step : steps_) step->apply(text, place);
  return text;
}

bool DecodeChain::reads_last() const {
  return std::ranges::any_of(steps_, [](const StepPtr& step) { return step->reads_last(); });
}

std::string DecodeChain::finish_whole_text(std::string text) const {
  for (const StepPtr& step : whole_text_) step->apply(text, {.first = true, .last = true});
  return text;
}

}  // namespace vayu
