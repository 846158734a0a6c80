#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "loader/gguf.h"
#include "tokenizer/small_spec.h"

namespace vayu {
namespace {

using Ids = std::vector<TokenId>;
using TokenizerPtr = std::shared_ptr<const Tokenizer>;

constexpr EncodeOptions kPlain{.parse_special = false, .add_special = false, .trusted = {}};
constexpr EncodeOptions kMarked{.parse_special = true, .add_special = false, .trusted = {}};

TokenizerPtr make(TokenizerSpec spec) {
  auto tokenizer = make_tokenizer(std::move(spec));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return tokenizer.ok() ? *tokenizer : nullptr;
}

TokenizerPtr small_bpe(const std::string& pre) {
  TokenizerSpec spec = small_spec("bpe");
  spec.pre = pre;
  return make(std::move(spec));
}

std::string error_of(TokenizerSpec spec) {
  auto tokenizer = make_tokenizer(std::move(spec));
  return tokenizer.ok() ? "" : tokenizer.error().message;
}

uint64_t fnv1a(const Ids& ids) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const TokenId id : ids) {
    for (int shift = 0; shift < 32; shift += 8)
      hash = (hash ^ (static_cast<uint32_t>(id) >> shift & 0xFF)) * 0x100000001B3;
  }
  return hash;
}

std::string stream(const Tokenizer& tokenizer, const Ids& ids, bool skip_special = true) {
  StreamDecoder decoder(tokenizer, skip_special);
  std::string text;
  for (const TokenId id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

TEST(TokenizerGolden, SmallByteLevelIdsEqualReference) {
  const std::vector<std::pair<std::string, std::string>> patterns = {
      {"gpt2", "gpt-2"}, {"smollm", "smollm"}, {"llama_bpe", "llama-bpe"}, {"qwen2", "qwen2"}};
  const auto rows = golden_lines("tokenizer_small.jsonl");
  ASSERT_GT(rows.size(), 400u);
  for (const auto& [name, pre] : patterns) {
    TokenizerSpec spec = small_spec("bpe");
    spec.pre = pre;
    spec.token_types.resize(spec.token_types.size() -
                            2);  // no user-defined tokens: the four newlines match in any text
    spec.tokens.resize(spec.token_types.size());
    const TokenizerPtr tokenizer = make(std::move(spec));
    ASSERT_NE(tokenizer, nullptr);
    for (const auto& row : rows) {
      if (!row.contains("gpt2")) continue;
      const std::string text = row.at("text");
      const Ids expected = row.contains(name) ? row.at(name) : row.at("gpt2");
      const Ids ids = tokenizer->encode(text, kPlain);
      ASSERT_EQ(ids, expected) << pre << ": " << row.at("text").dump(-1, ' ', true);
      ASSERT_EQ(tokenizer->decode(ids), text);
    }
  }
}

TEST(TokenizerGolden, SmallSentencePieceIdsEqualReference) {
  const TokenizerPtr tokenizer = make(small_spec("sp"));
  ASSERT_NE(tokenizer, nullptr);
  for (const auto& row : golden_lines("tokenizer_small.jsonl")) {
    if (!row.contains("sp")) continue;
    const std::string text = row.at("text");
    const Ids ids = tokenizer->encode(text, kPlain);
    ASSERT_EQ(ids, row.at("sp").get<Ids>()) << row.at("text").dump(-1, ' ', true);
    ASSERT_EQ(tokenizer->decode(ids), text);
  }
}

TEST(TokenizerGolden, MarkersEqualReference) {
  const TokenizerPtr tokenizer = small_bpe("gpt-2");
  int count = 0;
  for (const auto& row : golden_lines("tokenizer_small.jsonl")) {
    if (!row.contains("marked")) continue;
    ++count;
    const std::string text = row.at("text");
    const Ids ids = tokenizer->encode(text, kMarked);
    EXPECT_EQ(ids, row.at("marked").get<Ids>()) << text;
    EXPECT_EQ(tokenizer->decode(ids, /*skip_special=*/false), text);
  }
  EXPECT_GE(count, 8);
}

TEST(TokenizerGolden, SmolLm2IdsEqualReference) {
  const char* path = std::getenv("VAYU_TEST_MODEL");
  if (path == nullptr) GTEST_SKIP() << "VAYU_TEST_MODEL is not set";
  auto file = loader::GgufFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  auto loaded = load_tokenizer(**file);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const Tokenizer& tokenizer = **loaded;
  EXPECT_EQ(tokenizer.vocab_size(), 49152);
  EXPECT_EQ(Ids(tokenizer.end_ids().begin(), tokenizer.end_ids().end()), (Ids{0, 2}));  // <|endoftext|>, <|im_end|>
  EXPECT_FALSE(tokenizer.adds_bos());
  int lines = 0;
  for (const auto& row : golden_lines("tokenizer_smollm2.jsonl")) {
    if (row.contains("unit")) {
      std::string text;
      for (int i = row.at("times"); i > 0; --i) text += row.at("unit").get<std::string>();
      const Ids ids = tokenizer.encode(text, kPlain);
      EXPECT_EQ(ids.size(), row.at("num_ids").get<size_t>()) << row;
      EXPECT_EQ(fmt::format("{:016x}", fnv1a(ids)), row.at("fnv1a").get<std::string>()) << row;
      continue;
    }
    ++lines;
    const std::string text = row.at("text");
    const Ids ids = tokenizer.encode(text, kPlain);
    ASSERT_EQ(ids, row.at("ids").get<Ids>()) << row.at("text").dump(-1, ' ', true);
    ASSERT_EQ(tokenizer.decode(ids), text);
    ASSERT_EQ(stream(tokenizer, ids), text);
  }
  EXPECT_EQ(lines, 2000);
}

TEST(TokenizerMarkers, OnlyTrustedBytesFormThem) {
  const TokenizerPtr tokenizer = small_bpe("gpt-2");
  const std::string mark = "<|im_end|>";
  const std::string text = "a" + mark + "b" + mark;
  const Ids plain = tokenizer->encode(text, kPlain);
  const TokenId end = *tokenizer->find(mark);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), end), 0);
  EXPECT_EQ(tokenizer->decode(plain), text);

  std::vector<uint8_t> trusted(text.size(), 0);
  std::fill(trusted.begin() + 1, trusted.begin() + 1 + mark.size(), 1);
  Ids ids = tokenizer->encode(text, {.parse_special = true, .add_special = false, .trusted = trusted});
  EXPECT_EQ(ids[1], end);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), end), 1);

  trusted[5] = 0;  // one foreign byte inside the mark
  ids = tokenizer->encode(text, {.parse_special = true, .add_special = false, .trusted = trusted});
  EXPECT_EQ(ids, plain);
  const std::vector<uint8_t> too_short(3, 1);  // bytes past the mask are not trusted
  ids = tokenizer->encode(text, {.parse_special = true, .add_special = false, .trusted = too_short});
  EXPECT_EQ(ids, plain);
}

