// UTF-8 at the byte level, for text that may be broken anywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace vayu {

enum class Utf8State : uint8_t {
  kValid,
  kInvalid,     // `length` bytes are a maximal subpart (Unicode 3.9, table 3-8): one U+FFFD stands for them
  kIncomplete,  // the text ends inside a character that is right so far
};

struct Utf8Char {
  char32_t code_point;  // kValid only
  uint32_t length;      // bytes, at least 1
  Utf8State state;
};

// The character or bad sequence at text[pos]; pos < text.size().
Utf8Char decode_utf8(std::string_view text, size_t pos);

// Appends `in` to `out` with one U+FFFD for each maximal bad sequence, up to an incomplete character at the end.
// Returns the number of bytes taken; the rest (0 to 3 bytes) is the incomplete character.
size_t append_valid_utf8(std::string_view in, std::string& out);

// Joins bytes that arrive in parts into text of whole characters.
class Utf8Joiner {
 public:
  // Text that is now complete, perhaps empty.
  std::string push(std::string_view bytes);
  // What input that ended inside a character leaves: one U+FFFD or nothing.
  std::string finish();

 private:
  std::string pending_;  // bytes of an unfinished character
};

void append_utf8(char32_t code_point, std::string& out);  // code_point: a Unicode scalar value

inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

}  // namespace vayu
