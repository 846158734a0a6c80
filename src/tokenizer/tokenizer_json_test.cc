#include "tokenizer/tokenizer_json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/json_cases.h"
#include "tokenizer/small_spec.h"

namespace vayu {
namespace {

using Ids = std::vector<TokenId>;
using Json = JsonCases::Json;
using TokenizerPtr = std::shared_ptr<const Tokenizer>;

constexpr EncodeOptions kAll{.parse_special = true, .add_special = true, .trusted = {}};
constexpr EncodeOptions kBare{.parse_special = true, .add_special = false, .trusted = {}};
constexpr EncodeOptions kPlain{.parse_special = false, .add_special = false, .trusted = {}};

const JsonCases& cases() {
  static const JsonCases loaded;
  return loaded;
}

TokenizerPtr make(const Json& file, const ModelFolderTexts& folder = {}) {
  auto tokenizer = parse_tokenizer_json(file.dump(), folder);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return tokenizer.ok() ? *tokenizer : nullptr;
}

std::string error_of(const std::string& text, const ModelFolderTexts& folder = {}) {
  auto tokenizer = parse_tokenizer_json(text, folder);
  return tokenizer.ok() ? "" : tokenizer.error().message;
}

// Streams must give what a whole decode gives, in whole characters.
void check_stream(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  StreamDecoder decoder(tokenizer, skip_special);
  std::string text;
  for (const TokenId id : ids) {
    const std::string piece = decoder.push(id);
    std::string valid;
    ASSERT_EQ(append_valid_utf8(piece, valid), piece.size());
    text += piece;
  }
  ASSERT_EQ(text + decoder.finish(), tokenizer.decode(ids, skip_special));
}

class TokenizerJsonGolden : public testing::TestWithParam<std::string> {};

TEST_P(TokenizerJsonGolden, IdsAndTextEqualReference) {
  const TokenizerPtr tokenizer = make(cases().compose(GetParam()));
  ASSERT_NE(tokenizer, nullptr);
  static const auto rows = golden_lines("tokenizer_json_texts.jsonl");
  ASSERT_GT(rows.size(), 150u);
  for (const auto& row : rows) {
    const std::string text = row.at("text");
    const auto& name = GetParam();
    const Ids expected = row.at("ids").at(name);
    ASSERT_EQ(tokenizer->encode(text, kAll), expected) << row.at("text").dump(-1, ' ', true);
    const nlohmann::json decoded = row.at("decoded").contains(name) ? row.at("decoded").at(name) : row.at("text");
    const nlohmann::json visible = row.at("visible").contains(name) ? row.at("visible").at(name) : decoded;
    if (!decoded.is_null()) ASSERT_EQ(tokenizer->decode(expected, false), decoded.get<std::string>());
    if (!visible.is_null()) ASSERT_EQ(tokenizer->decode(expected, true), visible.get<std::string>());
    check_stream(*tokenizer, expected, true);
    check_stream(*tokenizer, expected, false);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TokenizerJsonGolden, testing::ValuesIn(cases().names()),
                         [](const auto& info) { return info.param; });

TEST(TokenizerJsonMarkers, OnlyTrustedBytesFormThem) {
  for (const char* name : {"llama3", "sarvam", "xlmr", "llama2", "flags"}) {
    Json file = cases().compose(name);
    const TokenizerPtr tokenizer = make(file);
    for (const auto& added : file["added_tokens"]) {
      const std::string mark = added["content"];
      const TokenId id = added["id"];
      if (mark.find_first_not_of(" \n") == std::string::npos || added["single_word"] == true) continue;
      if (std::string(name) == "llama2" && added["normalized"] == true) continue;  // its form has a mark in front
      const std::string text = "a" + mark + "b" + mark;
      const Ids plain = tokenizer->encode(text, kPlain);
      EXPECT_EQ(std::count(plain.begin(), plain.end(), id),
                mark == "<unk>" ? std::count(plain.begin(), plain.end(), id) : 0)
          << name << mark;
      std::vector<uint8_t> trusted(text.size(), 0);
      std::fill(trusted.begin() + 1, trusted.begin() + 1 + mark.size(), 1);
      const Ids marked = tokenizer->encode(text, {.parse_special = true, .add_special = false, .trusted = trusted});
      if (mark != "<unk>") EXPECT_EQ(std::count(marked.begin(), marked.end(), id), 1) << name << mark;
      trusted[2] = 0;  // one foreign byte inside the mark
      EXPECT_EQ(tokenizer->encode(text, {.parse_special = true, .add_special = false, .trusted = trusted}), plain)
          << name << mark;
    }
  }
}

TEST(TokenizerJsonMarkers, TrustFollowsNormalizedText) {
  Json file = cases().compose("flags");
  file["normalizer"] = Json::parse(R"({"type":"Sequence","normalizers":[{"type":"NFKD"},{"type":"Lowercase"},
      {"type":"Prepend","prepend":"_"},{"type":"Replace","pattern":{"String":"z"},"content":"--"}]})");
  const TokenizerPtr tokenizer = make(file);
  const TokenId tag = *tokenizer->find("Tag");
  const std::string text = "z\u00c9 \uff34ag\u00e9 Tag z";  // full-width T: TAG only after NFKD
  file["added_tokens"][5]["content"] = "Tag";
  std::vector<uint8_t> trusted(text.size(), 1);
  const auto count = [&] {
    const Ids ids = tokenizer->encode(text, {.parse_special = true, .add_special = false, .trusted = trusted});
    return std::count(ids.begin(), ids.end(), tag);
  };
  const auto all = tokenizer->encode(text, kBare);
  const auto total = std::count(all.begin(), all.end(), tag);
  EXPECT_EQ(count(), total);
  trusted[text.find("Tag")] = 0;
  EXPECT_EQ(count(), total - std::min<int64_t>(total, 1));
}

TEST(TokenizerJsonMarkers, PaddedRowsAreNotInTheVocabulary) {
  const Json file = cases().compose("sarvam");
  const TokenizerPtr tokenizer = make(file);
  const auto size = file["model"]["vocab"].size() + file["added_tokens"].size() - 1;  // <unk> is in both
  EXPECT_EQ(tokenizer->vocab_size(), static_cast<int32_t>(size));
  EXPECT_EQ(tokenizer->token_bytes(tokenizer->vocab_size()), "");
  EXPECT_EQ(tokenizer->decode(Ids{-1, tokenizer->vocab_size(), 1 << 30}), "");
  EXPECT_TRUE(tokenizer->is_special(*tokenizer->find("[@BOS@]")));
  EXPECT_FALSE(tokenizer->is_special(*tokenizer->find("<think>")));
}

TEST(TokenizerJsonFolder, EndsAreTheUnion) {
  Json file = cases().compose("sarvam");
  const auto next = static_cast<int64_t>(file["model"]["vocab"].size() + file["added_tokens"].size() - 1);
  Json token = file["added_tokens"][1];
  token["content"] = "<|stop|>";
  token["id"] = next;
  file["added_tokens"].push_back(token);
  const TokenizerPtr tokenizer =
      make(file, {.tokenizer_config = R"({"eos_token": {"content": "<|stop|>"}, "bos_token": null})",
                  .generation_config = R"({"eos_token_id": [5, 7]})",
                  .config = R"({"eos_token_id": 1, "text_config": {"eos_token_id": 9}})"});
  Ids expected = {
      1, 5, 7, 9, static_cast<TokenId>(next), *tokenizer->find("<|end_of_turn|>"), *tokenizer->find("<|im_end|>")};
  std::ranges::sort(expected);
  EXPECT_EQ(Ids(tokenizer->end_ids().begin(), tokenizer->end_ids().end()), expected);
  EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
}

TEST(TokenizerJsonFolder, BosFollowsConfigThenPostProcessor) {
  const Json llama = cases().compose("llama2");  // <s> text </s>
  const TokenizerPtr bare = make(llama);
  const TokenId bos = *bare->find("<s>"), eos = *bare->find("</s>");
  EXPECT_EQ(bare->encode("", kAll), (Ids{bos, eos}));
  EXPECT_EQ(make(llama, {.config = R"({"bos_token_id": )" + std::to_string(bos) + "}"})->bos_id(), bos);
  const TokenizerPtr off =
      make(llama, {.tokenizer_config = R"({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": false})"});
  EXPECT_EQ(off->encode("", kAll), Ids{eos});
  EXPECT_EQ(off->bos_id(), bos);
  EXPECT_FALSE(off->adds_bos());
  const TokenizerPtr same = make(llama, {.tokenizer_config = R"({"bos_token": "<s>", "add_bos_token": true})"});
  EXPECT_EQ(same->encode("", kAll), (Ids{bos, eos}));
  EXPECT_TRUE(same->adds_bos());
  const TokenizerPtr added = make(cases().compose("qwen"), {.tokenizer_config = R"({"bos_token": "<|im_start|>",
      "eos_token": "<|im_end|>", "add_bos_token": true, "add_eos_token": true})"});
  EXPECT_EQ(added->encode("", kAll), (Ids{*added->find("<|im_start|>"), *added->find("<|im_end|>")}));
}

// The same vocabulary as a GGUF file has it, in both spellings.
TEST(TokenizerJsonGguf, SarvamMoeEqualsTheSamePipeline) {
  const Json file = cases().compose("newline_runs");
  TokenizerSpec spec{.model = "gpt2", .pre = "sarvam-moe"};
  const auto size = file["model"]["vocab"].size() + file["added_tokens"].size();
  spec.tokens.resize(size);
  spec.token_types.assign(size, 1);
  for (const auto& [piece, id] : file["model"]["vocab"].items()) {
    spec.tokens[id.get<size_t>()] = piece;
    if (parse_byte_token(piece)) spec.token_types[id.get<size_t>()] = 6;
  }
  for (const auto& added : file["added_tokens"]) {
    spec.tokens[added["id"].get<size_t>()] = added["content"];
    spec.token_types[added["id"].get<size_t>()] = 3;
  }
  TokenizerSpec symbols = spec;
  for (size_t id = 0; id < size; ++id) {
    if (spec.token_types[id] == 1) symbols.tokens[id] = to_printable(spec.tokens[id]);
  }
  for (const auto& pair : file["model"]["merges"]) {
    const std::string left = pair[0], right = pair[1];
    spec.merges.push_back(left + " " + right);
    symbols.merges.push_back(to_printable(left) + " " + to_printable(right));
  }
  const TokenizerPtr expected = make(file);
  for (const TokenizerSpec& variant : {spec, symbols}) {
    const auto tokenizer = make_tokenizer(variant);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    EXPECT_FALSE((*tokenizer)->adds_bos());
    for (const auto& row : golden_lines("tokenizer_json_texts.jsonl")) {
      const std::string text = row.at("text");
      const Ids ids = (*tokenizer)->encode(text, kAll);
      ASSERT_EQ(ids, expected->encode(text, kAll)) << text;
      ASSERT_EQ((*tokenizer)->decode(ids), expected->decode(ids));
      check_stream(**tokenizer, ids, true);
    }
  }
  spec.merges[7] = "qqqq zzzz";
  EXPECT_TRUE(make_tokenizer(spec).error().message.starts_with("tokenizer.ggml.merges: entry 7"));
}

TEST(TokenizerJsonDecode, BytesThatAreNotTextBecomeOneMarkEach) {
  const TokenizerPtr tokenizer = make(cases().compose("sarvam"));
  const auto byte = [&](int b) { return *tokenizer->find(fmt::format("<0x{:02X}>", b)); };
  EXPECT_EQ(tokenizer->decode(Ids{byte(0xE0), byte(0xA4), byte(0x95)}), "\u0915");
  EXPECT_EQ(tokenizer->decode(Ids{byte(0xE0), byte(0xA4), byte(0x41)}), "\uFFFDA");
  EXPECT_EQ(tokenizer->decode(Ids{byte(0xE0), byte(0xA4)}), "\uFFFD");
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.push(byte(0xE0)), "");
  EXPECT_EQ(decoder.push(byte(0xA4)), "");
  EXPECT_EQ(decoder.push(byte(0x95)), "\u0915");
}

