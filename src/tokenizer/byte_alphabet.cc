#include "tokenizer/byte_alphabet.h"

#include <fmt/format.h>

#include <array>

#include "tokenizer/utf8.h"

namespace vayu {
namespace {

bool is_written_as_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<char32_t, 256> code_points;
  std::array<int16_t, 0x144> bytes;  // of each code point below U+0144, or -1

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      code_points[byte] = is_written_as_itself(byte) ? byte : next++;
      bytes[code_points[byte]] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet made;
  return made;
}

int hex_digit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                : -1;
}

}  // namespace

void append_printable(uint8_t byte, std::string& out) { append_utf8(alphabet().code_points[byte], out); }

std::string to_printable(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) append_printable(static_cast<uint8_t>(c), out);
  return out;
}

std::optional<std::string> from_printable(std::string_view token) {
  const auto& table = alphabet().bytes;
  std::string bytes;
  for (size_t pos = 0; pos < token.size();) {
    const Utf8Char c = decode_utf8(token, pos);
    if (c.state != Utf8State::kValid || c.code_point >= table.size() || table[c.code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(table[c.code_point]));
    pos += c.length;
  }
  return bytes;
}

std::optional<uint8_t> parse_byte_token(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
  const int high = hex_digit(token[3]);
  const int low = hex_digit(token[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<uint8_t>(high << 4 | low);
}

std::string byte_token(uint8_t byte) { return fmt::format("<0x{:02X}>", byte); }

}  // namespace vayu
