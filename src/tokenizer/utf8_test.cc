#include "tokenizer/utf8.h"

#include <gtest/gtest.h>

#include <random>

#include "tokenizer/small_spec.h"

namespace vayu {
namespace {

constexpr const char* kBad = "\xEF\xBF\xBD";

TEST(Utf8, MaximalSubpartsBecomeOneReplacement) {
  const std::string r = kBad;
  const std::pair<std::string, std::string> cases[] = {
      {"a\xC0\x80z", "a" + r + r + "z"},                                    // overlong: two bad bytes
      {"\xE0\x80\x80", r + r + r},                                          // overlong, second byte out of range
      {"\xED\xA0\x80", r + r + r},                                          // surrogate
      {"\xF4\x90\x80\x80", r + r + r + r},                                  // above U+10FFFF
      {"\xF0\x9F\x98z", r + "z"},                                           // cut short: one
      {"\xE2\x82\xE2\x82\xAC", r + "\xE2\x82\xAC"},                         // cut by another character
      {"\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63", r + r + r + "b" + r + "c"},  // Unicode 3.9, table 3-8
      {"\xFF\xFE", r + r},
  };
  for (const auto& [in, expected] : cases) {
    std::string out;
    const size_t taken = append_valid_utf8(in, out);
    if (taken < in.size()) out += kBad;
    EXPECT_EQ(out, expected);
  }
}

TEST(Utf8, EveryScalarValueSurvives) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(c, text);
    const Utf8Char decoded = decode_utf8(text, 0);
    ASSERT_EQ(decoded.state, Utf8State::kValid);
    ASSERT_EQ(decoded.code_point, c);
    ASSERT_EQ(decoded.length, text.size());
    for (size_t cut = 1; cut < text.size(); ++cut) {
      ASSERT_EQ(decode_utf8(std::string_view(text).substr(0, cut), 0).state, Utf8State::kIncomplete);
    }
  }
}

class StreamDecoderTest : public testing::Test {
 protected:
  std::shared_ptr<const Tokenizer> tokenizer_ = make_tokenizer(small_spec("bpe")).value();

  std::vector<TokenId> bytes_as_ids(std::string_view bytes) const {
    std::vector<TokenId> ids;
    for (size_t i = 0; i < bytes.size(); ++i) ids.push_back(*tokenizer_->find(bytes.substr(i, 1)));
    return ids;
  }
};

TEST_F(StreamDecoderTest, NoPieceEndsInsideACharacter) {
  const std::string text = "क्षि நீ 雨 👩‍🚀!";
  StreamDecoder decoder(*tokenizer_);
  std::string joined;
  for (const TokenId id : bytes_as_ids(text)) {
    const std::string piece = decoder.push(id);
    std::string valid;
    EXPECT_EQ(append_valid_utf8(piece, valid), piece.size());
    EXPECT_EQ(valid, piece);
    joined += piece;
  }
  EXPECT_EQ(joined, text);
  EXPECT_EQ(decoder.finish(), "");
}

TEST_F(StreamDecoderTest, EndInsideACharacterLeavesOneReplacement) {
  for (size_t cut = 1; cut < 4; ++cut) {
    const std::vector<TokenId> ids = bytes_as_ids("a" + std::string("\xF0\x9F\x9A\x80").substr(0, cut));
    StreamDecoder decoder(*tokenizer_);
    std::string joined;
    for (const TokenId id : ids) joined += decoder.push(id);
    EXPECT_EQ(joined, "a");
    joined += decoder.finish();
    EXPECT_EQ(joined, std::string("a") + kBad);
    EXPECT_EQ(joined, tokenizer_->decode(ids));
    EXPECT_EQ(decoder.finish(), "");
  }
}

TEST_F(StreamDecoderTest, MarkerInsideACharacterIsTransparentWhenSkipped) {
  std::vector<TokenId> ids = bytes_as_ids("\xE2\x82\xAC");
  ids.insert(ids.begin() + 1, 2);
  EXPECT_EQ(tokenizer_->decode(ids), "\xE2\x82\xAC");
  EXPECT_EQ(tokenizer_->decode(ids, false), std::string(kBad) + "<|im_end|>" + kBad + kBad);
}

TEST_F(StreamDecoderTest, RandomIdsStreamAsTheyDecode) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<TokenId> ids(random() % 40);
    std::string bytes;
    for (TokenId& id : ids) {
      id = static_cast<TokenId>(random() % (round % 2 ? 300 : tokenizer_->vocab_size()));
      if (!tokenizer_->is_special(id)) bytes += tokenizer_->token_bytes(id);
    }
    std::string whole;
    if (append_valid_utf8(bytes, whole) < bytes.size()) whole += kBad;
    EXPECT_EQ(tokenizer_->decode(ids), whole);
  }
}

}  // namespace
}  // namespace vayu
