#include "tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <cstdint>

#include "tokenizer/unicode_class.h"
#include "tokenizer/utf8.h"

namespace vayu {
namespace {

using enum CharClass;

struct Char {
  CharClass type;
  uint32_t length;
};

Char char_at(std::string_view text, size_t pos) {
  const Utf8Char c = decode_utf8(text, pos);
  if (c.state != Utf8State::kValid) return {kOther, 1};
  return {classify(c.code_point), c.length};
}

bool is_newline(char c) { return c == '\n' || c == '\r'; }

size_t skip_class(std::string_view text, size_t pos, CharClass type) {
  while (pos < text.size()) {
    const Char c = char_at(text, pos);
    if (c.type != type) break;
    pos += c.length;
  }
  return pos;
}

// Length of the contraction at text[pos], which is an apostrophe, or 0. With `any_case`, also 'S and the long s
// (U+017F) that folds to s.
size_t contraction_length(std::string_view text, size_t pos, bool any_case) {
  const auto at = [&](size_t i) -> char {
    if (pos + i >= text.size()) return '\0';
    const char c = text[pos + i];
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  switch (at(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return at(2) == 'e' ? 3 : 0;
    case 'l':
      return at(2) == 'l' ? 3 : 0;
    default:
      return any_case && text.substr(pos + 1, 2) == "\xC5\xBF" ? 3 : 0;
  }
}

struct SpaceRun {
  size_t end;
  size_t last_start;   // start of the last space character
  size_t newline_end;  // just after the last CR or LF; 0 when there is none
};

SpaceRun scan_spaces(std::string_view text, size_t pos) {
  SpaceRun run{pos, pos, 0};
  while (run.end < text.size()) {
    const Char c = char_at(text, run.end);
    if (c.type != kSpace) break;
    run.last_start = run.end;
    run.end += c.length;
    if (is_newline(text[run.last_start])) run.newline_end = run.end;
  }
  return run;
}

// \s+(?!\S)|\s+ : a run before a word leaves its last space to that word, if that leaves anything.
size_t end_of_spaces(const SpaceRun& run, size_t pos, bool at_end) {
  return at_end || run.last_start == pos ? run.end : run.last_start;
}

size_t next_gpt2(std::string_view text, size_t pos, bool digits_apart) {
  const Char first = char_at(text, pos);
  if (first.type == kNumber && digits_apart) return pos + first.length;
  if (text[pos] == '\'') {
    if (const size_t length = contraction_length(text, pos, false)) return pos + length;
  }
  size_t start = pos;
  Char c = first;
  if (text[pos] == ' ' && pos + 1 < text.size()) {
    c = char_at(text, pos + 1);
    if (c.type != kSpace && !(c.type == kNumber && digits_apart)) {
      start = pos + 1;
    } else {
      c = first;
    }
  }
  if (c.type != kSpace) return skip_class(text, start + c.length, c.type);
  const SpaceRun run = scan_spaces(text, pos);
  // Where digits were cut out first, a number ends the stretch just as the end of the text does.
  const bool at_end = run.end == text.size() || (digits_apart && char_at(text, run.end).type == kNumber);
  return end_of_spaces(run, pos, at_end);
}

size_t next_llama3(std::string_view text, size_t pos, int max_digits) {
  const Char first = char_at(text, pos);
  if (text[pos] == '\'') {
    if (const size_t length = contraction_length(text, pos, true)) return pos + length;
  }
  if (first.type == kLetter) return skip_class(text, pos + first.length, kLetter);
  const size_t second = pos + first.length;
  if (first.type == kNumber) {
    size_t end = second;
    for (int digits = 1; digits < max_digits && end < text.size(); ++digits) {
      const Char c = char_at(text, end);
      if (c.type != kNumber) break;
      end += c.length;
    }
    return end;
  }
  if (!is_newline(text[pos]) && second < text.size()) {
    const Char c = char_at(text, second);
    if (c.type == kLetter) return skip_class(text, second + c.length, kLetter);
  }
  const size_t mark = text[pos] == ' ' ? second : pos;
  if (mark < text.size() && char_at(text, mark).type == kOther) {
    size_t end = skip_class(text, mark, kOther);
    while (end < text.size() && is_newline(text[end])) ++end;
    return end;
  }
  const SpaceRun run = scan_spaces(text, pos);
  if (run.newline_end > 0) return run.newline_end;
  return end_of_spaces(run, pos, run.end == text.size());
}

}  // namespace

Result<PrePattern> find_pre_pattern(std::string_view name) {
  struct Named {
    std::string_view name;
    PrePattern pattern;
  };
  static constexpr Named kNames[] = {
      {"gpt-2", PrePattern::kGpt2},
      {"default", PrePattern::kGpt2},
      {"smollm", PrePattern::kDigitsThenGpt2},
      {"starcoder", PrePattern::kDigitsThenGpt2},
      {"refact", PrePattern::kDigitsThenGpt2},
      {"command-r", PrePattern::kDigitsThenGpt2},
      {"codeshell", PrePattern::kDigitsThenGpt2},
      {"llama-bpe", PrePattern::kLlama3},
      {"llama3", PrePattern::kLlama3},
      {"llama-v3", PrePattern::kLlama3},
      {"falcon3", PrePattern::kLlama3},
      {"pixtral", PrePattern::kLlama3},
      {"qwen2", PrePattern::kQwen2},
      {"deepseek-r1-qwen", PrePattern::kQwen2},
      {"stablelm2", PrePattern::kQwen2},
      {"megrez", PrePattern::kQwen2},
  };
  for (const Named& named : kNames) {
    if (named.name == name) return named.pattern;
  }
  return make_error(ErrorKind::kUnsupported, "tokenizer.ggml.pre: unknown pre-tokenizer '{}'", name);
}

std::optional<PrePattern> find_scanner(std::string_view regex) {
  struct Written {
    std::string_view regex;
    PrePattern pattern;
  };
  static constexpr Written kWritten[] = {
      {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", PrePattern::kGpt2},
      {R"('(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", PrePattern::kGpt2},
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       PrePattern::kLlama3},
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       PrePattern::kQwen2},
      {R"([^\n]+|[\n]+)", PrePattern::kNewlineRuns},
      {R"([\n]+|[^\n]+)", PrePattern::kNewlineRuns},
  };
  for (const Written& written : kWritten) {
    if (written.regex == regex) return written.pattern;
  }
  return std::nullopt;
}

size_t next_word(PrePattern pattern, std::string_view text, size_t pos) {
  switch (pattern) {
    case PrePattern::kGpt2:
      return next_gpt2(text, pos, false);
    case PrePattern::kDigitsThenGpt2:
      return next_gpt2(text, pos, true);
    case PrePattern::kLlama3:
      return next_llama3(text, pos, 3);
    case PrePattern::kQwen2:
      return next_llama3(text, pos, 1);
    case PrePattern::kNewlineRuns: {
      const size_t end = text[pos] == '\n' ? text.find_first_not_of('\n', pos) : text.find('\n', pos);
      return std::min(end, text.size());
    }
  }
  return text.size();
}

}  // namespace vayu