TEST(TokenizerMarkers, UserDefinedWhitespaceIsPlainTextOtherTagsAreNot) {
  const TokenizerPtr tokenizer = small_bpe("gpt-2");
  const TokenId tool = *tokenizer->find("<tool>");
  const TokenId newlines = *tokenizer->find("\n\n\n\n");
  EXPECT_FALSE(tokenizer->is_special(tool));
  EXPECT_EQ(tokenizer->encode("<tool>", kMarked), Ids{tool});
  const Ids plain = tokenizer->encode("<tool>\n\n\n\n", kPlain);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), tool), 0);
  EXPECT_EQ(plain.back(), newlines);
  EXPECT_EQ(tokenizer->decode(plain), "<tool>\n\n\n\n");
}

TEST(TokenizerMarkers, LongestWins) {
  TokenizerSpec spec = small_spec("bpe");
  for (const char* marker : {"<a", "<a><b>", "<a>"}) {
    spec.tokens.push_back(marker);
    spec.token_types.push_back(3);
  }
  const TokenizerPtr tokenizer = make(spec);
  const Ids ids = tokenizer->encode("<a><b><a><c<a", kMarked);
  const Ids expected = {*tokenizer->find("<a><b>"), *tokenizer->find("<a>"), *tokenizer->find("<"),
                        *tokenizer->find("c"), *tokenizer->find("<a")};
  EXPECT_EQ(ids, expected);
}

TEST(TokenizerMarkers, BosAndEosFollowTheFile) {
  TokenizerSpec spec = small_spec("bpe");
  const TokenId bos = 1, eos = 2;
  EXPECT_FALSE(make(spec)->adds_bos());
  spec.pre = "llama-bpe";
  EXPECT_TRUE(make(spec)->adds_bos());
  spec.add_eos = true;
  Ids ids = make(spec)->encode("", {});
  EXPECT_EQ(ids, (Ids{bos, eos}));
  spec.add_bos = false;
  ids = make(spec)->encode("", {});
  EXPECT_EQ(ids, Ids{eos});
  EXPECT_TRUE(make(spec)->encode("", kPlain).empty());
  EXPECT_TRUE(make(small_spec("sp"))->adds_bos());
}

