#include "tokenizer/jinja/text.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>

namespace vayu::jinja {

void Text::split_marks() {
  if (marks_.empty()) marks_.assign(bytes_.size(), trusted_ ? 1 : 0);
}

void Text::append(const Text& other, size_t begin, size_t end) {
  if (begin >= end) return;
  if (other.uniform()) return append(std::string_view(other.bytes_).substr(begin, end - begin), other.trusted_);
  split_marks();
  bytes_.append(other.bytes_, begin, end - begin);
  marks_.append(other.marks_, begin, end - begin);
}

void Text::append(std::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  if (bytes_.empty()) trusted_ = trusted;
  if (!marks_.empty() || trusted != trusted_) {
    split_marks();
    marks_.append(bytes.size(), trusted ? 1 : 0);
  }
  bytes_.append(bytes);
}

Text Text::substr(size_t begin, size_t end) const {
  Text out;
  out.append(*this, begin, end);
  return out;
}

Text Text::with_bytes(std::string bytes) const {
  Text out(std::move(bytes), uniform() && trusted_);
  if (!uniform() && out.size() == size()) out.marks_ = marks_;
  return out;
}

std::vector<uint8_t> Text::take_marks() && {
  split_marks();
  return std::vector<uint8_t>(marks_.begin(), marks_.end());
}

bool valid_utf8(std::string_view s) {
  static constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  for (size_t i = 0; i < s.size();) {
    const auto lead = static_cast<unsigned char>(s[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = char_length(s[i]);
    if (lead < 0xC2 || lead > 0xF4 || i + length > s.size()) return false;
    for (size_t k = 1; k < length; ++k) {
      if (!is_continuation(s[i + k])) return false;
    }
    size_t unused;
    const char32_t c = decode_at(s, i, &unused);
    if (c < kSmallest[length] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return false;
    i += length;
  }
  return true;
}

char32_t decode_at(std::string_view s, size_t i, size_t* length) {
  const size_t n = std::min(char_length(s[i]), s.size() - i);
  *length = n;
  const auto lead = static_cast<unsigned char>(s[i]);
  if (n == 1) return lead;
  char32_t c = lead & (0xFF >> (n + 1));
  for (size_t k = 1; k < n; ++k) c = c << 6 | (static_cast<unsigned char>(s[i + k]) & 0x3F);
  return c;
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

size_t count_code_points(std::string_view s) {
  return static_cast<size_t>(std::count_if(s.begin(), s.end(), [](char c) { return !is_continuation(c); }));
}

bool is_ascii(std::string_view s) {
  return std::all_of(s.begin(), s.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word(char32_t c) {
  if (c == '_') return true;
  const auto mask = U_GET_GC_MASK(static_cast<UChar32>(c));
  return (mask & (U_GC_L_MASK | U_GC_N_MASK)) != 0;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & (U_GC_C_MASK | U_GC_Z_MASK)) == 0;
}

bool is_cased(char32_t c) {
  const auto x = static_cast<UChar32>(c);
  return u_isULowercase(x) || u_isUUppercase(x) || u_istitle(x);
}

namespace {
template <class F>
std::string map_case(std::string_view s, F&& map) {
  icu::UnicodeString u = icu::UnicodeString::fromUTF8(icu::StringPiece(s.data(), static_cast<int32_t>(s.size())));
  map(u);
  std::string out;
  u.toUTF8String(out);
  return out;
}
}  // namespace

std::string to_upper(std::string_view s) {
  if (!is_ascii(s)) return map_case(s, [](icu::UnicodeString& u) { u.toUpper(icu::Locale::getRoot()); });
  std::string out(s);
  for (char& c : out) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  return out;
}

std::string to_lower(std::string_view s) {
  if (!is_ascii(s)) return map_case(s, [](icu::UnicodeString& u) { u.toLower(icu::Locale::getRoot()); });
  std::string out(s);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

std::string to_title_char(std::string_view one_char) {
  if (is_ascii(one_char)) return to_upper(one_char);
  return map_case(one_char, [](icu::UnicodeString& u) { u.toTitle(nullptr, icu::Locale::getRoot()); });
}

ByteRange strip_range(std::string_view s, const std::string* chars, bool left, bool right) {
  auto drops = [&](size_t i, size_t length, char32_t c) {
    return chars ? chars->find(s.substr(i, length)) != std::string::npos : is_space(c);
  };
  size_t begin = 0, end = s.size(), length;
  while (left && begin < end) {
    const char32_t c = decode_at(s, begin, &length);
    if (!drops(begin, length, c)) break;
    begin += length;
  }
  while (right && begin < end) {
    size_t i = end - 1;
    while (i > begin && is_continuation(s[i])) --i;
    const char32_t c = decode_at(s, i, &length);
    if (!drops(i, length, c)) break;
    end = i;
  }
  return {begin, end};
}

std::vector<ByteRange> split_lines(std::string_view s, bool keep_ends) {
  std::vector<ByteRange> lines;
  size_t start = 0;
  for (size_t i = 0; i < s.size();) {
    size_t length;
    const char32_t c = decode_at(s, i, &length);
    const bool ends = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (ends) {
      size_t next = i + length;
      if (c == '\r' && next < s.size() && s[next] == '\n') ++next;
      lines.push_back({start, keep_ends ? next : i});
      start = i = next;
    } else {
      i += length;
    }
  }
  if (start < s.size()) lines.push_back({start, s.size()});
  return lines;
}

}  // namespace vayu::jinja
