// The hand-written scanners against PCRE2 running the patterns themselves.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/pre_tokenizer.h"

#include <gtest/gtest.h>
#include <pcre2.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

namespace vayu {
namespace {

constexpr const char* kGpt2Regex = R"('(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

class Regex {
 public:
  explicit Regex(const char* pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                              &error, &offset, nullptr));
    match_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  }

  // Cuts text at both ends of every match.
  std::vector<std::string> split(const std::string& text) const {
    std::vector<std::string> words;
    size_t pos = 0;
    while (pos < text.size()) {
      const int rc = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), pos, 0,
                                 match_.get(), nullptr);
      const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match_.get());
      const size_t start = rc > 0 ? ends[0] : text.size();
      if (start > pos) words.push_back(text.substr(pos, start - pos));
      if (rc <= 0) break;
      words.push_back(text.substr(start, ends[1] - start));
      pos = ends[1];
    }
    return words;
  }

 private:
  struct Free {
    void operator()(pcre2_code* p) const { pcre2_code_free(p); }
    void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> match_;
};

std::vector<std::string> split(PrePattern pattern, const std::string& text) {
  std::vector<std::string> words;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = next_word(pattern, text, pos);
    EXPECT_GT(end, pos);
    EXPECT_LE(end, text.size());
    words.push_back(text.substr(pos, end - pos));
    pos = end;
  }
  return words;
}

std::vector<std::string> expected_words(PrePattern pattern, const std::string& text) {
  static const Regex gpt2(kGpt2Regex), llama3(kLlama3Regex), qwen2(kQwen2Regex), digit(R"(\p{N})"),
      newline_runs(R"(\n+|[^\n]+)");
  switch (pattern) {
    case PrePattern::kGpt2:
      return gpt2.split(text);
    case PrePattern::kLlama3:
      return llama3.split(text);
    case PrePattern::kQwen2:
      return qwen2.split(text);
    case PrePattern::kNewlineRuns:
      return newline_runs.split(text);
    case PrePattern::kDigitsThenGpt2:
      break;
  }
  std::vector<std::string> words;
  for (const std::string& stretch : digit.split(text)) {
    for (std::string& word : gpt2.split(stretch)) words.push_back(std::move(word));
  }
  return words;
}

TEST(PreTokenizer, EqualsThePatterns) {
  // Characters on both sides of every rule; short texts of them reach every order of neighbours.
  const std::vector<std::string> alphabet = {
      "a",   "B",   "é",  "क",  "ि",  "्",       "雨",     "ſ",      "1",    "२",       "½",  "Ⅷ",
      " ",   " ",   "\n", "\r", "\t", "\u00A0", "\u3000", "\u2028", "\x85", "'",       "'s", "'S",
      "'LL", "'re", "'v", ".",  "!",  "👩",      "\u200D", "$",      "_",    "\xC2\x85"};
  std::mt19937 random(11);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (size_t i = random() % 9 + 1; i > 0; --i) {
      const std::string& piece = alphabet[random() % alphabet.size()];
      if (piece != "\x85") text += piece;
    }
    for (const PrePattern pattern : {PrePattern::kGpt2, PrePattern::kDigitsThenGpt2, PrePattern::kLlama3,
                                     PrePattern::kQwen2, PrePattern::kNewlineRuns}) {
      ASSERT_EQ(split(pattern, text), expected_words(pattern, text)) << "pattern " << static_cast<int>(pattern);
    }
  }
}

TEST(PreTokenizer, WordsOfBrokenUtf8AreTheText) {
  std::mt19937 random(12);
  for (int round = 0; round < 5000; ++round) {
    std::string text(random() % 12, ' ');
    for (char& c : text) c = static_cast<char>(random() % 3 ? random() : ' ');
    for (const PrePattern pattern :
         {PrePattern::kGpt2, PrePattern::kDigitsThenGpt2, PrePattern::kLlama3, PrePattern::kQwen2}) {
      std::string joined;
      for (const std::string& word : split(pattern, text)) joined += word;
      ASSERT_EQ(joined, text);
    }
  }
}

TEST(PreTokenizer, NamesOfPatterns) {
  EXPECT_EQ(*find_pre_pattern("default"), PrePattern::kGpt2);
  EXPECT_EQ(*find_pre_pattern("smollm"), PrePattern::kDigitsThenGpt2);
  EXPECT_EQ(*find_pre_pattern("llama3"), PrePattern::kLlama3);
  EXPECT_EQ(*find_pre_pattern("deepseek-r1-qwen"), PrePattern::kQwen2);
  EXPECT_EQ(find_pre_pattern("").error().kind, ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace vayu
