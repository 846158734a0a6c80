#include "server/generation.h"

#include <algorithm>
#include <limits>
#include <random>

#include "server/http_message.h"

namespace vayu::server {
namespace {

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();  // an answer kept whole grows by as much anyway

std::string make_call_id(bool is_short) {
  static constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyz";
  thread_local std::mt19937_64 random{std::random_device()()};
  std::string id = is_short ? "" : "call_";
  for (int i = 0; i < (is_short ? 9 : 24); ++i) id += kLetters[random() % kLetters.size()];
  return id;
}

}  // namespace

Generation::Generation(Services services, GenerationSpec spec, std::function<void()> wake)
    : services_(std::move(services)),
      spec_(std::move(spec)),
      mailbox_(std::make_shared<Mailbox>(
          stream() ? spec_.max_pending_tokens * spec_.prompts.size() * spec_.options.n : kNoLimit, std::move(wake))),
      prompt_logprobs_(spec_.prompts.size()),
      held_(spec_.prompts.size()),
      cached_tokens_(spec_.prompts.size(), 0) {
  const GenerateOptions& options = spec_.options;
  const AnswerTextOptions text{.stop = options.stop,
                               .include_stop_str = options.include_stop_str,
                               .skip_special = options.skip_special,
                               .marks = spec_.marks,
                               .min_tokens = options.sampling.min_tokens};
  for (size_t prompt = 0; prompt < spec_.prompts.size(); ++prompt) {
    for (int32_t choice = 0; choice < options.n; ++choice) {
      Answer& answer = answers_.emplace_back(*services_.tokenizer, text, spec_.parsing);
      answer.prompt = prompt;
      answer.choice = choice;
    }
  }
  open_answers_ = answers_.size();
}

Result<std::unique_ptr<Generation>> Generation::submit(Services services, GenerationSpec spec,
                                                       std::function<void()> wake) {
  std::unique_ptr<Generation> generation(new Generation(std::move(services), std::move(spec), std::move(wake)));
  VAYU_RETURN_IF_ERROR(generation->submit_all());
  return generation;
}

Generation::~Generation() {
  if (!done()) abandon("failed");
  mailbox_->close();
}

Request Generation::make_request(size_t prompt) const {
  const GenerateOptions& options = spec_.options;
  Request request;
  request.prompt = spec_.prompts[prompt].ids;
  request.sampling = options.sampling;
  request.sampling.max_tokens = spec_.max_tokens[prompt];
  request.sampling.min_tokens = std::min(options.sampling.min_tokens, request.sampling.max_tokens);
  request.n = options.n;
  request.arrival_us = spec_.arrival_us;
  request.deadline_us = spec_.deadline_us;
  request.cache_namespace = spec_.cache_namespace;
  request.forced_output = options.forced_output;
  request.fail_at_token = options.fail_at_token;
  request.stall_ms = options.stall_ms;
  return request;
}

Status Generation::submit_all() {
  for (size_t prompt = 0; prompt < spec_.prompts.size(); ++prompt) {
    auto id = services_.engine->submit(make_request(prompt), [mailbox = mailbox_, prompt](SequenceDelta&& delta) {
      mailbox->push(prompt, std::move(delta));
    });
    if (!id.ok()) {
      for (const RequestId earlier : ids_) services_.engine->cancel(earlier);
      open_answers_ = 0;
      return std::move(id).error();
    }
    ids_.push_back(*id);
  }
  services_.metrics->on_request();
  for (const BuiltPrompt& prompt : spec_.prompts) services_.metrics->on_prompt(static_cast<int32_t>(prompt.ids.size()));
  return {};
}

void Generation::pump() {
  for (Mailbox::Item& item : mailbox_->take()) {
    if (done()) return;
    digest(item.prompt, std::move(item.delta));
  }
}

bool Generation::waits_for_prompt_logprobs(size_t prompt) const {
  return spec_.options.sampling.prompt_logprobs >= 0 && prompt_logprobs_[prompt].empty();
}

void Generation::digest(size_t prompt, SequenceDelta&& delta) {
  cached_tokens_[prompt] = std::max(cached_tokens_[prompt], delta.cached_tokens);
  if (!delta.prompt.empty()) prompt_logprobs_[prompt] = std::move(delta.prompt);
  if (delta.error || delta.finish == FinishReason::kError || delta.finish == FinishReason::kCancelled) {
    return consume(answers_[prompt * spec_.options.n + delta.choice], std::move(delta));
  }
  held_[prompt].push_back(std::move(delta));
  if (waits_for_prompt_logprobs(prompt)) return;
  for (SequenceDelta& held : std::exchange(held_[prompt], {})) {
    if (!error_) consume(answers_[prompt * spec_.options.n + held.choice], std::move(held));
  }
}

void Generation::consume(Answer& answer, SequenceDelta&& delta) {
  if (!answer.finish_reason.empty()) return;  // a stop string ended it before the engine heard of that
  time_tokens(answer, delta);
  for (size_t i = 0; i < delta.tokens.size() && answer.finish_reason.empty(); ++i) consume_token(answer, delta, i);
  if (!delta.finish || !answer.finish_reason.empty() || error_) return;
  switch (*delta.finish) {
    case FinishReason::kError:
      return fail(delta.error.value_or(make_error(ErrorKind::kInternal, "The request failed in the engine.")));
    case FinishReason::kCancelled:
      return fail(
          make_error(ErrorKind::kUnavailable, "The request was cancelled because the server is shutting down."));
    case FinishReason::kStop:
    case FinishReason::kLength:  // an end without a token of its own
      finish(answer, to_string(*delta.finish), nullptr);
      add_part(answer, answer.text.finish(), {});
  }
}

void Generation::consume_token(Answer& answer, const SequenceDelta& delta, size_t index) {
  const bool last = index + 1 == delta.tokens.size();
  if (spec_.options.max_tokens == 0) {  // echo alone: the engine's smallest answer is one token, which is not shown
    finish(answer, "length", nullptr);
    return add_part(answer, {}, {});
  }
  const bool end_mark = last && delta.stop_token != kNoToken;
  std::string text = answer.text.push(delta.tokens[index].token, end_mark);
  if (answer.text.stopped()) {
    services_.engine->cancel(ids_[answer.prompt], answer.choice, FinishReason::kStop);
    finish(answer, "stop", answer.text.matched_stop());
  } else if (last && (delta.finish == FinishReason::kStop || delta.finish == FinishReason::kLength)) {
    text += answer.text.finish();
    const auto& stop_ids = spec_.options.sampling.stop_token_ids;
    const bool asked_for = end_mark && std::binary_search(stop_ids.begin(), stop_ids.end(), delta.stop_token);
    finish(answer, to_string(*delta.finish), asked_for ? Json(delta.stop_token) : Json(nullptr));
  }
  add_part(answer, std::move(text), std::span(delta.tokens).subspan(index, 1));
}

void Generation::time_tokens(Answer& answer, const SequenceDelta& delta) {
  if (delta.scheduled_us > 0) answer.scheduled_us = delta.scheduled_us;
  auto count = static_cast<int32_t>(delta.tokens.size());
  if (count == 0) return;
  if (answer.first_token_us == 0) {
    answer.first_token_us = delta.time_us;
    const int64_t ttft_us = delta.time_us - spec_.arrival_us;
    services_.metrics->on_first_token(ttft_us);
    if (ttft_us_ < 0) ttft_us_ = ttft_us;
    answer.last_token_us = delta.time_us;
    --count;
  }
  if (count > 0) services_.metrics->on_next_tokens(delta.time_us - answer.last_token_us, count);
  answer.last_token_us = delta.time_us;
}

std::string Generation::echo_text(size_t prompt) const {
  const BuiltPrompt& built = spec_.prompts[prompt];
  return built.text.empty() ? services_.tokenizer->decode(built.ids) : built.text;
}

// The pieces of new text, as the request wants to see them.
AnswerPieces Generation::parse(Answer& answer, const std::string& text) {
  const bool ended = !answer.finish_reason.empty();
  AnswerPieces parsed =
      ended ? answer.parser->finish(text, answer.finish_reason == "length") : answer.parser->push(text);
  AnswerPieces pieces;
  for (AnswerPiece& piece : parsed) {
    if (piece.kind == AnswerPiece::kReasoning && !spec_.options.include_reasoning) continue;
    if (piece.kind == AnswerPiece::kReasoning && stream() && !spec_.options.stream_reasoning) {
      answer.reasoning += piece.text;
      continue;
    }
    if (piece.kind == AnswerPiece::kToolCall && !spec_.options.parallel_tool_calls && answer.num_calls > 0) continue;
    if (piece.kind == AnswerPiece::kToolCall) ++answer.num_calls;
    if (stream() && !answer.reasoning.empty()) {
      pieces.push_back({AnswerPiece::kReasoning, std::exchange(answer.reasoning, {}), {}});
    }
    pieces.push_back(std::move(piece));
  }
  if (ended && stream() && !answer.reasoning.empty()) {
    pieces.push_back({AnswerPiece::kReasoning, std::exchange(answer.reasoning, {}), {}});
  }
  if (answer.num_calls > 0 && answer.finish_reason == "stop") answer.finish_reason = "tool_calls";
  return pieces;
}

// A call is told in two events, as OpenAI's streams do: who is called, then with what.
void Generation::add_call(std::vector<ChoicePart>& parts, Answer& answer, ToolCall call) {
  Json whole = tool_call_json(make_call_id(spec_.parsing->tool_calls->short_ids), call.name, call.arguments);
  if (!stream()) {
    if (answer.tool_calls.is_null()) answer.tool_calls = Json::array();
    answer.tool_calls.push_back(std::move(whole));
    return;
  }
  const int32_t index = answer.num_calls_sent++;
  Json head = {{"index", index}};
  head.update(whole);
  head["function"]["arguments"] = "";
  parts.emplace_back().tool_calls = Json::array({std::move(head)});
  Json arguments = {{"index", index}};
  arguments["function"]["arguments"] = call.arguments;
  parts.emplace_back().tool_calls = Json::array({std::move(arguments)});
}

// One part for each event to send: thinking may stand before content in one, anything else needs its own.
std::vector<ChoicePart> Generation::make_parts(Answer& answer, std::string text) {
  std::vector<ChoicePart> parts;
  if (!answer.parser) {
    parts.emplace_back().text = std::move(text);
    return parts;
  }
  for (AnswerPiece& piece : parse(answer, text)) {
    if (piece.kind == AnswerPiece::kToolCall) {
      add_call(parts, answer, std::move(piece.call));
      continue;
    }
    const bool content = piece.kind == AnswerPiece::kContent;
    const bool joins = !parts.empty() && parts.back().tool_calls.is_null() && (content || parts.back().text.empty());
    ChoicePart& part = joins ? parts.back() : parts.emplace_back();
    (content ? part.text : part.reasoning) += piece.text;
  }
  if (parts.empty()) parts.emplace_back();
  for (ChoicePart& part : parts) part.thinking = answer.parser->thinking();
  return parts;
}

// Adds new text and tokens to the answer: to its body, or as events, of which the first carries the tokens.
void Generation::add_part(Answer& answer, std::string text, std::span<const OutputToken> tokens) {
  const bool first = std::exchange(answer.first, false);
  if (first && spec_.echo) text.insert(0, echo_text(answer.prompt));
  std::vector<ChoicePart> parts = make_parts(answer, std::move(text));
  if (answer.parser && !tokens.empty()) answer.parser->count_token();
  if (!stream()) {
    for (const ChoicePart& part : parts) {
      answer.full_text += part.text;
      answer.reasoning += part.reasoning;
    }
    if (keeps_tokens()) answer.tokens.insert(answer.tokens.end(), tokens.begin(), tokens.end());
    return;
  }
  parts.front().tokens = tokens;
  parts.front().first = first;
  if (first && spec_.echo) parts.front().prompt_tokens = prompt_logprobs_[answer.prompt];
  parts.back().finish_reason = answer.finish_reason;
  parts.back().stop_reason = answer.stop_reason;
  for (ChoicePart& part : parts) {
    part.index = static_cast<int32_t>(answer_index(answer));
    part.text_offset = answer.text_offset;
    send_part(answer, part, first && &part == &parts.front());
  }
  if (open_answers_ > 0) return;
  if (spec_.options.include_usage) {
    Json last = response_top(spec_.head, /*chunk=*/true);
    last["usage"] = usage_json(usage());
    add_event(last);
  }
  events_ += "data: [DONE]\n\n";
}

void Generation::send_part(Answer& answer, const ChoicePart& part, bool first) {
  if (spec_.options.sampling.logprobs >= 0) {
    for (const auto list : {part.prompt_tokens, part.tokens}) {
      for (const OutputToken& token : list) {
        answer.text_offset += count_characters(token_name(*services_.tokenizer, token.token));
      }
    }
  }
  Json event = response_top(spec_.head, /*chunk=*/true);
  Json choice = choice_json(spec_.head, format(), part, /*chunk=*/true);
  if (first && spec_.options.return_token_ids) {
    const auto& ids = spec_.prompts[answer.prompt].ids;
    if (!spec_.head.chat) choice["prompt_token_ids"] = ids;
    if (spec_.prompts.size() == 1) event["prompt_token_ids"] = ids;
  }
  event["choices"].push_back(std::move(choice));
  if (spec_.options.include_usage && spec_.options.continuous_usage) event["usage"] = usage_json(usage());
  add_event(event);
}

void Generation::add_event(const Json& event) {
  has_output_ = true;
  events_.append("data: ").append(dump(event)).append("\n\n");
}

void Generation::finish(Answer& answer, std::string_view reason, Json stop_reason) {
  answer.finish_reason = reason;
  answer.stop_reason = std::move(stop_reason);
  --open_answers_;
  record_end(answer, reason);
}

void Generation::fail(Error error) {
  for (size_t i = 0; i < ids_.size(); ++i) services_.engine->cancel(ids_[i]);
  const std::string_view reason = error.kind == ErrorKind::kUnavailable ? "abort" : "error";
  for (const Answer& answer : answers_) {
    if (answer.finish_reason.empty()) record_end(answer, reason);
  }
  if (stream()) {
    events_.append("data: ").append(error_json(error, http_status(error.kind))).append("\n\ndata: [DONE]\n\n");
  }
  error_ = std::move(error);
}

void Generation::abandon(std::string_view reason) {
  if (done()) return;
  for (const RequestId id : ids_) services_.engine->cancel(id);
  for (const Answer& answer : answers_) {
    if (answer.finish_reason.empty()) record_end(answer, "abort");
  }
  services_.metrics->on_abandoned(reason);
  error_ = make_error(ErrorKind::kCancelled, "The client is gone.");
}

void Generation::record_end(const Answer& answer, std::string_view reason) {
  AnswerRecord record;
  record.finished_reason = reason;
  record.e2e_us = services_.clock->now_us() - spec_.arrival_us;
  if (answer.scheduled_us > 0) record.queue_us = answer.scheduled_us - spec_.arrival_us;
  if (answer.scheduled_us > 0 && answer.first_token_us > 0) {
    record.prefill_us = answer.first_token_us - answer.scheduled_us;
  }
  if (answer.first_token_us > 0) record.decode_us = answer.last_token_us - answer.first_token_us;
  record.prompt_tokens = static_cast<int32_t>(spec_.prompts[answer.prompt].ids.size());
  record.generation_tokens = answer.text.num_tokens();
  record.max_tokens = spec_.max_tokens[answer.prompt];
  record.n = spec_.options.n;
  services_.metrics->on_answer_end(record);
}

ChoiceFormat Generation::format() const {
  return {.logprobs = spec_.options.sampling.logprobs >= 0,
          .token_ids = spec_.options.return_token_ids,
          .reasoning = spec_.parsing && spec_.parsing->reasoning,
          .tokenizer = services_.tokenizer.get()};
}

Usage Generation::usage() const {
  Usage usage;
  for (const BuiltPrompt& prompt : spec_.prompts) usage.prompt_tokens += static_cast<int64_t>(prompt.ids.size());
  for (const int32_t cached : cached_tokens_) usage.cached_tokens += cached;
  for (const Answer& answer : answers_) usage.completion_tokens += answer.text.num_tokens();
  if (spec_.parsing && spec_.parsing->reasoning) {
    usage.reasoning_tokens = 0;
    for (const Answer& answer : answers_) usage.reasoning_tokens += answer.parser->reasoning_tokens();
  }
  return usage;
}

std::string Generation::body() const {
  Json body = response_top(spec_.head, /*chunk=*/false);
  for (const Answer& answer : answers_) {
    ChoicePart part;
    part.index = static_cast<int32_t>(answer_index(answer));
    part.text = answer.full_text;
    part.reasoning = answer.reasoning;
    part.tool_calls = answer.tool_calls;
    part.tokens = answer.tokens;
    if (spec_.echo) part.prompt_tokens = prompt_logprobs_[answer.prompt];
    part.finish_reason = answer.finish_reason;
    part.stop_reason = answer.stop_reason;
    Json choice = choice_json(spec_.head, format(), part, /*chunk=*/false);
    if (spec_.options.return_token_ids && !spec_.head.chat) {
      choice["prompt_token_ids"] = spec_.prompts[answer.prompt].ids;
    }
    body["choices"].push_back(std::move(choice));
  }
  body["usage"] = usage_json(usage());
  if (spec_.options.return_token_ids && spec_.prompts.size() == 1) body["prompt_token_ids"] = spec_.prompts[0].ids;
  return dump(body);
}

std::string Generation::finish_summary() const {
  if (error_) return error_->kind == ErrorKind::kCancelled ? "abort" : "error";
  std::string summary;
  for (const Answer& answer : answers_) {
    if (summary.find(answer.finish_reason) != std::string::npos) continue;
    if (!summary.empty()) summary += ',';
    summary += answer.finish_reason;
  }
  return summary;
}

}  // namespace vayu::server
