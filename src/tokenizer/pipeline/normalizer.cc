#include "tokenizer/pipeline/normalizer.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "tokenizer/unicode_class.h"
#include "tokenizer/utf8.h"

namespace vayu {

void Rewriter::note_start(size_t begin) {
  if (started_) return;
  started_ = true;
  at_start_ = from_.at_start && begin == 0;
}

void Rewriter::replace(size_t begin, size_t end, std::string_view with, size_t origin) {
  if (with.empty()) return;
  note_start(origin);
  out_ += with;
  if (from_.trusted.empty()) return;
  const size_t last = std::min(std::max(end, begin + 1), from_.trusted.size());
  const bool trusted = std::all_of(from_.trusted.begin() + std::min(begin, last), from_.trusted.begin() + last,
                                   [](uint8_t byte) { return byte != 0; });
  trusted_.insert(trusted_.end(), with.size(), trusted);
}

void Rewriter::copy(size_t begin, size_t end) {
  if (begin == end) return;
  note_start(begin);
  out_.append(from_.text, begin, end - begin);
  if (from_.trusted.empty()) return;
  trusted_.insert(trusted_.end(), from_.trusted.begin() + begin, from_.trusted.begin() + end);
}

void Rewriter::finish() {
  from_.text = std::move(out_);
  from_.trusted = std::move(trusted_);
  from_.at_start = at_start_;
}

namespace {

// Rewrites character by character: fn(code_point, rewriter, begin, end) for valid characters; bad bytes are kept.
template <class Fn>
void rewrite_characters(NormalizedText& text, Fn fn) {
  Rewriter rewriter(text);
  for (size_t pos = 0; pos < text.text.size();) {
    const Utf8Char c = decode_utf8(text.text, pos);
    if (c.state == Utf8State::kValid) {
      fn(c.code_point, rewriter, pos, pos + c.length);
    } else {
      rewriter.copy(pos, pos + c.length);
    }
    pos += c.length;
  }
  rewriter.finish();
}

void lowercase(NormalizedText& text) {
  rewrite_characters(text, [](char32_t c, Rewriter& rewriter, size_t begin, size_t end) {
    const char32_t lower = static_cast<char32_t>(u_tolower(static_cast<UChar32>(c)));
    if (c != 0x130 && lower == c) return rewriter.copy(begin, end);
    std::string out;
    append_utf8(c == 0x130 ? U'i' : lower, out);
    if (c == 0x130) append_utf8(0x307, out);  // the only lower case of two characters
    rewriter.replace(begin, end, out);
  });
}

template <class Predicate>
void remove_characters(NormalizedText& text, Predicate removed) {
  rewrite_characters(text, [&](char32_t c, Rewriter& rewriter, size_t begin, size_t end) {
    if (!removed(c)) rewriter.copy(begin, end);
  });
}

class Lowercase : public Normalizer {
 public:
  void apply(NormalizedText& text) const override { lowercase(text); }
  size_t max_shrink() const override { return 3; }  // U+212A, the Kelvin sign, becomes k
};

class StripAccents : public Normalizer {
 public:
  void apply(NormalizedText& text) const override { remove_characters(text, is_mark); }
};

class Replace : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(NormalizedText& text) const override {
    Rewriter rewriter(text);
    size_t done = 0;
    pattern_.for_each_match(text.text, [&](size_t begin, size_t end) {
      rewriter.copy(done, begin);
      // In the reference, what takes the place of a match stems from its last character.
      size_t last = end > begin ? end - 1 : begin;
      while (last > begin && (static_cast<uint8_t>(text.text[last]) & 0xC0) == 0x80) --last;
      rewriter.replace(begin, end, content_, last);
      done = end;
    });
    rewriter.copy(done, text.text.size());
    rewriter.finish();
  }
  size_t max_shrink() const override {
    const size_t from = pattern_.literal_text().size();
    return from == 0 || content_.empty() ? 0 : std::max<size_t>(1, (from + content_.size() - 1) / content_.size());
  }

 private:
  const Pattern pattern_;
  const std::string content_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(NormalizedText& text) const override {
    if (text.text.empty()) return;
    Rewriter rewriter(text);
    rewriter.replace(0, 0, prefix_);
    rewriter.copy(0, text.text.size());
    rewriter.finish();
  }
  size_t max_shrink() const override { return 1; }

 private:
  const std::string prefix_;
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(NormalizedText& text) const override {
    size_t first = text.text.size(), last_end = 0;
    for (size_t pos = 0; pos < text.text.size();) {
      const Utf8Char c = decode_utf8(text.text, pos);
      if (c.state != Utf8State::kValid || !is_space(c.code_point)) {
        first = std::min(first, pos);
        last_end = pos + c.length;
      }
      pos += c.length;
    }
    const size_t begin = left_ ? first : 0;
    const size_t end = right_ ? std::max(last_end, begin) : text.text.size();
    Rewriter rewriter(text);
    rewriter.copy(begin, end);
    rewriter.finish();
  }

