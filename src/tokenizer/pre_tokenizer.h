// Cuts text into words before byte-level BPE, as the pattern named by tokenizer.ggml.pre would. The patterns are
// scanned by hand instead of by a regex engine: one pass, no backtracking and no stack, whatever the input.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "base/result.h"

namespace vayu {

enum class PrePattern {
  // '(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kGpt2,
  // Each \p{N} alone first, then kGpt2 on every stretch between.
  kDigitsThenGpt2,
  // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
  kLlama3,
  // kLlama3 with \p{N} in place of \p{N}{1,3}.
  kQwen2,
  // \n+|[^\n]+
  kNewlineRuns,
};

// gpt-2, default (kGpt2); smollm, starcoder, refact, command-r, codeshell (kDigitsThenGpt2); llama-bpe, llama3,
// llama-v3, falcon3, pixtral (kLlama3); qwen2, deepseek-r1-qwen, stablelm2, megrez (kQwen2). Any other name is
// kUnsupported, naming the key and the name.
Result<PrePattern> find_pre_pattern(std::string_view name);

// The scanner of a pattern as tokenizer.json files write it; nothing for any other pattern.
std::optional<PrePattern> find_scanner(std::string_view regex);

// End of the word that starts at text[pos]; pos < text.size(). The text may hold invalid UTF-8: each bad byte counts
// as a character that is neither letter, number nor space. Words put together are the text.
size_t next_word(PrePattern pattern, std::string_view text, size_t pos);

}  // namespace vayu
