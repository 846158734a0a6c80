#include "apps/chat/chat_loop.h"

#include <gtest/gtest.h>

#include <deque>

#include "apps/chat/stats_text.h"

namespace vayu::chat {
namespace {

// Answers "<number of messages>:<last text>" in two pieces; "fail" fails, "cut" fails after a piece.
class EchoBackend : public ChatBackend {
 public:
  const std::string& model_name() const override { return name_; }
  Result<AnswerStats> answer(const std::vector<ChatMessage>& messages, const ChatSettings&, const TextSink& text,
                             const StopQuery& stop) override {
    seen = messages;
    const std::string& last = messages.back().content;
    if (last == "fail") return make_error(ErrorKind::kResourceExhausted, "the queue is full");
    if (thinks) text(TextKind::kThinking, "hm\x1b");
    if (last == "think") return AnswerStats{.output_tokens = 1, .finish_reason = "length"};
    text(TextKind::kAnswer, fmt::format("{}:", messages.size()));
    if (last == "cut") return make_error(ErrorKind::kIo, "gone");
    if (on_answer) on_answer();
    if (stop()) return AnswerStats{.output_tokens = 1, .finish_reason = "cancelled"};
    text(TextKind::kAnswer, last);
    return AnswerStats{.output_tokens = 11, .ttft_s = 0.02, .decode_s = 0.5, .finish_reason = "stop"};
  }
  Result<std::string> stats() override { return std::string("numbers\n"); }

  std::vector<ChatMessage> seen;
  std::function<void()> on_answer;
  bool thinks = false;

 private:
  const std::string name_ = "echo";
};

struct Session {
  EchoBackend backend;
  std::deque<ReadResult> input;
  std::string out, err;
  int interrupts = 0;
  bool interactive = false;
  std::string system;

  int run(std::initializer_list<const char*> lines) {
    for (const char* line : lines) input.push_back({ReadResult::kLine, line});
    Console console;
    console.interactive = interactive;
    console.read_line = [this](std::string_view) {
      if (input.empty()) return ReadResult{};
      ReadResult next = input.front();
      input.pop_front();
      return next;
    };
    console.write = [this](std::string_view text) { out += text; };
    console.write_error = [this](std::string_view text) { err += text; };
    console.interrupts = [this] { return interrupts; };
    console.reset_interrupts = [this] { interrupts = 0; };
    return ChatLoop(backend, {}, system, console).run();
  }
};

TEST(ChatLoop, PipedLinesGivePlainAnswersOfOneConversation) {
  Session s;
  EXPECT_EQ(s.run({"one", "", "  two  "}), 0);
  EXPECT_EQ(s.out, "1:one\n3:two\n");
  ASSERT_EQ(s.backend.seen.size(), 3u);
  EXPECT_EQ(s.backend.seen[1].role, "assistant");
  EXPECT_EQ(s.backend.seen[1].content, "1:one");
  EXPECT_EQ(s.err, "");
}

TEST(ChatLoop, CommandsChangeTheConversation) {
  Session s;
  EXPECT_EQ(s.run({"a", "/system Be brief.", "b", "/reset", "c", "/system", "d", "/stats", "/bogus", "/exit", "never"}),
            0);
  EXPECT_EQ(s.out, "1:a\n2:b\n2:c\n1:d\nnumbers\n");
  EXPECT_NE(s.err.find("/bogus"), std::string::npos);
}

TEST(ChatLoop, AFailedQuestionLeavesNoTrace) {
  Session s;
  EXPECT_EQ(s.run({"a", "fail", "cut", "b"}), 1);
  EXPECT_EQ(s.out, "1:a\n3:\n5:b\n");  // the piece of "cut" is kept, "fail" is not
  EXPECT_EQ(s.err, "the queue is full\ngone\n");
  s.interactive = true;
  EXPECT_EQ(s.run({"fail"}), 0);
}

TEST(ChatLoop, CtrlCStopsTheAnswerAndTwiceLeaves) {
  Session s;
  s.interactive = true;
  s.backend.on_answer = [&] { s.interrupts = 1; };
  s.run({"a", "b"});
  EXPECT_EQ(s.backend.seen.size(), 3u);  // the second question was asked, after the stopped answer
  EXPECT_NE(s.out.find("stopped"), std::string::npos);

  Session twice;
  twice.interactive = true;
  twice.backend.on_answer = [&] { twice.interrupts = 2; };
  twice.run({"a", "b"});
  EXPECT_EQ(twice.backend.seen.size(), 1u);

  Session at_prompt;
  at_prompt.interactive = true;
  at_prompt.input = {{ReadResult::kInterrupted, ""}, {ReadResult::kInterrupted, ""}};
  at_prompt.run({"never"});
  EXPECT_TRUE(at_prompt.backend.seen.empty());
}

TEST(ChatLoop, AnInteractiveSessionShowsSpeedAndMasksControls) {
  Session s;
  s.interactive = true;
  s.run({"x\x1b]0;title\x07y"});
  EXPECT_NE(s.out.find("11 tokens, 20.0 tokens/s, first after 20 ms"), std::string::npos);
  EXPECT_NE(s.out.find("1:x?]0;title?y"), std::string::npos);
  EXPECT_EQ(mask_control_characters("a\tb\nनमस्ते \xc2\x9b"
                                    "31m\x7f\r"),
            "a\tb\nनमस्ते ?31m??");
}

TEST(ChatLoop, ThinkingIsDimAndNoPartOfTheConversation) {
  Session s;
  s.backend.thinks = true;
  s.interactive = true;
  s.run({"a", "b", "think"});
  EXPECT_NE(s.out.find("\x1b[2mhm?\x1b[0m\n\n1:a\n"), std::string::npos);
  EXPECT_EQ(s.backend.seen[1].content, "1:a");
  EXPECT_NE(s.out.find("\x1b[2mhm?\x1b[0m\n\n\x1b[2m1 tokens, "), std::string::npos);
  Session piped;
  piped.backend.thinks = true;
  piped.run({"a"});
  EXPECT_EQ(piped.out, "1:a\n");
}

TEST(StatsText, ToleratesOddBodies) {
  const auto text = format_server_stats(R"({"running": 2, "waiting": 1, "tokens_per_s": 10.25, "kv": {"total": 9},
      "ttft_ms": {"p50": 1.5, "p95": null}, "itl_ms": 3})");
  ASSERT_TRUE(text.ok());
  EXPECT_NE(text->find("2 running, 1 waiting, - in all"), std::string::npos);
  EXPECT_NE(text->find("p50 1.5 ms, p95 - ms"), std::string::npos);
  EXPECT_TRUE(format_server_stats(R"({"kv": 3})").ok());
  EXPECT_FALSE(format_server_stats("oops").ok());
}

}  // namespace
}  // namespace vayu::chat