TEST(TokenizerJsonDecode, AnyIdsStreamAsTheyDecode) {
  std::mt19937 random(3);
  for (const std::string& name : cases().names()) {
    const TokenizerPtr tokenizer = make(cases().compose(name));
    for (int round = 0; round < 50; ++round) {
      Ids ids(round % 12);
      for (TokenId& id : ids) id = static_cast<TokenId>(random() % tokenizer->vocab_size());
      check_stream(*tokenizer, ids, round % 2 == 0);
    }
  }
}

TEST(TokenizerJsonLong, HostileTextTakesAboutLinearTimeAndKeepsItsBytes) {
  for (const char* name : {"gpt2", "llama3", "qwen", "deepseek", "gpt4o", "sarvam", "newline_runs"}) {
    const TokenizerPtr tokenizer = make(cases().compose(name));
    for (const std::string unit :
         {"a", "\n", " ", "\u0915", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0301\u0316", "<|im_start|", "'", "1"}) {
      std::string text;
      while (text.size() < 200000) text += unit;
      const Ids ids = tokenizer->encode(text, kPlain);
      const bool reordered = std::string(name) == "qwen" && unit == "\u0301\u0316";
      if (!reordered) EXPECT_EQ(tokenizer->decode(ids), text) << name;
    }
  }
  for (const std::string& name : cases().names()) {  // invalid UTF-8 goes through every part
    const TokenizerPtr tokenizer = make(cases().compose(name));
    const std::string text = "a\xFF \xE0\xA4 b\xF0\x9F\x98<s>\xC3";
    const Ids ids = tokenizer->encode(text, kAll);
    check_stream(*tokenizer, ids, true);
  }
}

// One row a fault: the error must name the file and the path.
TEST(TokenizerJsonErrors, NameFileAndPath) {
  struct Case {
    const char* base;
    const char* path;   // JSON pointer
    const char* value;  // put there; empty: removed
    const char* expected;
  };
  const Case rows[] = {
      {"gpt2", "/model", "", "tokenizer.json: 'model' is missing"},
      {"gpt2", "/model/type", R"("WordLevel")", "tokenizer.json: model: unknown kind 'WordLevel'"},
      {"gpt2", "/model/vocab", "[]", "tokenizer.json: model.vocab: empty"},
      {"gpt2", "/model/vocab/!", "77", "tokenizer.json: model.vocab: "},
      {"gpt2", "/model/vocab/!", "-1", "tokenizer.json: model.vocab: id -1 of '!' leaves a gap"},
      {"gpt2", "/model/vocab/!", "90000000", "tokenizer.json: model.vocab: id 90000000 of '!' leaves a gap"},
      {"gpt2", "/model/vocab/!", R"("x")", "tokenizer.json: model.vocab: id of '!' is not an integer"},
      {"gpt2", "/model/merges/3", R"("abc")", "tokenizer.json: model.merges: entry 3 is not a pair"},
      {"gpt2", "/model/merges/3", R"(["qq", "zz"])", "tokenizer.json: model.merges: entry 3 needs the token 'qq'"},
      {"gpt2", "/model/unk_token", R"("<nix>")", "tokenizer.json: model.unk_token: '<nix>' is not in the vocabulary"},
      {"gpt2", "/model/dropout", "0.1", "tokenizer.json: model.dropout: "},
      {"gpt2", "/added_tokens/0/id", "5", "tokenizer.json: added_tokens[0]: "},
      {"gpt2", "/added_tokens/0/id", "500000", "tokenizer.json: added_tokens: id 500000 leaves a gap"},
      {"gpt2", "/added_tokens/2/id", "1003", "tokenizer.json: added_tokens: id 1003 leaves a gap"},
      {"gpt2", "/added_tokens/0/content", R"("")", "tokenizer.json: added_tokens[0]: content is empty"},
      {"gpt2", "/added_tokens/0/content", R"("a")", "tokenizer.json: model.vocab: tokens "},
      {"gpt2", "/added_tokens/0/special", "3", "tokenizer.json: added_tokens[0].special: not true or false"},
      {"gpt2", "/pre_tokenizer/type", R"("UnicodeScripts")",
       "tokenizer.json: pre_tokenizer: unknown kind 'UnicodeScripts'"},
      {"llama3", "/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("(")",
       "tokenizer.json: pre_tokenizer.pretokenizers[0].pattern.Regex: "},
      {"llama3", "/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("[a&&b]")",
       "tokenizer.json: pre_tokenizer.pretokenizers[0].pattern.Regex: "},
      {"llama3", "/pre_tokenizer/pretokenizers/0/behavior", R"("Odd")",
       "tokenizer.json: pre_tokenizer.pretokenizers[0].behavior: unknown kind 'Odd'"},
      {"llama3", "/post_processor/processors/1/type", R"("Odd")",
       "tokenizer.json: post_processor.processors[1]: unknown kind 'Odd'"},
      {"llama3", "/post_processor/processors/1/special_tokens/<|endoftext|>/ids/0", "1234567",
       "tokenizer.json: post_processor.processors[1].special_tokens.<|endoftext|>.ids[0]: 1234567 is outside"},
      {"xlmr", "/normalizer/normalizers/0/type", R"("Nmt")",
       "tokenizer.json: normalizer.normalizers[0]: unknown kind 'Nmt'"},
      {"xlmr", "/normalizer/normalizers/0/precompiled_charsmap", R"("!!")",
       "tokenizer.json: normalizer.normalizers[0].precompiled_charsmap: not base64"},
      {"xlmr", "/normalizer/normalizers/0/precompiled_charsmap", R"("AAAA////")",
       "tokenizer.json: normalizer.normalizers[0].precompiled_charsmap: trie of"},
      {"xlmr", "/model/unk_id", "100000", "tokenizer.json: model.unk_id: not in the vocabulary"},
      {"xlmr", "/model/vocab/3", R"(["\u0001"])", "tokenizer.json: model.vocab: entry 3 is not [text, score]"},
      {"llama2", "/decoder/decoders/1/type", R"("CTC")", "tokenizer.json: decoder.decoders[1]: unknown kind 'CTC'"},
      {"bert", "/model/unk_token", "null", "tokenizer.json: model: 'unk_token' is missing"},
  };
  for (const Case& row : rows) {
    Json file = cases().compose(row.base);
    const Json::json_pointer pointer(row.path);
    if (*row.value != '\0') {
      file[pointer] = Json::parse(row.value);
    } else {
      file.erase(std::string(row.path).substr(1));
    }
    EXPECT_EQ(error_of(file.dump()).substr(0, std::string(row.expected).size()), row.expected) << row.path;
  }
}

TEST(TokenizerJsonErrors, FilesThatAreCutOrContradict) {
  const std::string text = cases().compose("gpt2").dump();
  for (const size_t size : {size_t{0}, size_t{1}, text.size() / 2, text.size() - 1}) {
    EXPECT_TRUE(error_of(text.substr(0, size)).starts_with("tokenizer.json: ")) << size;
  }
  std::string deep(200, '[');
  deep += std::string(200, ']');
  EXPECT_TRUE(error_of(deep).starts_with("tokenizer.json: not valid JSON: "));
  const std::pair<ModelFolderTexts, const char*> folders[] = {
      {{.tokenizer_config = "{"}, "tokenizer_config.json: not valid JSON"},
      {{.tokenizer_config = R"({"eos_token": "<nix>"})"}, "tokenizer_config.json: eos_token: '<nix>' is not a token"},
      {{.tokenizer_config = R"({"add_bos_token": true})"}, "tokenizer_config.json: add_bos_token: true, but"},
      {{.generation_config = R"({"eos_token_id": [1, 99999]})"},
       "generation_config.json: eos_token_id[1]: 99999 is outside"},
      {{.config = R"({"eos_token_id": -1})"}, "config.json: eos_token_id: -1 is outside"},
      {{.config = R"({"text_config": {"eos_token_id": "x"}})"},
       "config.json: text_config.eos_token_id: not an integer"},
  };
  for (const auto& [folder, expected] : folders) {
    EXPECT_EQ(error_of(text, folder).substr(0, std::string(expected).size()), expected);
  }
  const auto missing = load_tokenizer_json("/nowhere/tokenizer.json", {});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().kind, ErrorKind::kIo);
}

}  // namespace
}  // namespace vayu