 private:
  const bool left_, right_;
};

bool is_cjk(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

class BertNormalizer : public Normalizer {
 public:
  bool clean_text, handle_chinese_chars, strip_accents, lower;
  NormalizerPtr nfd;

  void apply(NormalizedText& text) const override {
    if (clean_text) clean(text);
    if (handle_chinese_chars) space_out_cjk(text);
    if (strip_accents) {
      nfd->apply(text);
      remove_characters(text, is_nonspacing_mark);
    }
    if (lower) lowercase(text);
  }

 private:
  static void clean(NormalizedText& text) {
    rewrite_characters(text, [](char32_t c, Rewriter& rewriter, size_t begin, size_t end) {
      const bool white = c == '\t' || c == '\n' || c == '\r' || is_space(c);
      const bool control = c != '\t' && c != '\n' && c != '\r' && is_control_or_format(c);
      if (c == 0 || c == 0xFFFD || control) return;
      if (white) return rewriter.replace(begin, end, " ");
      rewriter.copy(begin, end);
    });
  }

  static void space_out_cjk(NormalizedText& text) {
    rewrite_characters(text, [](char32_t c, Rewriter& rewriter, size_t begin, size_t end) {
      if (!is_cjk(c)) return rewriter.copy(begin, end);
      rewriter.replace(begin, begin, " ");
      rewriter.copy(begin, end);
      rewriter.replace(begin, end, " ");
    });
  }
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<NormalizerPtr> steps) : steps_(std::move(steps)) {}
  void apply(NormalizedText& text) const override {
    for (const NormalizerPtr& step : steps_) step->apply(text);
  }
  size_t max_shrink() const override {
    size_t product = 1;
    for (const NormalizerPtr& step : steps_) product *= std::min<size_t>(step->max_shrink(), 4096);
    return product > 4096 ? 0 : product;
  }

 private:
  const std::vector<NormalizerPtr> steps_;
};

Result<NormalizerPtr> read_sequence(const JsonNode& node) {
  VAYU_ASSIGN_OR_RETURN(const JsonNode list, node.get("normalizers"));
  VAYU_ASSIGN_OR_RETURN(const auto items, list.items());
  std::vector<NormalizerPtr> steps;
  for (const JsonNode& item : items) {
    VAYU_ASSIGN_OR_RETURN(NormalizerPtr step, read_normalizer(item));
    steps.push_back(std::move(step));
  }
  return NormalizerPtr(std::make_shared<NormalizerSequence>(std::move(steps)));
}

Result<NormalizerPtr> read_replace(const JsonNode& node) {
  VAYU_ASSIGN_OR_RETURN(Pattern pattern, Pattern::read(node));
  VAYU_ASSIGN_OR_RETURN(const std::string_view content, node.get_string("content"));
  return make_replace(std::move(pattern), std::string(content));
}

Result<NormalizerPtr> read_strip(const JsonNode& node) {
  VAYU_ASSIGN_OR_RETURN(const bool left, node.get_bool_or("strip_left", true));
  VAYU_ASSIGN_OR_RETURN(const bool right, node.get_bool_or("strip_right", true));
  return NormalizerPtr(std::make_shared<Strip>(left, right));
}

Result<NormalizerPtr> read_prepend(const JsonNode& node) {
  VAYU_ASSIGN_OR_RETURN(const std::string_view prefix, node.get_string("prepend"));
  return NormalizerPtr(std::make_shared<Prepend>(std::string(prefix)));
}

}  // namespace

Result<NormalizerPtr> read_bert_normalizer(const JsonNode& node) {
  auto made = std::make_shared<BertNormalizer>();
  VAYU_ASSIGN_OR_RETURN(made->clean_text, node.get_bool_or("clean_text", true));
  VAYU_ASSIGN_OR_RETURN(made->handle_chinese_chars, node.get_bool_or("handle_chinese_chars", true));
  VAYU_ASSIGN_OR_RETURN(made->lower, node.get_bool_or("lowercase", true));
  VAYU_ASSIGN_OR_RETURN(made->strip_accents, node.get_bool_or("strip_accents", made->lower));
  VAYU_ASSIGN_OR_RETURN(made->nfd, make_unicode_form("NFD"));
  return NormalizerPtr(std::move(made));
}

NormalizerPtr make_replace(Pattern pattern, std::string content) {
  return std::make_shared<Replace>(std::move(pattern), std::move(content));
}

Result<NormalizerPtr> read_normalizer(const JsonNode& node) {
  VAYU_ASSIGN_OR_RETURN(const std::string_view kind, node.get_string("type"));
  if (kind == "Sequence") return read_sequence(node);
  if (kind == "NFC" || kind == "NFD" || kind == "NFKC" || kind == "NFKD") return make_unicode_form(kind);
  if (kind == "Lowercase") return NormalizerPtr(std::make_shared<Lowercase>());
  if (kind == "StripAccents") return NormalizerPtr(std::make_shared<StripAccents>());
  if (kind == "Replace") return read_replace(node);
  if (kind == "Prepend") return read_prepend(node);
  if (kind == "Strip") return read_strip(node);
  if (kind == "Precompiled") return read_precompiled_charsmap(node);
  if (kind == "BertNormalizer") return read_bert_normalizer(node);
  return node.unknown_kind(kind);
}

}  // namespace vayu
