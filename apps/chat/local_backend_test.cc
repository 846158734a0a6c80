#include "apps/chat/local_backend.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace vayu::chat {
namespace {

// One token a byte; 256 ends an answer, 257 begins a prompt.
class ByteTokenizer : public Tokenizer {
 public:
  ByteTokenizer() {
    for (int i = 0; i < 256; ++i) bytes_.push_back(std::string(1, static_cast<char>(i)));
    bytes_.push_back("<end>");
    bytes_.push_back("<bos>");
  }
  int32_t vocab_size() const override { return 258; }
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override {
    EXPECT_TRUE(options.parse_special);
    EXPECT_FALSE(options.add_special);
    EXPECT_EQ(options.trusted.size(), text.size());
    std::vector<TokenId> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string_view token_bytes(TokenId id) const override { return bytes_[static_cast<size_t>(id)]; }
  bool is_special(TokenId id) const override { return id >= 256; }
  std::optional<TokenId> find(std::string_view) const override { return std::nullopt; }
  std::optional<TokenId> bos_id() const override { return 257; }
  std::span<const TokenId> end_ids() const override { return end_; }
  bool adds_bos() const override { return false; }
  bool strips_leading_space() const override { return false; }

 private:
  std::vector<std::string> bytes_;
  std::vector<TokenId> end_ = {256};
};

class JoinTemplate : public ChatTemplate {
 public:
  Result<RenderedPrompt> render(const nlohmann::ordered_json& context) const override {
    EXPECT_EQ(context["bos_token"], "<bos>");
    EXPECT_EQ(context["eos_token"], "<end>");
    EXPECT_EQ(context["add_generation_prompt"], true);
    RenderedPrompt prompt;
    for (const auto& m : context["messages"]) prompt.text += m["content"].get<std::string>();
    prompt.trusted.resize(prompt.text.size());
    return prompt;
  }
  const std::string& source() const override { return source_; }

 private:
  std::string source_;
};

// Says back the prompt, a byte each millisecond, from a thread of its own; then the end mark. "!" fails in mid-answer.
class EchoEngine : public EngineClient {
 public:
  EchoEngine() { info_.max_context = 64; }
  ~EchoEngine() override { join(); }
  const EngineInfo& info() const override { return info_; }
  Result<RequestId> submit(Request request, DeltaSink sink) override {
    join();
    cancelled_ = false;
    last = request;
    thread_ = std::thread([this, request = std::move(request), sink = std::move(sink)] { run(request, sink); });
    return RequestId{1};
  }
  void cancel(RequestId, int32_t, FinishReason) override { cancelled_ = true; }
  EngineStats stats() const override { return {.running = 3}; }
  void drain(int64_t) override {}
  Request last;

 private:
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  void run(const Request& request, const DeltaSink& sink) {
    std::vector<TokenId> out = request.prompt;
    out.push_back(256);
    for (size_t i = 0; i < out.size(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      SequenceDelta delta;
      const bool end = out[i] == 256;
      if (cancelled_ || out[i] == '!') {
        delta.finish = cancelled_ ? FinishReason::kCancelled : FinishReason::kError;
        if (!cancelled_) delta.error = make_error(ErrorKind::kInternal, "logits were not finite");
      } else {
        delta.tokens.push_back({.token = out[i]});
        if (end) delta.finish = FinishReason::kStop;
        if (end) delta.stop_token = 256;
      }
      const bool last_one = delta.finish.has_value();
      sink(std::move(delta));
      if (last_one) return;
    }
  }
  EngineInfo info_;
  std::atomic<bool> cancelled_{false};
  std::thread thread_;
};

struct Fixture {
  std::shared_ptr<EchoEngine> engine = std::make_shared<EchoEngine>();
  std::unique_ptr<ChatBackend> backend =
      *make_local_backend(engine, std::make_shared<ByteTokenizer>(), std::make_shared<JoinTemplate>());
  std::vector<std::string> pieces;
  std::string text, thinking;

  Result<AnswerStats> ask(
      const std::string& question, const StopQuery& stop = [] { return false; }) {
    pieces.clear();
    text.clear();
    thinking.clear();
    return backend->answer(
        {{"user", question}}, {.temperature = 0.5f, .max_tokens = 1000, .seed = 9},
        [&](TextKind kind, std::string_view piece) {
          pieces.emplace_back(piece);
          (kind == TextKind::kAnswer ? text : thinking) += piece;
        },
        stop);
  }
};

TEST(LocalBackend, StreamsWholeCharactersAndCountsTokens) {
  Fixture f;
  const auto stats = f.ask("hi नमस्ते");
  ASSERT_TRUE(stats.ok()) << stats.error().message;
  EXPECT_EQ(f.text, "hi नमस्ते");
  EXPECT_EQ(f.pieces.size(), 9u);  // a piece a character, none for the end mark
  EXPECT_EQ(stats->prompt_tokens, 21);
  EXPECT_EQ(stats->output_tokens, 22);
  EXPECT_EQ(stats->finish_reason, "stop");
  EXPECT_GT(stats->decode_s, 0);
  EXPECT_EQ(f.engine->last.sampling.max_tokens, 64 - 21);  // what the context leaves
  EXPECT_EQ(f.engine->last.sampling.seed, 9u);
}

TEST(LocalBackend, ThinkingComesApart) {
  Fixture f;
  f.backend =
      *make_local_backend(f.engine, std::make_shared<ByteTokenizer>(),
                          *ChatTemplate::parse("{{ messages[-1].content.split('</think>') | join('</think>') }}"));
  ASSERT_TRUE(f.ask("<think>why</think>\nso").ok());
  EXPECT_EQ(f.thinking, "why");
  EXPECT_EQ(f.text, "so");
}

TEST(LocalBackend, StopCancelsAndErrorsComeBack) {
  Fixture f;
  const auto stopped = f.ask(std::string(60, 'a'), [&] { return f.text.size() >= 3; });
  ASSERT_TRUE(stopped.ok());
  EXPECT_EQ(stopped->finish_reason, "cancelled");
  EXPECT_LT(f.text.size(), 60u);

  const auto failed = f.ask("ok!");
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().message, "logits were not finite");
  EXPECT_EQ(f.text, "ok");

  EXPECT_FALSE(f.ask(std::string(64, 'a')).ok());  // no room for an answer
  EXPECT_FALSE(make_local_backend(f.engine, std::make_shared<ByteTokenizer>(), nullptr).ok());
  EXPECT_NE(f.backend->stats()->find("3 running"), std::string::npos);
}

}  // namespace
}  // namespace vayu::chat
