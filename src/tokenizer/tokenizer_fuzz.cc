// Encode and decode over arbitrary bytes, masks and settings, and vocabularies damaged in arbitrary places.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/tokenizer_spec.h"
#include "tokenizer/utf8.h"

namespace vayu {
namespace {

void add(TokenizerSpec& spec, std::string token, TokenType type) {
  spec.tokens.push_back(std::move(token));
  spec.token_types.push_back(static_cast<int64_t>(type));
  spec.scores.push_back(-static_cast<float>(spec.tokens.size()));
}

void add_markers(TokenizerSpec& spec) {
  for (const char* marker : {"<s>", "</s>", "<s><s>", "<|im_end|>", "\xFF\xFE"}) add(spec, marker, TokenType::kControl);
  for (const char* marker : {"<t>", "\n\n\n", "  "}) add(spec, marker, TokenType::kUserDefined);
  spec.bos_id = 0;
  spec.eos_id = 1;
}

TokenizerSpec byte_level_spec(const char* pre) {
  TokenizerSpec spec{.model = "gpt2", .pre = pre};
  add_markers(spec);
  for (int byte = 0; byte < 256; ++byte) add(spec, to_printable(std::string(1, static_cast<char>(byte))), TokenType::kNormal);
  const std::pair<const char*, const char*> merges[] = {
      {"a", "a"},       {"aa", "aa"},         {"a", "b"},       {"b", "a"},  {" ", "a"},  {"\n", "\n"},
      {"\xE0", "\xA4"}, {"\xE0\xA4", "\x95"}, {"ab", "a"},      {"aa", "b"}, {" a", "b"}, {"<", "s"},
      {"1", "2"},       {" ", " "},           {"aaaa", "aaaa"}, {"'", "s"}};
  for (const auto& [left, right] : merges) {
    const std::string token = to_printable(std::string(left) + right);
    if (std::find(spec.tokens.begin(), spec.tokens.end(), token) == spec.tokens.end()) {
      add(spec, token, TokenType::kNormal);
    }
    spec.merges.push_back(to_printable(left) + " " + to_printable(right));
  }
  return spec;
}

TokenizerSpec sentencepiece_spec() {
  TokenizerSpec spec{.model = "llama"};
  add_markers(spec);
  for (int byte = 0; byte < 256; ++byte) add(spec, fmt::format("<0x{:02X}>", byte), TokenType::kByte);
  for (const char* piece :
       {"▁", "a", "b", "▁a", "ab", "ba", "aa", "aaaa", "aab", "▁▁▁", "क", "कि", "<s", "éa", "\xE0\xA4"}) {
    add(spec, piece, TokenType::kNormal);
  }
  return spec;
}

std::string bytes_of(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::string bytes;
  for (const TokenId id : ids) bytes += tokenizer.token_bytes(id);
  return bytes;
}

void check_text(const Tokenizer& tokenizer, const std::string& text, std::span<const uint8_t> mask, uint8_t flags) {
  const EncodeOptions options{.parse_special = (flags & 1) != 0,
                              .add_special = false,
                              .trusted = flags & 2 ? mask : std::span<const uint8_t>()};
  const std::vector<TokenId> ids = tokenizer.encode(text, options);
  // U+2581 is a space to SentencePiece; what it gives back differs there and by the spaces before stretches.
  if (!tokenizer.strips_leading_space()) VAYU_CHECK(bytes_of(tokenizer, ids) == text, "bytes changed");
  std::string expected;
  const std::string bytes = bytes_of(tokenizer, ids);
  if (append_valid_utf8(bytes, expected) < bytes.size()) expected += kReplacementUtf8;
  if (tokenizer.strips_leading_space() && !expected.empty() && expected[0] == ' ') expected.erase(0, 1);
  VAYU_CHECK(tokenizer.decode(ids, false) == expected, "decode differs from the tokens' bytes");
  if (!options.parse_special) {
    for (const TokenId id : ids) VAYU_CHECK(!tokenizer.is_special(id), "control id {} from plain text", id);
  }
}

// Overwrites one entry of a good spec; whatever comes out must be an error or a tokenizer that works.
void check_damaged(TokenizerSpec spec, const std::string& text, uint8_t where, uint8_t which) {
  const size_t i = which % spec.tokens.size();
  switch (where % 8) {
    case 0:
      spec.tokens[i] = text;
      break;
    case 1:
      spec.token_types[i] = where / 8;
      break;
    case 2:
      spec.scores[i] = static_cast<float>(where) - 100;
      break;
    case 3:
      spec.tokens.resize(i);
      break;
    case 4:
      spec.bos_id = which;
      break;
    case 5:
      spec.eot_id = static_cast<int64_t>(which) * 7 - 300;
      break;
    case 6:
      if (!spec.merges.empty()) spec.merges[which % spec.merges.size()] = text;
      break;
    case 7:
      spec.tokens.erase(spec.tokens.begin() + i);
      break;
  }
  const auto tokenizer = make_tokenizer(std::move(spec));
  if (!tokenizer.ok()) {
    VAYU_CHECK(tokenizer.error().message.starts_with("tokenizer.ggml."), "{}", tokenizer.error().message);
    return;
  }
  const std::vector<TokenId> ids = (*tokenizer)->encode(text, {});
  (void)(*tokenizer)->decode(ids);
}

}  // namespace
}  // namespace vayu

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vayu;
  static const std::vector<TokenizerSpec> specs = {byte_level_spec("gpt-2"), byte_level_spec("smollm"),
                                                   byte_level_spec("llama-bpe"), byte_level_spec("qwen2"),
                                                   sentencepiece_spec()};
  static const std::vector<std::shared_ptr<const Tokenizer>> tokenizers = [] {
    std::vector<std::shared_ptr<const Tokenizer>> made;
    for (const TokenizerSpec& spec : specs) made.push_back(make_tokenizer(spec).value());
    return made;
  }();
  if (size < 3) return 0;
  const uint8_t flags = data[0];
  const std::string text(reinterpret_cast<const char*>(data) + 3, size - 3);
  std::vector<uint8_t> mask(text.size());
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = (data[1] * (i + 1) * 37 >> (data[2] & 7)) & 1;
  const size_t kind = (flags >> 3) % specs.size();
  if (flags & 4) {
    check_damaged(specs[kind], text, data[1], data[2]);
  } else {
    check_text(*tokenizers[kind], text, mask, flags);
  }
  return 0;
}
