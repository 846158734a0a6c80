#include "tokenizer/jinja/lexer.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "tokenizer/jinja/fault.h"
#include "tokenizer/jinja/text.h"

namespace vayu::jinja {
namespace {

// "\r\n" and "\r" become "\n", and one newline at the end goes, as jinja2 does before anything else.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : src_(std::move(source)) {}

  std::vector<Token> run() {
    while (pos_ < src_.size()) read_text();
    push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  bool at(size_t i, std::string_view s) const { return src_.compare(i, s.size(), s) == 0; }
  char peek(size_t i) const { return i < src_.size() ? src_[i] : '\0'; }

  [[noreturn]] void error(std::string message) const { fail("line {}: {}", line_, message); }

  void push(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  void advance(size_t to) {  // counts lines, and remembers whether the next text starts one
    line_ += static_cast<int>(
        std::count(src_.begin() + static_cast<long>(pos_), src_.begin() + static_cast<long>(to), '\n'));
    line_starting_ = to > pos_ && src_[to - 1] == '\n';
    pos_ = to;
  }

  size_t skip_space(size_t i) const {
    return i + strip_range(std::string_view(src_).substr(i), nullptr, true, false).begin;
  }

  // Emits src_[pos_, end), cut by the tag that follows: `sign` is its '-' or '+', or neither.
  void emit_text(size_t end, char sign, bool is_block) {
    std::string_view text = std::string_view(src_).substr(pos_, end - pos_);
    if (sign == '-') {
      text = text.substr(0, strip_range(text, nullptr, false, true).end);
    } else if (sign != '+' && is_block) {
      const size_t newline = text.rfind('\n');
      const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
      const std::string_view indent = text.substr(line_begin);
      const ByteRange kept = strip_range(indent, nullptr, true, false);
      if ((line_begin > 0 || line_starting_) && kept.begin == kept.end) text = text.substr(0, line_begin);
    }
    if (!text.empty()) push(TokenKind::kText, std::string(text));
  }

  void read_text() {
    size_t tag = pos_;
    while (tag < src_.size() &&
           !(src_[tag] == '{' && (peek(tag + 1) == '%' || peek(tag + 1) == '{' || peek(tag + 1) == '#')))
      ++tag;
    if (tag >= src_.size()) {
      push(TokenKind::kText, src_.substr(pos_));
      pos_ = src_.size();
      return;
    }
    const char type = src_[tag + 1];
    const char sign = peek(tag + 2) == '-' || peek(tag + 2) == '+' ? peek(tag + 2) : '\0';
    emit_text(tag, sign, type != '{');
    const size_t inside = tag + 2 + (sign ? 1 : 0);
    if (type == '#') return skip_comment(inside);
    if (type == '%' && read_raw(inside)) return;
    advance(inside);
    push(type == '{' ? TokenKind::kPrintBegin : TokenKind::kBlockBegin, "");
    read_tag(type == '{');
  }

  // Position after the closing `mark` at i ("%}" or "#}"), its '-' or '+' being before it.
  size_t after_block_end(size_t i, char sign) const {
    if (sign == '-') return skip_space(i + 2);
    return sign != '+' && peek(i + 2) == '\n' ? i + 3 : i + 2;
  }

  void skip_comment(size_t begin) {
    const size_t end = src_.find("#}", begin);
    if (end == std::string::npos) error("comment is not closed");
    advance(after_block_end(end, end > begin ? src_[end - 1] : '\0'));
  }

  // True when the tag whose inside starts at `inside` opens a raw block, which is then read whole.
  bool read_raw(size_t inside) {
    size_t i = skip_space(inside);
    if (!at(i, "raw")) return false;
    i = skip_space(i + 3);
    if (at(i, "-%}")) {
      i = skip_space(i + 3);
    } else if (at(i, "%}")) {
      i += 2;
    } else {
      return false;
    }
    advance(i);
    for (size_t tag = src_.find("{%", pos_); tag != std::string::npos; tag = src_.find("{%", tag + 1)) {
      const char sign = peek(tag + 2) == '-' || peek(tag + 2) == '+' ? peek(tag + 2) : '\0';
      size_t end = skip_space(tag + 2 + (sign ? 1 : 0));
      if (!at(end, "endraw")) continue;
      end = skip_space(end + 6);
      const char end_sign = peek(end) == '-' || peek(end) == '+' ? peek(end) : '\0';
      if (end_sign) ++end;
      if (!at(end, "%}")) continue;
      emit_text(tag, sign, true);
      advance(after_block_end(end, end_sign));
      return true;
    }
    error("raw block is not closed");
  }

  bool read_tag_end(bool print) {
    const std::string_view mark = print ? "}}" : "%}";
    const char sign = peek(pos_) == '-' || (peek(pos_) == '+' && !print) ? peek(pos_) : '\0';
    const size_t i = pos_ + (sign ? 1 : 0);
    if (!at(i, mark)) return false;
    push(print ? TokenKind::kPrintEnd : TokenKind::kBlockEnd, "");
    advance(!print ? after_block_end(i, sign) : sign == '-' ? skip_space(i + 2) : i + 2);
    return true;
  }

  void read_tag(bool print) {
    std::string open;  // brackets not closed yet
    while (true) {
      advance(skip_space(pos_));
      if (pos_ >= src_.size()) error("tag is not closed");
      if (open.empty() && read_tag_end(print)) return;
      const char c = src_[pos_];
      if (is_digit(c)) {
        read_number();
      } else if (is_name_start(c)) {
        read_name();
      } else if (c == '"' || c == '\'') {
        read_string();
      } else {
        read_operator(open);
      }
    }
  }

  void read_name() {
    size_t end = pos_;
    while (end < src_.size() && (is_name_start(src_[end]) || is_digit(src_[end]))) {
      size_t length;
      const char32_t c = decode_at(src_, end, &length);
      if (c >= 0x80 && !u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_XID_CONTINUE)) {
        error(fmt::format("unexpected character '{}'", src_.substr(end, length)));
      }
      end += length;
    }
    push(TokenKind::kName, src_.substr(pos_, end - pos_));
    advance(end);
  }

  size_t digits_end(size_t i) const {
    while (is_digit(peek(i)) || (peek(i) == '_' && is_digit(peek(i + 1)))) ++i;
    return i;
  }

  void read_number() {
    if (src_[pos_] == '0' && std::string_view("xXbBoO").find(peek(pos_ + 1)) != std::string_view::npos &&
        peek(pos_ + 1)) {
      fail(ErrorKind::kUnsupported, "line {}: hexadecimal, octal or binary number", line_);
    }
    size_t end = digits_end(pos_);
    bool is_float = false;
    const bool after_dot = pos_ > 0 && src_[pos_ - 1] == '.';
    if (!after_dot && peek(end) == '.' && is_digit(peek(end + 1))) {
      is_float = true;
      end = digits_end(end + 1);
    }
    if (!after_dot && (peek(end) == 'e' || peek(end) == 'E')) {
      const size_t digits = end + 1 + (peek(end + 1) == '-' || peek(end + 1) == '+' ? 1 : 0);
      if (is_digit(peek(digits))) {
        is_float = true;
        end = digits_end(digits);
      }
    }
    std::string text = src_.substr(pos_, end - pos_);
    std::erase(text, '_');
    if (!is_float && text.size() > 1 && text[0] == '0' && text.find_first_not_of('0') != std::string::npos) {
      error("number with a leading zero");
    }
    push(is_float ? TokenKind::kFloat : TokenKind::kInt, std::move(text));
    advance(end);
  }

  void read_operator(std::string& open) {
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kOne = "+-/*%~[](){}><=.:|,";
    for (const std::string_view op : kTwo) {
      if (!at(pos_, op)) continue;
      push(TokenKind::kOp, std::string(op));
      return advance(pos_ + 2);
    }
    const char c = src_[pos_];
    if (kOne.find(c) == std::string_view::npos) error(fmt::format("unexpected character '{}'", c));
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) error(fmt::format("unexpected '{}'", c));
      open.pop_back();
    }
    push(TokenKind::kOp, std::string(1, c));
    advance(pos_ + 1);
  }

