#include "tokenizer/utf8.h"

namespace vayu {
namespace {

// Bounds of the second byte after each lead byte (Unicode, table 3-7); they exclude overlong forms, surrogates and
// values above U+10FFFF, so a bad second byte ends the maximal subpart after the lead.
struct Lead {
  uint32_t length;
  uint8_t second_low, second_high;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte < 0xF0)
    return {3, static_cast<uint8_t>(byte == 0xE0 ? 0xA0 : 0x80), static_cast<uint8_t>(byte == 0xED ? 0x9F : 0xBF)};
  if (byte < 0xF5)
    return {4, static_cast<uint8_t>(byte == 0xF0 ? 0x90 : 0x80), static_cast<uint8_t>(byte == 0xF4 ? 0x8F : 0xBF)};
  return {0, 0, 0};
}

}  // namespace

Utf8Char decode_utf8(std::string_view text, size_t pos) {
  const uint8_t first = static_cast<uint8_t>(text[pos]);
  if (first < 0x80) return {first, 1, Utf8State::kValid};
  const Lead lead = lead_of(first);
  if (lead.length == 0) return {0, 1, Utf8State::kInvalid};
  char32_t code_point = first & (0x7Fu >> lead.length);
  for (uint32_t i = 1; i < lead.length; ++i) {
    if (pos + i >= text.size()) return {0, i, Utf8State::kIncomplete};
    const uint8_t byte = static_cast<uint8_t>(text[pos + i]);
    const uint8_t low = i == 1 ? lead.second_low : 0x80;
    const uint8_t high = i == 1 ? lead.second_high : 0xBF;
    if (byte < low || byte > high) return {0, i, Utf8State::kInvalid};
    code_point = code_point << 6 | (byte & 0x3F);
  }
  return {code_point, lead.length, Utf8State::kValid};
}

size_t append_valid_utf8(std::string_view in, std::string& out) {
  size_t pos = 0;
  size_t copied = 0;  // everything before this is in `out`
  while (pos < in.size()) {
    const Utf8Char c = decode_utf8(in, pos);
    if (c.state != Utf8State::kValid) {
      out.append(in.substr(copied, pos - copied));
      copied = pos;
      if (c.state == Utf8State::kIncomplete) return pos;
      out.append(kReplacementUtf8);
      copied = pos + c.length;
    }
    pos += c.length;
  }
  out.append(in.substr(copied));
  return pos;
}

std::string Utf8Joiner::push(std::string_view bytes) {
  std::string text;
  pending_.append(bytes);
  pending_.erase(0, append_valid_utf8(pending_, text));
  return text;
}

std::string Utf8Joiner::finish() {
  // What waits is the right beginning of one character, hence a single maximal bad sequence.
  std::string text(pending_.empty() ? std::string_view() : kReplacementUtf8);
  pending_.clear();
  return text;
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace vayu