TEST(TokenizerMarkers, EndIdsAreTheUnion) {
  TokenizerSpec spec = small_spec("bpe");  // 0 <|endoftext|> and 2 <|im_end|> are well-known control tokens
  spec.tokens.insert(spec.tokens.end(), {"<stop>", "<next>", "<|eot_id|>", "</s>"});
  spec.token_types.insert(spec.token_types.end(), {3, 3, 3, 1});  // a normal </s> is text
  const int64_t stop = static_cast<int64_t>(spec.tokens.size()) - 4;
  spec.eos_id = stop;
  spec.eot_id = stop + 1;
  const TokenizerPtr tokenizer = make(spec);
  const Ids expected = {0, 2, static_cast<TokenId>(stop), static_cast<TokenId>(stop + 1),
                        static_cast<TokenId>(stop + 2)};
  EXPECT_EQ(Ids(tokenizer->end_ids().begin(), tokenizer->end_ids().end()), expected);
}

TEST(TokenizerDecode, SpecialTokensAndBadIds) {
  const TokenizerPtr tokenizer = small_bpe("gpt-2");
  const Ids ids = {1, *tokenizer->find("a"), -1, 1 << 30, 2};
  EXPECT_EQ(tokenizer->decode(ids), "a");
  EXPECT_EQ(tokenizer->decode(ids, false), "<|im_start|>a<|im_end|>");
  EXPECT_EQ(tokenizer->find("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer->find(""), std::nullopt);
  EXPECT_FALSE(tokenizer->is_special(-1));
}

TEST(TokenizerDecode, SentencePieceSpaces) {
  const TokenizerPtr tokenizer = make(small_spec("sp"));
  for (const std::string text : {" a", "a", "  ", "", "\xE2\x82", "a\xFFz", "<s>", "<0x41>"}) {
    const Ids ids = tokenizer->encode(text, kPlain);
    std::string bytes;
    for (const TokenId id : ids) bytes += tokenizer->token_bytes(id);
    EXPECT_EQ(bytes, text.empty() ? "" : " " + text);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 1), 0) << "control id from text";
  }
  EXPECT_EQ(tokenizer->encode("", {}), Ids{1});
  TokenizerSpec spec = small_spec("sp");
  spec.add_space_prefix = false;
  const TokenizerPtr bare = make(spec);
  EXPECT_EQ(bare->decode(bare->encode(" a", kPlain)), " a");
}

TEST(TokenizerDecode, SentencePieceTokensMayCrossWords) {
  TokenizerSpec spec;
  spec.model = "llama";
  spec.tokens = {"a", "b", "\u2581", "a\u2581", "a\u2581b", "\u2581\u2581"};
  spec.token_types.assign(spec.tokens.size(), 1);
  spec.scores = {0, 0, 0, -1, -2, -3};
  spec.add_space_prefix = false;
  EXPECT_EQ(make(spec)->encode("a bb  a", kPlain), (Ids{4, 1, 5, 0}));
}

TEST(TokenizerDecode, MaxTokenBytes) {
  TokenizerSpec spec = small_spec("bpe");
  spec.tokens.push_back(std::string(100, 'x'));
  spec.token_types.push_back(3);
  EXPECT_EQ(make(spec)->max_token_bytes(), 100u);
}

TEST(TokenizerLong, HostileWordsAreCutLikeShortOnes) {
  const TokenizerPtr tokenizer = small_bpe("gpt-2");
  for (const std::string unit : {"a", "\n", "क", "ab", " ", "\xF0\x9F", "'"}) {
    std::string text;
    while (text.size() < 200000) text += unit;
    const Ids ids = tokenizer->encode(text, kPlain);
    std::string bytes;
    for (const TokenId id : ids) bytes += tokenizer->token_bytes(id);
    EXPECT_EQ(bytes, text);
  }
}

