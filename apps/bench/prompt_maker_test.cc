#include "apps/bench/prompt_maker.h"

#include <gtest/gtest.h>

#include <sstream>

namespace vayu::bench {
namespace {

// A tokenizer with 5 tokens of template, where words longer than 5 letters are two tokens.
Result<int64_t> fake_count(const std::string& text) {
  std::istringstream words(text);
  std::string word;
  int64_t tokens = 5;
  while (words >> word) tokens += word.size() > 5 ? 2 : 1;
  return tokens;
}

TEST(RandomIds, LengthRangePrefixAndSeed) {
  const auto source =
      make_random_ids({.length = 100, .shared_prefix_length = 64, .first_id = 10, .end_id = 20, .seed = 3});
  const auto a = source->prompt(0).content.get<std::vector<int>>();
  const auto b = source->prompt(1).content.get<std::vector<int>>();
  ASSERT_EQ(a.size(), 100u);
  EXPECT_EQ(source->prompt(0).num_tokens, 100);
  for (const int id : a) EXPECT_TRUE(id >= 10 && id < 20);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 64, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 64, a.end(), b.begin() + 64));
  EXPECT_EQ(source->prompt(0).content, source->prompt(0).content);
  const auto other = make_random_ids({.length = 100, .first_id = 10, .end_id = 20, .seed = 4});
  EXPECT_NE(other->prompt(0).content, source->prompt(0).content);
}

TEST(ExactText, CountIsExactForEveryLength) {
  for (int64_t length = 6; length < 200; length += 7) {
    Random random(1, static_cast<uint64_t>(length));
    auto text = make_exact_text("", length, random, fake_count);
    ASSERT_TRUE(text.ok()) << text.error().message;
    EXPECT_EQ(*fake_count(*text), length);
  }
}

TEST(ExactText, ImpossibleLengthAndCounterErrors) {
  Random random(1);
  auto too_short = make_exact_text("", 4, random, fake_count);  // the template alone has 5
  ASSERT_FALSE(too_short.ok());
  EXPECT_EQ(too_short.error().field, "input-len");
  auto failing = make_exact_text("", 4, random, [](const std::string&) -> Result<int64_t> {
    return Error{ErrorKind::kNotFound, "no /tokenize", ""};
  });
  EXPECT_EQ(failing.error().message, "no /tokenize");
}

TEST(ExactText, SharedPrefixAndMessages) {
  auto source = make_exact_texts(3, 60, 30, /*chat=*/true, 9, fake_count);
  ASSERT_TRUE(source.ok());
  std::vector<std::string> texts;
  for (int i = 0; i < 3; ++i) {
    const Prompt prompt = (*source)->prompt(i);
    EXPECT_EQ(prompt.num_tokens, 60);
    EXPECT_EQ(prompt.content[0]["role"], "user");
    texts.push_back(prompt.content[0]["content"]);
    EXPECT_EQ(*fake_count(texts.back()), 60);
  }
  size_t shared = 0;
  while (texts[0][shared] == texts[1][shared]) ++shared;
  EXPECT_GE(*fake_count(texts[0].substr(0, shared)), 30);
  EXPECT_LT(*fake_count(texts[0].substr(0, shared)), 60);
  EXPECT_NE(texts[0], texts[1]);
  EXPECT_EQ((*source)->prompt(4).content[0]["content"], texts[1]);  // repeats
}

TEST(PromptFile, TextAndJsonLines) {
  auto text = parse_prompt_lines("one\r\n\n  \nनमस्ते\n", /*chat=*/false);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ((*text)->prompt(0).content, "one");
  EXPECT_EQ((*text)->prompt(1).content, "नमस्ते");
  EXPECT_EQ((*text)->prompt(2).content, "one");
  EXPECT_EQ((*text)->prompt(0).num_tokens, -1);

  auto ids = parse_prompt_lines("{\"prompt\": [1, 2, 3]}\n{\"prompt\": \"x\"}", /*chat=*/false);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ((*ids)->prompt(0).num_tokens, 3);
  auto chat = parse_prompt_lines(R"({"messages": [{"role": "user", "content": "hi"}]})", /*chat=*/true);
  ASSERT_TRUE(chat.ok());
  EXPECT_EQ((*chat)->prompt(0).content[0]["content"], "hi");
}

TEST(PromptFile, BadLinesAreNamed) {
  EXPECT_NE(parse_prompt_lines("{\"prompt\": \"x\"}\n{oops", false).error().message.find("line 2"), std::string::npos);
  EXPECT_FALSE(parse_prompt_lines("{\"text\": 1}", false).ok());
  EXPECT_FALSE(parse_prompt_lines("{\"prompt\": 1}", false).ok());
  EXPECT_FALSE(parse_prompt_lines("{\"prompt\": [1]}", true).ok());
  EXPECT_FALSE(parse_prompt_lines("{\"messages\": []}", false).ok());
  EXPECT_FALSE(parse_prompt_lines("\n\n", false).ok());
  EXPECT_FALSE(read_prompt_file("/nonexistent/prompts", false).ok());
}

}  // namespace
}  // namespace vayu::bench
