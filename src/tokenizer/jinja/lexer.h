// Splits a template into literal text and the tokens of its tags, with jinja2's whitespace rules (trim_blocks and
// lstrip_blocks on, one newline at the end dropped).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vayu::jinja {

enum class TokenKind : uint8_t {
  kText,
  kPrintBegin,
  kPrintEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInt,
  kFloat,
  kOp,
  kEnd,
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // string literals: the value, escapes resolved
};

// Throws Fault with the line. source: UTF-8.
std::vector<Token> tokenize(std::string_view source);

}  // namespace vayu::jinja