  void read_string() {
    const char quote = src_[pos_];
    std::string value;
    size_t i = pos_ + 1;
    while (i < src_.size() && src_[i] != quote) {
      if (src_[i] == '\\') {
        i = read_escape(i + 1, value);
      } else {
        value += src_[i++];
      }
    }
    if (i >= src_.size()) error("string is not closed");
    push(TokenKind::kString, std::move(value));
    advance(i + 1);
  }

  // i: just after the backslash. Python's escapes; unknown ones keep their backslash.
  size_t read_escape(size_t i, std::string& out) {
    static constexpr std::string_view kNames = "abfnrtv\\'\"", kValues = "\a\b\f\n\r\t\v\\'\"";
    const char c = peek(i);
    if (const size_t at = kNames.find(c); c && at != std::string_view::npos) {
      out += kValues[at];
      return i + 1;
    }
    if (c == '\n') return i + 1;
    if (c == 'x') return read_code_point(i + 1, 2, 2, 16, out);
    if (c == 'u') return read_code_point(i + 1, 4, 4, 16, out);
    if (c == 'U') return read_code_point(i + 1, 8, 8, 16, out);
    if (c >= '0' && c <= '7') return read_code_point(i, 1, 3, 8, out);
    if (c == 'N') fail(ErrorKind::kUnsupported, "line {}: \\N escape in a string", line_);
    out += '\\';
    return i;
  }

  size_t read_code_point(size_t i, int min_digits, int max_digits, uint32_t base, std::string& out) {
    uint32_t code = 0;
    int n = 0;
    for (; n < max_digits; ++n, ++i) {
      const char c = peek(i);
      const uint32_t digit = is_digit(c)            ? c - '0'
                             : c >= 'a' && c <= 'f' ? c - 'a' + 10
                             : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                    : 99;
      if (digit >= base) break;
      code = code * base + digit;
    }
    if (n < min_digits || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) error("bad escape in a string");
    append_utf8(out, code);
    return i;
  }

  const std::string src_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(normalize_newlines(source)).run(); }

}  // namespace vayu::jinja
