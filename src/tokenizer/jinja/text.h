// Text: a UTF-8 string whose every byte is marked trusted (written in the template) or not (from the context).
// Indices are bytes unless a name says code points.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vayu::jinja {

class Text {
 public:
  Text() = default;
  Text(std::string bytes, bool trusted) : bytes_(std::move(bytes)), trusted_(trusted) {}

  const std::string& str() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  bool uniform() const { return marks_.empty(); }
  bool trusted_at(size_t i) const { return marks_.empty() ? trusted_ : marks_[i] != 0; }

  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& other, size_t begin, size_t end);
  void append(std::string_view bytes, bool trusted);
  Text substr(size_t begin, size_t end) const;
  // The same marks over other bytes of equal length; untrusted where the lengths differ and the marks are mixed.
  Text with_bytes(std::string bytes) const;
  std::vector<uint8_t> take_marks() &&;  // (size()) 0 or 1

  bool markup = false;  // result of |safe or |escape: `+` then escapes its other side, as markupsafe does

 private:
  void split_marks();  // from one mark for all to one a byte

  std::string bytes_;
  std::string marks_;  // (size()), or empty when trusted_ holds for all
  bool trusted_ = true;
};

// UTF-8. All texts are valid: template source and context are checked on entry.
bool valid_utf8(std::string_view s);
char32_t decode_at(std::string_view s, size_t i, size_t* length);
void append_utf8(std::string& out, char32_t c);
inline size_t char_length(char lead) {
  const auto c = static_cast<unsigned char>(lead);
  return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}
inline bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }
size_t count_code_points(std::string_view s);
bool is_ascii(std::string_view s);

// Python's notions.
bool is_space(char32_t c);      // str.isspace, also \s of re
bool is_word(char32_t c);       // \w of re
bool is_printable(char32_t c);  // str.isprintable
std::string to_upper(std::string_view s);
std::string to_lower(std::string_view s);
std::string to_title_char(std::string_view one_char);
bool is_cased(char32_t c);

struct ByteRange {
  size_t begin, end;
};
// What is left of s without whitespace (chars == nullptr) or without any of the characters in *chars at its ends.
ByteRange strip_range(std::string_view s, const std::string* chars, bool left, bool right);
// Lines as str.splitlines(); with keep_ends each range includes its line end.
std::vector<ByteRange> split_lines(std::string_view s, bool keep_ends);

}  // namespace vayu::jinja
