#include "apps/chat/local_backend.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "apps/chat/stats_text.h"
#include "base/bounded_queue.h"
#include "server/answer_parser.h"
#include "server/answer_text.h"
#include "server/prompt_builder.h"

namespace vayu::chat {

namespace {

constexpr std::chrono::milliseconds kStopPoll(50);
using DeltaQueue = BoundedQueue<SequenceDelta>;
using Seconds = std::chrono::duration<double>;

class LocalBackend : public ChatBackend {
 public:
  LocalBackend(std::shared_ptr<EngineClient> engine, std::shared_ptr<const Tokenizer> tokenizer,
               std::shared_ptr<const ChatTemplate> chat_template)
      : tokenizer_(std::move(tokenizer)),
        prompts_({.engine = engine.get(), .tokenizer = tokenizer_, .chat_template = std::move(chat_template)}, {}),
        marks_(server::mark_tokens(*tokenizer_, prompts_.format())),
        engine_(std::move(engine)) {}

  const std::string& model_name() const override { return engine_->info().model_name; }

  Result<AnswerStats> answer(const std::vector<ChatMessage>& messages, const ChatSettings& settings,
                             const TextSink& text, const StopQuery& stop) override {
    VAYU_ASSIGN_OR_RETURN(server::BuiltPrompt prompt, build_prompt(messages));
    server::AnswerParserOptions parsing{.reasoning = prompts_.format().reasoning,
                                        .after_thinking = prompt.thinking_done};
    if (parsing.reasoning) parsing.reasoning->starts_thinking = prompt.thinking_open;
    VAYU_ASSIGN_OR_RETURN(Request request, make_request(std::move(prompt), settings));
    AnswerStats stats;
    stats.prompt_tokens = static_cast<int64_t>(request.prompt.size());
    // The sink may outlive this call by a moment, so it shares the queue. At most one delta a token and an end: the
    // queue cannot fill up, however slow the terminal.
    auto queue = std::make_shared<DeltaQueue>(static_cast<size_t>(request.sampling.max_tokens) + 8);
    const auto start = std::chrono::steady_clock::now();
    VAYU_ASSIGN_OR_RETURN(const RequestId id, engine_->submit(std::move(request), [queue](SequenceDelta&& delta) {
      queue->push(std::move(delta));
    }));
    server::AnswerText decode(*tokenizer_, {.marks = marks_});
    server::AnswerParser parser(parsing);
    std::chrono::steady_clock::time_point first = start;
    for (bool asked_to_stop = false;;) {
      if (!asked_to_stop && stop()) {
        asked_to_stop = true;
        engine_->cancel(id);
      }
      std::optional<SequenceDelta> delta = queue->pop_for(kStopPoll);
      if (!delta) continue;
      if (!delta->tokens.empty()) {
        const auto now = std::chrono::steady_clock::now();
        if (stats.output_tokens == 0) first = now;
        stats.ttft_s = Seconds(first - start).count();
        stats.decode_s = Seconds(now - first).count();
        stats.cached_tokens = delta->cached_tokens;
        show(*delta, decode, parser, text, stats);
      }
      if (!delta->finish) continue;
      show_pieces(parser.finish(decode.finish(), delta->finish == FinishReason::kLength), text);
      if (delta->error) return std::move(*delta->error);
      stats.finish_reason = *delta->finish == FinishReason::kCancelled ? "cancelled" : to_string(*delta->finish);
      return stats;
    }
  }

  Result<std::string> stats() override { return format_engine_stats(engine_->stats()); }

 private:
  static void show_pieces(const server::AnswerPieces& pieces, const TextSink& text) {
    for (const server::AnswerPiece& piece : pieces) {
      text(piece.kind == server::AnswerPiece::kReasoning ? TextKind::kThinking : TextKind::kAnswer, piece.text);
    }
  }

  static void show(const SequenceDelta& delta, server::AnswerText& decode, server::AnswerParser& parser,
                   const TextSink& text, AnswerStats& stats) {
    std::string piece;
    for (const OutputToken& token : delta.tokens) {
      ++stats.output_tokens;
      const bool end_mark = delta.finish && token.token == delta.stop_token && &token == &delta.tokens.back();
      piece += decode.push(token.token, end_mark);
    }
    show_pieces(parser.push(piece), text);
  }

  Result<server::BuiltPrompt> build_prompt(const std::vector<ChatMessage>& messages) const {
    server::ChatInput input;
    for (const ChatMessage& m : messages) {
      server::Json message = {{"role", m.role}, {"content", m.content}};
      input.messages.push_back(std::move(message));
    }
    return prompts_.chat(input, std::nullopt);
  }

  Result<Request> make_request(server::BuiltPrompt prompt, const ChatSettings& settings) const {
    Request request;
    request.prompt = std::move(prompt.ids);
    const int64_t room = engine_->info().max_context - static_cast<int64_t>(request.prompt.size());
    if (request.prompt.empty() || room < 1) {
      return make_error(ErrorKind::kInvalidArgument,
                        "the conversation has {} tokens, the context holds {}; start again with /reset",
                        request.prompt.size(), engine_->info().max_context);
    }
    request.sampling.temperature = settings.temperature;
    request.sampling.top_p = settings.top_p;
    request.sampling.max_tokens = static_cast<int32_t>(std::min<int64_t>(room, settings.max_tokens));
    request.sampling.seed = settings.seed ? *settings.seed : std::random_device()();
    return request;
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  const server::PromptBuilder prompts_;
  const std::vector<TokenId> marks_;
  std::shared_ptr<EngineClient> engine_;  // last: stops first
};

}  // namespace

Result<std::unique_ptr<ChatBackend>> make_local_backend(std::shared_ptr<EngineClient> engine,
                                                        std::shared_ptr<const Tokenizer> tokenizer,
                                                        std::shared_ptr<const ChatTemplate> chat_template) {
  if (!chat_template) return make_error(ErrorKind::kUnsupported, "the model brings no chat template");
  return std::unique_ptr<ChatBackend>(
      std::make_unique<LocalBackend>(std::move(engine), std::move(tokenizer), std::move(chat_template)));
}

}  // namespace vayu::chat
