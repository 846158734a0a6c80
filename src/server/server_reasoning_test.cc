// Thinking and tool calls over HTTP: prompts, shapes, streams.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "server/test_server.h"

namespace vayu::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTools =
    R"("tools": [{"type": "function", "function": {"name": "f", "description": null, "parameters": {"type": "object"}}}])";

// What openai-python makes of a stream: deltas added up.
Json accumulate(const ClientResponse& response) {
  Json sum = {{"content", ""}, {"reasoning_content", ""}, {"tool_calls", Json::array()}};
  for (const std::string& data : response.events()) {
    if (data == "[DONE]") continue;
    const Json event = Json::parse(data);
    if (event["choices"].empty() || event["choices"][0]["index"] != 0) continue;
    const Json& choice = event["choices"][0];
    const Json& delta = choice["delta"];
    for (const char* key : {"content", "reasoning_content"}) {
      sum[key] = sum[key].get<std::string>() + delta.value(key, "");
    }
    for (const Json& call : delta.value("tool_calls", Json::array())) {
      const size_t index = call["index"];
      EXPECT_EQ(delta["tool_calls"].size(), 1u);
      if (index == sum["tool_calls"].size()) {
        EXPECT_EQ(call["function"]["arguments"], "");
        sum["tool_calls"].push_back({{"id", call["id"]}, {"type", call["type"]}, {"function", call["function"]}});
      } else {
        Json& arguments = sum["tool_calls"][index]["function"]["arguments"];
        arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
      }
    }
    if (!choice["finish_reason"].is_null()) {
      EXPECT_FALSE(sum.contains("finish_reason"));
      sum["finish_reason"] = choice["finish_reason"];
    }
  }
  return sum;
}

class ReasoningTest : public ServerTest {
 protected:
  void start_with(const std::string& path, ServerConfig config = with_hooks()) {
    start(std::move(config), /*attach_model=*/false);
    std::ifstream file(VAYU_SOURCE_DIR "/tests/golden/" + path);
    std::ostringstream text;
    text << file.rdbuf();
    attach(*ChatTemplate::parse(text.str()));
  }
  // The answer to forced text, which a stream must give alike.
  Json answer(const std::string& fields, const std::string& text, bool end = true) {
    const std::string body = fields + (fields.empty() ? "" : ", ") + forced(text, end);
    const auto whole = chat(body);
    EXPECT_EQ(whole.status, 200) << whole.body;
    Json choice = whole.json()["choices"][0];
    const Json sum = accumulate(chat(body + R"(, "stream": true)"));
    const Json& message = choice["message"];
    EXPECT_EQ(sum["finish_reason"], choice["finish_reason"]) << body;
    const auto text_of = [](const Json& value) { return value.is_null() ? Json("") : value; };
    EXPECT_EQ(sum["content"], text_of(message["content"])) << body;
    EXPECT_EQ(sum["reasoning_content"], text_of(message.value("reasoning_content", Json()))) << body;
    const Json calls = message.value("tool_calls", Json::array());
    EXPECT_EQ(sum["tool_calls"].size(), calls.size());
    for (size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(sum["tool_calls"][i]["function"], calls[i]["function"]);
    choice["usage"] = whole.json()["usage"];
    return choice;
  }
  std::string prompt(const std::string& messages, const std::string& fields = {}) {
    const auto response = call("POST", "/tokenize", R"({"messages": )" + messages + fields + "}");
    return response.status == 200 ? response.json()["prompt"].get<std::string>() : response.body;
  }
  static constexpr const char* kHi = R"([{"role": "user", "content": "hi"}])";
  static constexpr const char* kSarvam = "templates/sarvam.jinja";
  static constexpr const char* kQwen = "chat_template_sources/qwen3.jinja";
};

TEST_F(ReasoningTest, ThinkingGoesToItsOwnField) {
  start_with(kSarvam);
  const Json choice = answer("", "<think>\nwhy</think>\nbecause");
  EXPECT_EQ(choice["message"].dump(),
            R"({"role":"assistant","content":"because","reasoning_content":"why","reasoning":"why"})");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["usage"]["completion_tokens_details"]["reasoning_tokens"], 19);
  EXPECT_TRUE(answer("", "plain")["message"]["reasoning_content"].is_null());
  EXPECT_EQ(answer("", "<think></think>x")["message"]["content"], "x");
  const Json cut = answer(R"("max_tokens": 14)", "<think>abc</think>x");
  EXPECT_EQ(cut["message"]["reasoning_content"], "abc");
  EXPECT_EQ(cut["message"]["content"], "");
  EXPECT_EQ(cut["finish_reason"], "length");
  const Json stopped = answer(R"("stop": "because")", "<think>why</think>so because of");
  EXPECT_EQ(stopped["message"]["content"], "so ");
  EXPECT_EQ(answer(R"("separate_reasoning": false)", "<think>why</think>so")["message"]["content"],
            "<think>why</think>so");
  EXPECT_TRUE(
      answer(R"("include_reasoning": false)", "<think>why</think>so")["message"]["reasoning_content"].is_null());
  EXPECT_EQ(answer(R"("stream_reasoning": false)", "<think>why</think>so")["message"]["reasoning_content"], "why");
}

