#include "tokenizer/pipeline/added_tokens.h"

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/unicode_class.h"
#include "tokenizer/utf8.h"

namespace vayu {
namespace {

bool word_char_at(std::string_view text, size_t pos) {
  const Utf8Char c = decode_utf8(text, pos);
  return c.state == Utf8State::kValid && is_word_char(c.code_point);
}

// Start of the character that ends at text[end - 1].
size_t char_start(std::string_view text, size_t end) {
  size_t start = end - 1;
  while (start > 0 && end - start < 4 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
  const Utf8Char c = decode_utf8(text, start);
  return c.state == Utf8State::kValid && start + c.length == end ? start : end - 1;
}

bool is_single_word(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !word_char_at(text, char_start(text, begin))) &&
         (end == text.size() || !word_char_at(text, end));
}

bool space_at(std::string_view text, size_t pos, size_t& length) {
  const Utf8Char c = decode_utf8(text, pos);
  length = c.length;
  return c.state == Utf8State::kValid && is_space(c.code_point);
}

size_t skip_spaces_left(std::string_view text, size_t pos, size_t floor) {
  size_t length = 0;
  while (pos > floor && space_at(text, char_start(text, pos), length)) pos = char_start(text, pos);
  return std::max(pos, floor);
}

size_t skip_spaces_right(std::string_view text, size_t pos) {
  size_t length = 0;
  while (pos < text.size() && space_at(text, pos, length)) pos += length;
  return pos;
}

bool only_spaces(std::string_view text, bool metaspace_too) {
  size_t length = 0;
  for (size_t pos = 0; pos < text.size(); pos += length) {
    if (!space_at(text, pos, length) && !(metaspace_too && text.substr(pos).starts_with(kMetaspace))) return false;
  }
  return true;
}

}  // namespace

bool AddedToken::found_anywhere() const { return !special && only_spaces(content, false); }

bool AddedToken::is_plain_piece() const {
  if (special) return false;
  return single_word || only_spaces(content, true) || decode_utf8(content, 0).length == content.size();
}

void AddedTokenMatcher::add(std::string_view form, const AddedToken& token) {
  if (form.empty() || matcher_.find_whole(form) != kNoToken) return;
  matcher_.add(form, static_cast<TokenId>(tokens_.size()), token.found_anywhere());
  tokens_.push_back(&token);
}

std::vector<AddedTokenMatcher::Part> AddedTokenMatcher::cut(std::string_view text,
                                                            const MarkerMatcher::Scope& scope) const {
  std::vector<Part> parts;
  size_t done = 0;  // parts cover text[0, done)
  size_t pos = matcher_.next_candidate(text, 0);
  while (pos < text.size()) {
    const MarkerMatcher::Match match = matcher_.longest_at(text, pos, scope);
    if (match.id == kNoToken) {
      pos = matcher_.next_candidate(text, pos + 1);
      continue;
    }
    const AddedToken& token = *tokens_[match.id];
    size_t begin = pos, end = pos + match.length;
    pos = matcher_.next_candidate(text, end);  // from the token itself, not from the spaces that it takes along
    if (token.single_word && !is_single_word(text, begin, end)) continue;
    if (token.lstrip) begin = skip_spaces_left(text, begin, std::min(done, begin));
    if (token.rstrip) end = skip_spaces_right(text, end);
    if (done < begin) parts.push_back({done, begin, nullptr});
    parts.push_back({begin, end, &token});
    done = std::max(done, end);
  }
  if (done < text.size()) parts.push_back({done, text.size(), nullptr});
  return parts;
}

}  // namespace vayu
