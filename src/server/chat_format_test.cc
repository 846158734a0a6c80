#include "server/chat_format.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "server/test_fakes.h"

namespace vayu::server {
namespace {

std::shared_ptr<const ChatTemplate> load(const std::string& path) {
  std::ifstream file(VAYU_SOURCE_DIR "/tests/golden/" + path);
  std::ostringstream text;
  text << file.rdbuf();
  auto parsed = ChatTemplate::parse(text.str());
  EXPECT_TRUE(parsed.ok()) << path;
  return *parsed;
}

ChatFormat detect(const std::string& path, const ParserChoice& choice = {}) {
  return detect_chat_format(load(path).get(), "<s>", "</s>", choice);
}

TEST(ChatFormat, HermesJson) {
  for (const char* name : {"chat_template_sources/qwen25.jinja", "chat_template_sources/qwen3.jinja",
                           "chat_template_sources/hermes.jinja"}) {
    const ChatFormat format = detect(name);
    ASSERT_TRUE(format.tool_calls) << name;
    EXPECT_EQ(format.tool_calls->open, "<tool_call>") << name;
    EXPECT_EQ(format.tool_calls->close, "</tool_call>") << name;
    EXPECT_EQ(format.tool_calls->arguments_key, "arguments") << name;
    EXPECT_FALSE(format.tool_calls->short_ids) << name;
  }
}

TEST(ChatFormat, SarvamThinksAndHasNoCallSyntax) {
  const ChatFormat format = detect("templates/sarvam.jinja");
  ASSERT_TRUE(format.reasoning);
  EXPECT_EQ(format.reasoning->open, "<think>");
  EXPECT_EQ(format.reasoning->close, "</think>");
  EXPECT_EQ(format.empty_thinking, "<think></think>");
  EXPECT_EQ(format.reasoning_fields, std::vector<std::string>{"reasoning_content"});
  EXPECT_FALSE(format.tool_calls);
}

TEST(ChatFormat, Qwen3SwitchesThinkingOffItself) {
  const ChatFormat format = detect("chat_template_sources/qwen3.jinja");
  ASSERT_TRUE(format.reasoning);
  EXPECT_EQ(format.empty_thinking, "");
}

TEST(ChatFormat, OtherFamilies) {
  const ChatFormat mistral = detect("chat_template_sources/mistral.jinja");
  ASSERT_TRUE(mistral.tool_calls);
  EXPECT_EQ(mistral.tool_calls->open, "[TOOL_CALLS]");
  EXPECT_EQ(mistral.tool_calls->close, "");
  EXPECT_TRUE(mistral.tool_calls->short_ids);
  const ChatFormat llama = detect("chat_template_sources/llama3.jinja");
  ASSERT_TRUE(llama.tool_calls);
  EXPECT_EQ(llama.tool_calls->open, "");
  EXPECT_EQ(llama.tool_calls->arguments_key, "parameters");
}

TEST(ChatFormat, NothingIsGuessed) {
  for (const char* name : {"chatml_smol", "gemma", "llama2", "phi4"}) {
    const ChatFormat format = detect(std::string("chat_template_sources/") + name + ".jinja");
    EXPECT_FALSE(format.reasoning) << name;
    EXPECT_FALSE(format.tool_calls) << name;
  }
  const auto comment = ChatTemplate::parse("{# <think></think> <tool_call>{\"name\" #}{{ messages[0].content }}");
  const ChatFormat format = detect_chat_format(comment->get(), "", "", {});
  EXPECT_FALSE(format.reasoning);
  EXPECT_FALSE(format.tool_calls);
  // The tags alone do not tell what stands between them.
  const auto other = ChatTemplate::parse(
      "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls %}<tool_call>{{ c.function.name }}"
      "<arg>{{ c.function.arguments }}</arg></tool_call>{% endfor %}\n{% endfor %}"
      "{% if add_generation_prompt %}assistant:{% endif %}");
  EXPECT_FALSE(detect_chat_format(other->get(), "", "", {}).tool_calls);
  EXPECT_FALSE(detect_chat_format(nullptr, "", "", {}).reasoning);
}

TEST(ChatFormat, InstructionsInWordsCount) {
  const auto told = ChatTemplate::parse(
      "{% if tools %}Call with <tool_call>\n{\"name\": NAME, \"arguments\": OBJECT}\n</tool_call>{% endif %}"
      "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% "
      "endif %}");
  const ChatFormat format = detect_chat_format(told->get(), "", "", {});
  ASSERT_TRUE(format.tool_calls);
  EXPECT_EQ(format.tool_calls->open, "<tool_call>");
}

TEST(ChatFormat, TemplatesThatWantArgumentsAsText) {
  const auto text = ChatTemplate::parse(
      "{% for m in messages %}{{ m.role + ':' + m.content }}{% for c in m.tool_calls %}"
      "{{ '<call>{\"name\": \"' + c.function.name + '\", \"arguments\": ' + c.function.arguments + '}</call>' }}{% "
      "endfor %};"
      "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}");
  const ChatFormat format = detect_chat_format(text->get(), "", "", {});
  EXPECT_TRUE(format.arguments_as_text);
  ASSERT_TRUE(format.tool_calls);
  EXPECT_EQ(format.tool_calls->open, "<call>");
  EXPECT_EQ(format.tool_calls->close, "</call>");
}

TEST(ChatFormat, FlagsOverrule) {
  const ChatFormat none = detect("chat_template_sources/qwen3.jinja", {"none", "none"});
  EXPECT_FALSE(none.reasoning);
  EXPECT_FALSE(none.tool_calls);
  const ChatFormat forced = detect("chat_template_sources/chatml_smol.jinja", {"deepseek_r1", "hermes"});
  ASSERT_TRUE(forced.reasoning);
  EXPECT_TRUE(forced.reasoning->starts_thinking);
  EXPECT_EQ(forced.tool_calls->open, "<tool_call>");
  EXPECT_TRUE(check_parser_choice({"qwen3", "llama3_json"}).ok());
  const Status bad = check_parser_choice({"qwen4", "auto"});
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().field, "--reasoning-parser");
  EXPECT_EQ(check_parser_choice({"auto", "x"}).error().field, "--tool-call-parser");
}

TEST(ChatFormat, SpecialMarksOfTheVocabulary) {
  ChatFormat format;
  format.reasoning = ReasoningFormat{"<|turn|>", "x"};
  EXPECT_EQ(mark_tokens(FakeTokenizer(), format), std::vector<TokenId>{FakeTokenizer::kTurn});
}

}  // namespace
}  // namespace vayu::server