TEST_F(ReasoningTest, AStreamTellsEachTokenOnceAndTheRoleFirst) {
  start_with(kSarvam);
  const auto events =
      chat(R"("stream": true, "logprobs": true, "return_token_ids": true, )" + forced("<think>ab</think>c")).events();
  const std::string text = "<think>ab</think>c";
  ASSERT_EQ(events.size(), text.size() + 2);  // and the end id, [DONE]
  for (size_t i = 0; i < text.size(); ++i) {
    const Json choice = Json::parse(events[i])["choices"][0];
    EXPECT_EQ(choice["delta"].contains("role"), i == 0);
    EXPECT_EQ(choice["token_ids"].dump(), fmt::format("[{}]", static_cast<int>(text[i])));
    EXPECT_EQ(choice["logprobs"]["content"].size(), 1u);
  }
  EXPECT_EQ(Json::parse(events[7])["choices"][0]["delta"].dump(), R"({"reasoning_content":"a","reasoning":"a"})");
  EXPECT_EQ(Json::parse(events[10])["choices"][0]["delta"].dump(), R"({"reasoning_content":""})");
  EXPECT_EQ(Json::parse(events[17])["choices"][0]["delta"].dump(), R"({"content":"c"})");
}

TEST_F(ReasoningTest, SwitchingThinkingOff) {
  start_with(kSarvam);
  const std::string on = "[@BOS@]\n<|start_of_turn|><|user|>\nhi<|end_of_turn|>\n<|start_of_turn|><|assistant|>\n";
  const std::string off =
      "[@BOS@]\n<|start_of_turn|><|user|>\nhi<|nothink|><|end_of_turn|>\n<|start_of_turn|><|assistant|>\n<think></"
      "think>";
  EXPECT_EQ(prompt(kHi), on);
  EXPECT_EQ(prompt(kHi, R"(, "enable_thinking": true)"), on);
  EXPECT_EQ(prompt(kHi, R"(, "enable_thinking": false)"), off);
  EXPECT_EQ(prompt(kHi, R"(, "chat_template_kwargs": {"enable_thinking": false})"), off);
  EXPECT_EQ(prompt(kHi, R"(, "reasoning_effort": "none")"), off);
  EXPECT_EQ(prompt(kHi, R"(, "reasoning_effort": "none", "enable_thinking": true)"), on);
  EXPECT_EQ(prompt(kHi, R"(, "enable_thinking": false, "add_generation_prompt": false)"),
            "[@BOS@]\n<|start_of_turn|><|user|>\nhi<|nothink|><|end_of_turn|>\n");
  for (const char* bad : {R"("enable_thinking": 1)", R"("chat_template_kwargs": {"enable_thinking": "no"})",
                          R"("enable_thinking": true, "chat_template_kwargs": {"enable_thinking": false})",
                          R"("reasoning_effort": "lots")"}) {
    EXPECT_EQ(chat(bad).status, 400) << bad;
  }
  const Json choice = answer(R"("enable_thinking": false)", "\nanswer");
  EXPECT_EQ(choice["message"]["content"], "answer");
  EXPECT_EQ(choice["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
}

TEST_F(ReasoningTest, QwenClosesTheThinkingItself) {
  start_with(kQwen);
  EXPECT_TRUE(prompt(kHi, R"(, "enable_thinking": false)").ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_EQ(answer(R"("enable_thinking": false)", "answer")["message"]["content"], "answer");
}

TEST_F(ReasoningTest, HistoryKeepsThinkingWhereTheTemplateWantsIt) {
  start_with(kSarvam);
  const std::string late = R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a", )";
  for (const char* field : {"reasoning_content", "reasoning"}) {
    EXPECT_TRUE(
        prompt(late + fmt::format(R"("{}": "<|end_of_turn|>r"}}])", field), R"(, "add_generation_prompt": false)")
            .ends_with("<|assistant|>\n<think><|end_of_turn|>r</think>\na<|end_of_turn|>\n"));
  }
  EXPECT_NE(prompt(late + R"("reasoning_content": 3}])").find("messages[1].reasoning_content"), std::string::npos);
  // Continuing: behind the content, or behind the thinking when that is all there is.
  const std::string go_on = R"(, "continue_final_message": true)";
  EXPECT_TRUE(prompt(late + R"("reasoning_content": "r"}])", go_on).ends_with("<think>r</think>\na"));
  EXPECT_TRUE(
      prompt(R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<think>r</think>a"}])", go_on)
          .ends_with("<think>r</think>\na"));
  const std::string thought =
      R"([{"role": "user", "content": "hi"}, {"role": "assistant", "reasoning_content": "so"}])";
  EXPECT_TRUE(prompt(thought, go_on).ends_with("<|assistant|>\n<think>so"));
  const auto more =
      call("POST", "/v1/chat/completions", R"({"messages": )" + thought + go_on + ", " + forced(" far</think>x") + "}")
          .json();
  EXPECT_EQ(more["choices"][0]["message"]["reasoning_content"], "far");
  EXPECT_EQ(more["choices"][0]["message"]["content"], "x");
}

TEST_F(ReasoningTest, ToolCalls) {
  start_with(kQwen);
  const std::string one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1.0]}}\n</tool_call>";
  const Json choice = answer(kTools, "<think>\nr\n</think>\n\n" + one + "\n" + one);
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["message"]["reasoning_content"], "r");
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 2u);
  const Json& call = choice["message"]["tool_calls"][0];
  EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
  EXPECT_NE(call["id"], choice["message"]["tool_calls"][1]["id"]);
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"].dump(), R"({"name":"f","arguments":"{\"a\": [1.0]}"})");
  EXPECT_EQ(
      answer(std::string(kTools) + R"(, "parallel_tool_calls": false)", one + one)["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(answer(std::string(kTools) + R"(, "stop": "</tool_call>")", "So: " + one)["finish_reason"], "tool_calls");
  EXPECT_EQ(answer(std::string(kTools) + R"(, "n": 2)", "So: " + one)["message"]["content"], "So:");
  // Cut or malformed, not asked for, or switched off: content.
  EXPECT_EQ(answer(std::string(kTools) + R"(, "max_tokens": 30)", one)["message"]["content"], one.substr(0, 30));
  EXPECT_EQ(answer(kTools, "<tool_call>{\"name\"</tool_call>")["message"]["content"],
            "<tool_call>{\"name\"</tool_call>");
  EXPECT_EQ(answer(kTools, "<tool_call>{\"name\"</tool_call>")["finish_reason"], "stop");
  EXPECT_EQ(answer("", one)["message"]["content"], one);
  EXPECT_EQ(answer(std::string(kTools) + R"(, "tool_choice": "none")", one)["message"]["content"], one);
}

TEST_F(ReasoningTest, ToolsReachTheTemplateAndFaultsAreNamed) {
  start_with(kSarvam);
  EXPECT_TRUE(
      prompt(kHi, std::string(", ") + kTools)
          .starts_with("[@BOS@]\n<|start_of_turn|><|tool_declare|>\n<tools>\n{\"type\": \"function\", \"function\": "
                       "{\"name\": \"f\", \"parameters\": {\"type\": \"object\"}}}\n</tools><|end_of_turn|>\n"));
  EXPECT_FALSE(prompt(kHi, std::string(R"(, "tool_choice": "none", )") + kTools).find("<tools>") != std::string::npos);
  // The template shows no call syntax: what the model writes stays text.
  EXPECT_EQ(answer(kTools, "<tool_call>{\"name\": \"f\"}</tool_call>")["message"]["content"],
            "<tool_call>{\"name\": \"f\"}</tool_call>");
  const std::pair<const char*, const char*> faults[] = {
      {R"("tools": {})", "tools"},
      {R"("tools": [3])", "tools[0]"},
      {R"("tools": [{"type": "web"}])", "tools[0].type"},
      {R"("tools": [{"type": "function"}])", "tools[0].function"},
      {R"("tools": [{"function": {"name": ""}}])", "tools[0].function.name"},
      {R"("tools": [{"function": {"name": 3}}])", "tools[0].function.name"},
      {R"("tools": [{"function": {"name": "f", "parameters": "x"}}])", "tools[0].function.parameters"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("tool_choice": {"type": "function", "function": {"name": "f"}})", "tool_choice"},
      {R"("tool_choice": 5)", "tool_choice"}};
  for (const auto& [fields, param] : faults) {
    const auto response = chat(fields);
    EXPECT_EQ(response.status, 400) << fields;
    EXPECT_EQ(response.json()["error"]["param"], param) << fields;
  }
  EXPECT_NE(chat(R"("tool_choice": "required")").json()["error"]["message"].get<std::string>().find("constrained"),
            std::string::npos);
}

TEST_F(ReasoningTest, ParsersCanBeForcedAndSwitchedOff) {
  ServerConfig config = with_hooks();
  config.parsers = {"none", "none"};
  start_with(kQwen, config);
  const std::string text = "<think>r</think>x<tool_call>{\"name\": \"f\"}</tool_call>";
  EXPECT_EQ(answer(kTools, text)["message"]["content"], text);
  config.parsers = {"deepseek-r1", "hermes"};
  start_with("chat_template_sources/chatml_smol.jinja", config);
  const Json choice = answer(kTools, "r</think>x<tool_call>{\"name\": \"f\"}</tool_call>");
  EXPECT_EQ(choice["message"]["reasoning_content"], "r");
  EXPECT_EQ(choice["message"]["content"], "x");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "f");
}

}  // namespace
}  // namespace vayu::server
