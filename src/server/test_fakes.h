// A byte tokenizer, a small template and an engine without a model, for tests of the server.
#pragma once

#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "core/engine_client.h"
#include "server/server.h"

namespace vayu::server {

// Ids 0-255 are bytes; then <bos>, <eos>, <|turn|>, <|end|>. encode adds <bos> where add_special asks for it.
class FakeTokenizer : public Tokenizer {
 public:
  static constexpr TokenId kBos = 256, kEos = 257, kTurn = 258, kEnd = 259;

  int32_t vocab_size() const override { return 260; }
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<TokenId> ids;
    if (options.add_special && adds_bos_) ids.push_back(kBos);
    for (size_t i = 0; i < text.size();) {
      const TokenId special = options.parse_special ? special_at(text, i, options.trusted) : kNoToken;
      if (special == kNoToken) {
        ids.push_back(static_cast<unsigned char>(text[i++]));
      } else {
        ids.push_back(special);
        i += token_bytes(special).size();
      }
    }
    return ids;
  }
  std::string_view token_bytes(TokenId id) const override {
    if (id < 0 || id >= vocab_size()) return {};
    return id < 256 ? std::string_view(bytes_.data() + id, 1) : kSpecials[id - 256];
  }
  bool is_special(TokenId id) const override { return id >= 256; }
  std::optional<TokenId> find(std::string_view token) const override {
    for (TokenId id = 0; id < vocab_size(); ++id) {
      if (token_bytes(id) == token) return id;
    }
    return std::nullopt;
  }
  std::optional<TokenId> bos_id() const override { return kBos; }
  std::span<const TokenId> end_ids() const override { return ends_; }
  bool adds_bos() const override { return adds_bos_; }
  size_t max_token_bytes() const override { return 8; }
  bool strips_leading_space() const override { return false; }

  explicit FakeTokenizer(bool adds_bos = true) : adds_bos_(adds_bos) {
    for (int i = 0; i < 256; ++i) bytes_.push_back(static_cast<char>(i));
  }

 private:
  static constexpr std::string_view kSpecials[] = {"<bos>", "<eos>", "<|turn|>", "<|end|>"};
  TokenId special_at(std::string_view text, size_t at, std::span<const uint8_t> trusted) const {
    for (TokenId id = 256; id < vocab_size(); ++id) {
      const std::string_view name = token_bytes(id);
      if (!text.substr(at).starts_with(name)) continue;
      bool all_trusted = true;
      for (size_t i = at; i < at + name.size() && !trusted.empty(); ++i) all_trusted = all_trusted && trusted[i] != 0;
      if (all_trusted) return id;
    }
    return kNoToken;
  }
  const bool adds_bos_;
  std::string bytes_;
  const std::vector<TokenId> ends_ = {kEos};
};

// <|turn|>ROLE\nCONTENT<|end|> for each message, then <|turn|>assistant\n.
class FakeTemplate : public ChatTemplate {
 public:
  Result<RenderedPrompt> render(const nlohmann::ordered_json& context) const override {
    RenderedPrompt out;
    const auto add = [&](const std::string& text, uint8_t trusted) {
      out.text += text;
      out.trusted.insert(out.trusted.end(), text.size(), trusted);
    };
    for (const auto& message : context["messages"]) {
      const auto role = message["role"].get<std::string>();
      if (role == "forbidden") return make_error(ErrorKind::kInvalidArgument, "no such role");
      add("<|turn|>", 1);
      add(role, 0);
      add("\n", 1);
      add(message["content"].get<std::string>(), 0);
      add("<|end|>", 1);
    }
    if (context["add_generation_prompt"].get<bool>()) add("<|turn|>assistant\n", 1);
    return out;
  }
  const std::string& source() const override { return source_; }

 private:
  const std::string source_ = "fake";
};

// Emits a token a tick for every answer: forced_output first, then "ok" and the end id (or 'x' with ignore_eos).
class FakeEngine : public EngineClient {
 public:
  explicit FakeEngine(const Clock& clock) : clock_(clock) {
    info_.model_name = "fake";
    info_.vocab_size = 260;
    info_.max_context = 2000;
    info_.max_request_pages = 100;
    info_.page_size = 16;
    thread_ = std::thread([this] { loop(); });
  }
  ~FakeEngine() override {
    stopping_ = true;
    thread_.join();
  }