// One row a fault: the error must name the key, whatever kind of tokenizer.
TEST(TokenizerErrors, NameTheKey) {
  struct Case {
    const char* name;
    const char* base;
    void (*spoil)(TokenizerSpec&);
    const char* expected;
  };
  const Case cases[] = {
      {"model", "bpe", [](TokenizerSpec& s) { s.model = "bert"; }, "tokenizer.ggml.model: unknown tokenizer 'bert'"},
      {"pre", "bpe", [](TokenizerSpec& s) { s.pre = "zzz"; }, "tokenizer.ggml.pre: unknown pre-tokenizer 'zzz'"},
      {"no tokens", "bpe", [](TokenizerSpec& s) { s.tokens.clear(); }, "tokenizer.ggml.tokens: empty"},
      {"duplicate", "bpe", [](TokenizerSpec& s) { s.tokens[9] = s.tokens[7]; },
       "tokenizer.ggml.tokens: tokens 7 and 9"},
      {"long", "bpe", [](TokenizerSpec& s) { s.tokens[9] = std::string(5000, 'x'); }, "tokenizer.ggml.tokens: token 9"},
      {"no merges", "bpe", [](TokenizerSpec& s) { s.merges.clear(); }, "tokenizer.ggml.merges: absent"},
      {"one half", "bpe", [](TokenizerSpec& s) { s.merges[3] = "abc"; }, "tokenizer.ggml.merges: entry 3"},
      {"empty half", "bpe", [](TokenizerSpec& s) { s.merges[3] = "abc "; }, "tokenizer.ggml.merges: entry 3"},
      {"empty merge", "bpe", [](TokenizerSpec& s) { s.merges[0] = ""; }, "tokenizer.ggml.merges: entry 0"},
      {"unknown merge", "bpe", [](TokenizerSpec& s) { s.merges[3] = "qqqq zzzz"; }, "tokenizer.ggml.merges: entry 3"},
      {"few types", "bpe", [](TokenizerSpec& s) { s.token_types.pop_back(); }, "tokenizer.ggml.token_type"},
      {"bad type", "bpe", [](TokenizerSpec& s) { s.token_types[4] = 7; }, "tokenizer.ggml.token_type: token 4"},
      {"bos", "bpe", [](TokenizerSpec& s) { s.bos_id = 1 << 20; }, "tokenizer.ggml.bos_token_id: 1048576"},
      {"eos", "bpe", [](TokenizerSpec& s) { s.eos_id = -1; }, "tokenizer.ggml.eos_token_id: -1"},
      {"eot", "bpe", [](TokenizerSpec& s) { s.eot_id = int64_t{1} << 32; }, "tokenizer.ggml.eot_token_id"},
      {"add bos", "bpe", [](TokenizerSpec& s) { s.add_bos = true, s.bos_id.reset(); }, "tokenizer.ggml.add_bos_token"},
      {"few scores", "sp", [](TokenizerSpec& s) { s.scores.pop_back(); }, "tokenizer.ggml.scores"},
      {"nan", "sp", [](TokenizerSpec& s) { s.scores[5] = NAN; }, "tokenizer.ggml.scores: entry 5"},
      {"no types", "sp", [](TokenizerSpec& s) { s.token_types.clear(); }, "tokenizer.ggml.token_type"},
      {"byte", "sp", [](TokenizerSpec& s) { s.tokens[3] = "<0xG0>"; }, "tokenizer.ggml.tokens: token 3"},
  };
  for (const Case& c : cases) {
    TokenizerSpec spec = small_spec(c.base);
    c.spoil(spec);
    EXPECT_EQ(error_of(spec).substr(0, std::string(c.expected).size()), c.expected) << c.name;
  }
}

TEST(TokenizerErrors, BytesWithoutTokenAreLeftOut) {
  TokenizerSpec spec;
  spec.model = "gpt2";
  spec.tokens = {"a", "b", "ab", "<unk>"};
  spec.token_types = {1, 1, 1, 3};
  spec.merges = {"a b"};
  spec.unknown_id = 3;
  EXPECT_EQ(make(spec)->encode("abzb", kPlain), (Ids{2, 1}));
}

TEST(TokenizerErrors, TextNeverMergesIntoAControlToken) {
  TokenizerSpec spec;
  spec.model = "gpt2";
  spec.tokens = {"a", "b", "ab"};
  spec.token_types = {1, 1, 3};
  spec.merges = {"a b"};
  const TokenizerPtr tokenizer = make(spec);
  EXPECT_EQ(tokenizer->encode("ab", kPlain), (Ids{0, 1}));
  EXPECT_EQ(tokenizer->encode("ab", kMarked), Ids{2});
}

}  // namespace
}  // namespace vayu
