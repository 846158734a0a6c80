// SentencePiece's normalizer table: a double-array trie (the layout of Darts-clone) from characters to texts.
#include <unicode/brkiter.h>
#include <unicode/utext.h>

#include <cstring>

#include "tokenizer/pipeline/normalizer.h"
#include "tokenizer/utf8.h"

namespace vayu {
namespace {

Result<std::string> decode_base64(const JsonNode& node, std::string_view in) {
  std::string out;
  uint32_t bits = 0;
  int num_bits = 0;
  while (!in.empty() && in.back() == '=') in.remove_suffix(1);
  for (const char c : in) {
    const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (value < 0) return node.corrupt("not base64");
    bits = bits << 6 | static_cast<uint32_t>(value);
    num_bits += 6;
    if (num_bits >= 8) out.push_back(static_cast<char>(bits >> (num_bits -= 8) & 0xFF));
  }
  return out;
}

class CharsMap {
 public:
  // `blob`: the trie's size in bytes (u32), its units (u32, little endian), then texts that each end with a NUL.
  static Result<CharsMap> read(const JsonNode& node, std::string_view blob) {
    uint32_t trie_bytes = 0;
    if (blob.size() < sizeof(trie_bytes)) return node.corrupt("too short for a trie");
    std::memcpy(&trie_bytes, blob.data(), sizeof(trie_bytes));
    blob.remove_prefix(sizeof(trie_bytes));
    if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > blob.size()) {
      return node.corrupt(fmt::format("trie of {} bytes in {} bytes", trie_bytes, blob.size()));
    }
    CharsMap map;
    map.units_.resize(trie_bytes / 4);
    std::memcpy(map.units_.data(), blob.data(), trie_bytes);
    map.texts_ = blob.substr(trie_bytes);
    return map;
  }

  // Text for the shortest key that `text` starts with. That the shortest key counts, and stands for all of `text`, is
  // what the reference does.
  std::optional<std::string_view> find(std::string_view text) const {
    uint32_t node = offset(units_[0]);
    for (const char c : text) {
      const uint8_t byte = static_cast<uint8_t>(c);
      node ^= byte;
      if (byte == 0 || node >= units_.size() || label(units_[node]) != byte) return std::nullopt;
      const bool has_value = (units_[node] >> 8 & 1) != 0;
      node ^= offset(units_[node]);
      if (!has_value) continue;
      if (node >= units_.size()) return std::nullopt;
      const size_t begin = units_[node] & 0x7FFFFFFF;
      if (begin >= texts_.size()) return std::nullopt;
      return std::string_view(texts_).substr(begin, std::min(texts_.find('\0', begin), texts_.size()) - begin);
    }
    return std::nullopt;
  }

 private:
  static uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }
  static uint32_t label(uint32_t unit) { return unit & (1u << 31 | 0xFF); }

  std::vector<uint32_t> units_;
  std::string texts_;
};

class Precompiled : public Normalizer {
 public:
  explicit Precompiled(CharsMap map) : map_(std::move(map)) {}

  // Grapheme by grapheme: a short one is looked up as a whole first, then by its characters.
  void apply(NormalizedText& text) const override {
    Rewriter rewriter(text);
    for_each_grapheme(text.text, [&](size_t begin, size_t end) {
      if (end - begin < 6) {
        if (const auto found = map_.find(std::string_view(text.text).substr(begin, end - begin))) {
          return rewriter.replace(begin, end, *found);
        }
      }
      rewrite_characters(text.text, begin, end, rewriter);
    });
    rewriter.finish();
  }

 private:
  template <class Fn>
  static void for_each_grapheme(const std::string& text, Fn fn) {
    UErrorCode code = U_ZERO_ERROR;
    UText utext = UTEXT_INITIALIZER;
    utext_openUTF8(&utext, text.data(), static_cast<int64_t>(text.size()), &code);
    const std::unique_ptr<icu::BreakIterator> breaks(
        icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), code));
    if (U_SUCCESS(code)) breaks->setText(&utext, code);
    if (U_SUCCESS(code)) {
      int32_t begin = breaks->first();
      for (int32_t end = breaks->next(); end != icu::BreakIterator::DONE; begin = end, end = breaks->next()) {
        fn(static_cast<size_t>(begin), static_cast<size_t>(end));
      }
    } else {
      fn(0, text.size());  // no break data or no memory: by characters
    }
    utext_close(&utext);
  }

  void rewrite_characters(std::string_view text, size_t begin, size_t end, Rewriter& rewriter) const {
    while (begin < end) {
      const Utf8Char c = decode_utf8(text, begin);
      const size_t next = begin + c.length;
      const auto found = c.state == Utf8State::kValid ? map_.find(text.substr(begin, c.length)) : std::nullopt;
      if (found) {
        rewriter.replace(begin, next, *found);
      } else {
        rewriter.copy(begin, next);
      }
      begin = next;
    }
  }

  const CharsMap map_;
};

}  // namespace

Result<NormalizerPtr> read_precompiled_charsmap(const JsonNode& node) {
  VAYU_ASSIGN_OR_RETURN(const JsonNode field, node.get("precompiled_charsmap"));
  VAYU_ASSIGN_OR_RETURN(const std::string_view encoded, field.string());
  VAYU_ASSIGN_OR_RETURN(const std::string blob, decode_base64(field, encoded));
  VAYU_ASSIGN_OR_RETURN(CharsMap map, CharsMap::read(field, blob));
  return NormalizerPtr(std::make_shared<Precompiled>(std::move(map)));
}

}  // namespace vayu