  const EngineInfo& info() const override { return info_; }
  Result<RequestId> submit(Request request, DeltaSink sink) override {
    std::lock_guard lock(mutex_);
    if (refuse_with) return *refuse_with;
    if (drained_) return make_error(ErrorKind::kUnavailable, "draining");
    const RequestId id = ++last_id_;
    request.id = id;
    last_request = request;
    for (int32_t choice = 0; choice < request.n; ++choice) answers_.push_back({request, sink, choice, {}, {}});
    return id;
  }
  void cancel(RequestId id, int32_t choice, FinishReason reason) override {
    std::lock_guard lock(mutex_);
    for (Answer& answer : answers_) {
      if (answer.request.id == id && (choice < 0 || answer.choice == choice) && !answer.cancelled) {
        answer.cancelled = reason;
        if (reason == FinishReason::kCancelled) ++num_cancelled;
      }
    }
  }
  EngineStats stats() const override {
    std::lock_guard lock(mutex_);
    EngineStats stats;
    stats.running = static_cast<int32_t>(answers_.size());
    stats.total_pages = 100;
    stats.free_pages = 60;
    stats.cached_pages = 10;
    stats.page_size = 16;
    stats.step_running_since_us = step_running_since_us;
    stats.failed = failed;
    return stats;
  }
  void drain(int64_t deadline_us) override {
    drained_ = true;
    while (num_running() > 0 && clock_.now_us() < deadline_us)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::lock_guard lock(mutex_);
    for (Answer& answer : answers_) answer.cancelled = FinishReason::kCancelled;
  }

  int num_running() const {
    std::lock_guard lock(mutex_);
    return static_cast<int>(answers_.size());
  }

  std::atomic<int> tick_us = 200;
  std::atomic<bool> hold = false;  // no tokens: as if everything were queued
  std::atomic<int> num_cancelled = 0;
  std::atomic<int64_t> step_running_since_us = 0;
  std::optional<Error> refuse_with;
  std::string failed;  // set while no request is under way
  Request last_request;

 private:
  struct Answer {
    Request request;
    DeltaSink sink;
    int32_t choice;
    std::vector<TokenId> output;
    std::optional<FinishReason> cancelled;
  };

  void loop() {
    while (!stopping_) {
      std::this_thread::sleep_for(std::chrono::microseconds(tick_us));
      std::lock_guard lock(mutex_);
      std::erase_if(answers_, [&](Answer& answer) { return step(answer); });
    }
  }

  OutputToken scored(TokenId token, int32_t top, bool first = false) const {
    OutputToken out;
    out.token = token;
    out.logprob = first ? std::numeric_limits<float>::quiet_NaN() : -0.5f;
    for (int32_t i = 0; i < top && !first; ++i) out.top.push_back({(token + i) % 260, -0.5f - static_cast<float>(i)});
    return out;
  }

  bool step(Answer& answer) {
    const SamplingParams& sampling = answer.request.sampling;
    SequenceDelta delta;
    delta.request_id = answer.request.id;
    delta.choice = answer.choice;
    delta.time_us = clock_.now_us();
    delta.scheduled_us = answer.request.arrival_us + 1;
    delta.finish = answer.cancelled;
    if (!delta.finish && hold) return false;
    const auto position = static_cast<int32_t>(answer.output.size());
    if (!delta.finish && position == answer.request.fail_at_token) {
      delta.finish = FinishReason::kError;
      delta.error = make_error(ErrorKind::kInternal, "The logits are not finite.");
    }
    if (!delta.finish) {
      if (position == 0 && sampling.prompt_logprobs >= 0) {
        for (size_t i = 0; i < answer.request.prompt.size(); ++i) {
          delta.prompt.push_back(scored(answer.request.prompt[i], sampling.prompt_logprobs, i == 0));
        }
      }
      const TokenId token = next_token(answer);
      answer.output.push_back(token);
      delta.tokens.push_back(scored(token, sampling.logprobs));
      if (token == FakeTokenizer::kEos && !sampling.ignore_eos) {
        delta.finish = FinishReason::kStop;
        delta.stop_token = token;
      } else if (position + 1 == sampling.max_tokens) {
        delta.finish = FinishReason::kLength;
      }
    }
    const bool finished = delta.finish.has_value();
    answer.sink(std::move(delta));
    return finished;
  }

  TokenId next_token(const Answer& answer) const {
    const auto& forced = answer.request.forced_output;
    const size_t position = answer.output.size();
    if (position < forced.size()) return forced[position];
    if (answer.request.sampling.ignore_eos) return 'x';
    const size_t rest = position - forced.size();
    return forced.empty() && rest < 2 ? "ok"[rest] : FakeTokenizer::kEos;
  }

  const Clock& clock_;
  EngineInfo info_;
  mutable std::mutex mutex_;
  std::vector<Answer> answers_;
  RequestId last_id_ = 0;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> drained_ = false;
  std::thread thread_;
};

}  // namespace vayu::server
