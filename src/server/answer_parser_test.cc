#include "server/answer_parser.h"

#include <gtest/gtest.h>

namespace vayu::server {
namespace {

struct Parsed {
  std::string reasoning, content, calls;  // calls: name(arguments) each
  bool operator==(const Parsed&) const = default;
};
void PrintTo(const Parsed& p, std::ostream* out) { *out << p.reasoning << " | " << p.content << " | " << p.calls; }

Parsed join(const AnswerPieces& pieces) {
  Parsed parsed;
  for (const AnswerPiece& piece : pieces) {
    if (piece.kind == AnswerPiece::kToolCall) parsed.calls += piece.call.name + "(" + piece.call.arguments + ")";
    (piece.kind == AnswerPiece::kReasoning ? parsed.reasoning : parsed.content) += piece.text;
  }
  return parsed;
}

Parsed feed(const AnswerParserOptions& options, const std::vector<std::string>& pieces, bool cut) {
  AnswerParser parser(options);
  AnswerPieces all;
  for (const std::string& piece : pieces) {
    for (AnswerPiece& out : parser.push(piece)) all.push_back(std::move(out));
  }
  for (AnswerPiece& out : parser.finish("", cut)) all.push_back(std::move(out));
  return join(all);
}

// The whole text at once, cut in two at every place, and a byte at a time: all alike.
Parsed parse(const AnswerParserOptions& options, const std::string& text, bool cut = false) {
  const Parsed whole = feed(options, {text}, cut);
  for (size_t at = 0; at <= text.size(); ++at) {
    EXPECT_EQ(feed(options, {text.substr(0, at), text.substr(at)}, cut), whole) << text << " at " << at;
  }
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  EXPECT_EQ(feed(options, bytes, cut), whole) << text;
  return whole;
}

AnswerParserOptions thinker(bool open = false, bool done = false) {
  return {.reasoning = ReasoningFormat{"<think>", "</think>", open}, .after_thinking = done};
}
AnswerParserOptions hermes() { return {.tool_calls = ToolCallFormat{"<tool_call>", "</tool_call>"}}; }

TEST(ReasoningSplitter, SplitsAtEveryCut) {
  EXPECT_EQ(parse(thinker(), "<think>why</think>because"), (Parsed{"why", "because", ""}));
  EXPECT_EQ(parse(thinker(), "\n<think>\nwhy\n so \n</think>\n\nbecause \n"), (Parsed{"why\n so", "because \n", ""}));
  EXPECT_EQ(parse(thinker(), "<think></think>answer"), (Parsed{"", "answer", ""}));
  EXPECT_EQ(parse(thinker(), "<think>\n\n</think>\n\nanswer"), (Parsed{"", "answer", ""}));
  EXPECT_EQ(parse(thinker(), "no thinking < here"), (Parsed{"", "no thinking < here", ""}));
  EXPECT_EQ(parse(thinker(), "  <thin> air </thin>"), (Parsed{"", "  <thin> air </thin>", ""}));
  EXPECT_EQ(parse(thinker(), "<think>a < b </ think> </thin</think>x"), (Parsed{"a < b </ think> </thin", "x", ""}));
  EXPECT_EQ(parse(thinker(), "<think>क्यों</think>क्योंकि"), (Parsed{"क्यों", "क्योंकि", ""}));
}

TEST(ReasoningSplitter, EndsInsideTheThinking) {
  for (const bool cut : {false, true}) {
    EXPECT_EQ(parse(thinker(), "<think>so far ", cut), (Parsed{"so far", "", ""}));
    EXPECT_EQ(parse(thinker(), "<think>", cut), Parsed{});
  }
  EXPECT_EQ(parse(thinker(), "<think>so far\n</thi", true), (Parsed{"so far", "", ""}));
  EXPECT_EQ(parse(thinker(), "<think>so far\n</thi", false), (Parsed{"so far\n</thi", "", ""}));
  EXPECT_EQ(parse(thinker(), "<thi", true), Parsed{});
  EXPECT_EQ(parse(thinker(), "<", false), (Parsed{"", "<", ""}));
  EXPECT_EQ(parse(thinker(), "if a <", true), (Parsed{"", "if a <", ""}));
  EXPECT_EQ(parse(thinker(), " \n", true), (Parsed{"", " \n", ""}));
}

TEST(ReasoningSplitter, TagsTwice) {
  EXPECT_EQ(parse(thinker(), "<think>a</think>b<think>c</think>d"), (Parsed{"a\n\nc", "bd", ""}));
  EXPECT_EQ(parse(thinker(), "<think>\n<think>a</think>b"), (Parsed{"a", "b", ""}));
  EXPECT_EQ(parse(thinker(), "<think></think>\n<think>c</think>\nd"), (Parsed{"c", "d", ""}));
  // Talk about the tag is no tag.
  EXPECT_EQ(parse(thinker(), "Use `<think>` and \"<think>\"."), (Parsed{"", "Use `<think>` and \"<think>\".", ""}));
  EXPECT_EQ(parse(thinker(), "a</think>b"), (Parsed{"", "a</think>b", ""}));
}

TEST(ReasoningSplitter, PromptOpenedOrClosedTheThinking) {
  EXPECT_EQ(parse(thinker(true), "why</think>because"), (Parsed{"why", "because", ""}));
  EXPECT_EQ(parse(thinker(true), "<think>why</think>because"), (Parsed{"why", "because", ""}));
  EXPECT_EQ(parse(thinker(true), "</think>because"), (Parsed{"", "because", ""}));
  EXPECT_EQ(parse(thinker(false, true), "\nanswer"), (Parsed{"", "answer", ""}));
  EXPECT_EQ(parse(thinker(false, true), "</think>\nanswer"), (Parsed{"", "answer", ""}));
  EXPECT_EQ(parse(thinker(false, true), "<think>still</think>answer"), (Parsed{"still", "answer", ""}));
}

TEST(ReasoningSplitter, CountsTokensOfTheThinking) {
  const auto count = [](const AnswerParserOptions& options, std::initializer_list<const char*> tokens) {
    AnswerParser parser(options);
    for (const char* token : tokens) {
      parser.push(token);
      parser.count_token();
    }
    return parser.reasoning_tokens();
  };
  EXPECT_EQ(count(thinker(), {"<think>", "a", "b", "</think>", "c"}), 4);
  EXPECT_EQ(count(thinker(), {"<th", "ink", ">", "a", "</", "think>", "c", "d"}), 6);
  EXPECT_EQ(count(thinker(), {"<th", "is", ">"}), 0);
  EXPECT_EQ(count(thinker(true), {"a", "</think>", "c"}), 2);
  EXPECT_EQ(count({}, {"a"}), 0);
}

TEST(ToolCallParser, Hermes) {
  const std::string one =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1.0, \"a\": \"x}</tool_call>\\\"\"}}\n</tool_call>";
  const std::string arguments = "{\"b\": 1.0, \"a\": \"x}</tool_call>\\\"\"}";
  EXPECT_EQ(parse(hermes(), one), (Parsed{"", "", "f(" + arguments + ")"}));
  EXPECT_EQ(parse(hermes(), one + "\n" + one), (Parsed{"", "", "f(" + arguments + ")f(" + arguments + ")"}));
  EXPECT_EQ(parse(hermes(), "Let me see.\n" + one + "\nDone."),
            (Parsed{"", "Let me see.\nDone.", "f(" + arguments + ")"}));
  EXPECT_EQ(parse(hermes(), "\n" + one + "\n"), (Parsed{"", "", "f(" + arguments + ")"}));
  EXPECT_EQ(parse(hermes(), one + "\nAfter"), (Parsed{"", "After", "f(" + arguments + ")"}));
  EXPECT_EQ(parse(hermes(), R"(<tool_call>[{"name":"f"},{"name":"g","arguments":null}]</tool_call>)").calls,
            "f({})g({})");
  EXPECT_EQ(parse(hermes(), R"(<tool_call>{"name":"f","arguments":"{\"a\": 1}"}</tool_call>)").calls, "f({\"a\": 1})");
  EXPECT_EQ(parse(hermes(), R"(<tool_call>{"arg\u0075ments":{"a":[1]},"name":"f"}</tool_call>)").calls,
            "f({\"a\":[1]})");
}

TEST(ToolCallParser, WhatIsNoCallStaysByteForByte) {
  for (const std::string text :
       {"plain\n text <tool_cal", "<tool_call>not json</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {</tool_call> x", "<tool_call>{\"name\": 3}</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>", "<tool_call>{}</tool_call>", "<tool_call>[]</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>", "<tool_call>{\"name\": \"\"}</tool_call>",
        "<tool_call>{\"name\": \"f\"} and more", "<tool_call>{\"name\": \"f\"}}</tool_call>", " \n<tool_call>",
        "<tool_call>{\"name\": \"a\nb\"}</tool_call>", "a <tool_call> b <tool_call> c",
        "<tool_call>{\"name\": \"f\", \"argum", "{\"name\": \"f\", \"arguments\": {}}", "  \n "}) {
    EXPECT_EQ(parse(hermes(), text), (Parsed{"", text, ""})) << text;
    EXPECT_EQ(parse(hermes(), text, true), (Parsed{"", text, ""})) << text;
  }
  std::string deep =
      "<tool_call>{\"name\":\"f\",\"arguments\":" + std::string(2000, '[') + std::string(2000, ']') + "}</tool_call>";
  EXPECT_EQ(feed(hermes(), {deep}, false).content, deep);
}

TEST(ToolCallParser, ABadCallDoesNotTakeTheNextWithIt) {
  EXPECT_EQ(parse(hermes(), R"(<tool_call>{"name": "f", </tool_call><tool_call>{"name": "g"}</tool_call>)"),
            (Parsed{"", R"(<tool_call>{"name": "f", </tool_call>)", "g({})"}));
  EXPECT_EQ(parse(hermes(), R"(<tool_call><tool_call>{"name": "g"}</tool_call>)"),
            (Parsed{"", "<tool_call>", "g({})"}));
}

TEST(ToolCallParser, TheLastCallMayLackItsMark) {
  EXPECT_EQ(parse(hermes(), R"(<tool_call>{"name": "g"})").calls, "g({})");
  EXPECT_EQ(parse(hermes(), "<tool_call>{\"name\": \"g\"}\n</tool", true), (Parsed{"", "", "g({})"}));
}

TEST(ToolCallParser, ListsAndAnswersThatAreCalls) {
  const AnswerParserOptions mistral{.tool_calls = ToolCallFormat{"[TOOL_CALLS]", ""}};
  EXPECT_EQ(parse(mistral, R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": [1, {}]}, "id": "x"}, {"name": "g"}])"),
            (Parsed{"", "", R"(f({"a": [1, {}]})g({}))"}));
  EXPECT_EQ(parse(mistral, R"([TOOL_CALLS] [{"name": "f"})").content, R"([TOOL_CALLS] [{"name": "f"})");
  const AnswerParserOptions llama{.tool_calls = ToolCallFormat{"", "", "parameters"}, .tool_names = {"f", "g"}};
  EXPECT_EQ(parse(llama, R"( {"name": "f", "parameters": {"a": 1}}; {"name": "g"})"),
            (Parsed{"", "", R"(f({"a": 1})g({}))"}));
  for (const char* text :
       {R"({"name": "Asha", "parameters": {}})", R"(See {"name": "f", "parameters": {}})", R"([{"name": "f"}])"}) {
    EXPECT_EQ(parse(llama, text), (Parsed{"", text, ""}));
  }
}

TEST(AnswerParser, ThinkingThenCalls) {
  AnswerParserOptions options = thinker();
  options.tool_calls = hermes().tool_calls;
  EXPECT_EQ(
      parse(
          options,
          "<think>call <tool_call>{\"name\": \"no\"}</tool_call>?</think>\n\n<tool_call>{\"name\": \"f\"}</tool_call>"),
      (Parsed{"call <tool_call>{\"name\": \"no\"}</tool_call>?", "", "f({})"}));
  EXPECT_EQ(parse(options, "<think>x</think>Hello <"), (Parsed{"x", "Hello <", ""}));
}

}  // namespace
}  // namespace vayu::server
