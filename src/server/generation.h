// One HTTP request on its way through the engine: submits its prompts, turns deltas into stream events or one body, and
// sees to it that the engine is told when nobody wants the rest. Knows no sockets.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "core/engine_client.h"
#include "server/answer_parser.h"
#include "server/answer_text.h"
#include "server/api_request.h"
#include "server/mailbox.h"
#include "server/prompt_builder.h"
#include "server/response_json.h"
#include "telemetry/serving_metrics.h"

namespace vayu::server {

struct GenerationSpec {
  ResponseHead head;
  GenerateOptions options;
  bool echo = false;
  std::optional<AnswerParserOptions> parsing;  // chat; none: all text is content
  std::vector<TokenId> marks;                  // special tokens that the parsing looks for
  std::vector<BuiltPrompt> prompts;
  std::vector<int32_t> max_tokens;  // (prompts) as it will run, at least 1
  std::string cache_namespace;
  int64_t arrival_us = 0;
  int64_t deadline_us = 0;
  size_t max_pending_tokens = 2048;
};

// Created on a worker thread, then used by one thread at a time.
class Generation {
 public:
  struct Services {
    EngineClient* engine;
    std::shared_ptr<const Tokenizer> tokenizer;
    ServingMetrics* metrics;
    const Clock* clock;
  };

  // Submits. `wake` is called from any thread when pump() has something to do; it must only post. The error is the
  // engine's; nothing of the request is then left in the engine.
  static Result<std::unique_ptr<Generation>> submit(Services services, GenerationSpec spec, std::function<void()> wake);
  ~Generation();  // abandons if not done

  void pump();  // digests what has arrived
  bool done() const { return open_answers_ == 0 || error_.has_value(); }
  bool stream() const { return spec_.options.stream; }
  const std::optional<Error>& error() const { return error_; }
  bool has_output() const { return has_output_; }  // a stream has had an event other than an error
  // The client left its tokens lying for too long.
  bool overflow() const { return mailbox_->overflow(); }

  // Streams: the events since the last call, ending in [DONE] once done (an error is an event too). Empty when there is
  // nothing new.
  std::string take_events() { return std::exchange(events_, {}); }
  // Non-streams: the response, once done without error.
  std::string body() const;

  // Cancels what is still running. `reason` goes into the metrics.
  void abandon(std::string_view reason);

  Usage usage() const;
  int64_t ttft_us() const { return ttft_us_; }  // -1 before the first token
  std::string finish_summary() const;           // "stop", "length,stop", "error": for the access log

 private:
  struct Answer {
    Answer(const Tokenizer& tokenizer, const AnswerTextOptions& options,
           const std::optional<AnswerParserOptions>& parsing)
        : text(tokenizer, options) {
      if (parsing) parser.emplace(*parsing);
    }
    size_t prompt = 0;
    int32_t choice = 0;
    AnswerText text;
    std::optional<AnswerParser> parser;
    std::string full_text;  // non-streams
    std::string reasoning;  // non-streams: all of it; streams: what stream_reasoning=false keeps back
    Json tool_calls;        // non-streams; null without
    int32_t num_calls = 0;
    int32_t num_calls_sent = 0;       // streams
    std::vector<OutputToken> tokens;  // non-streams, when ids or log-probabilities are wanted
    int64_t text_offset = 0;          // characters so far, with the echoed prompt
    bool first = true;
    std::string_view finish_reason;  // empty while open
    Json stop_reason;
    int64_t scheduled_us = 0;
    int64_t first_token_us = 0;
    int64_t last_token_us = 0;
  };

  Generation(Services services, GenerationSpec spec, std::function<void()> wake);
  Status submit_all();
  Request make_request(size_t prompt) const;
  void digest(size_t prompt, SequenceDelta&& delta);
  void consume(Answer& answer, SequenceDelta&& delta);
  void consume_token(Answer& answer, const SequenceDelta& delta, size_t index);
  void time_tokens(Answer& answer, const SequenceDelta& delta);
  void add_part(Answer& answer, std::string text, std::span<const OutputToken> tokens);
  std::vector<ChoicePart> make_parts(Answer& answer, std::string text);
  AnswerPieces parse(Answer& answer, const std::string& text);
  void add_call(std::vector<ChoicePart>& parts, Answer& answer, ToolCall call);
  void send_part(Answer& answer, const ChoicePart& part, bool first);
  void finish(Answer& answer, std::string_view reason, Json stop_reason);
  void fail(Error error);
  void record_end(const Answer& answer, std::string_view reason);
  void add_event(const Json& event);
  ChoiceFormat format() const;
  bool keeps_tokens() const { return spec_.options.return_token_ids || spec_.options.sampling.logprobs >= 0; }
  bool waits_for_prompt_logprobs(size_t prompt) const;
  std::string echo_text(size_t prompt) const;
  size_t answer_index(const Answer& answer) const { return answer.prompt * spec_.options.n + answer.choice; }

  const Services services_;
  const GenerationSpec spec_;
  const std::shared_ptr<Mailbox> mailbox_;
  std::vector<RequestId> ids_;                             // (prompts) as far as submitted
  std::vector<Answer> answers_;                            // (prompts * n)
  std::vector<std::vector<OutputToken>> prompt_logprobs_;  // (prompts)
  std::vector<std::vector<SequenceDelta>> held_;           // (prompts) deltas waiting for the prompt's values
  std::vector<int32_t> cached_tokens_;                     // (prompts)
  size_t open_answers_ = 0;
  bool has_output_ = false;
  std::string events_;
  std::optional<Error> error_;
  int64_t ttft_us_ = -1;
};

}  // namespace vayu::server
