#include "apps/bench/bench_runner.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <set>

#include "apps/bench/progress.h"
#include "apps/client/openai_api.h"
#include "apps/client/sse_parser.h"

namespace vayu::bench {

namespace asio = boost::asio;
using client::HttpConnection;
using client::HttpRequest;
using client::HttpResponse;
using client::StreamEvent;
using SteadyTime = std::chrono::steady_clock::time_point;

namespace {

double ms_between(SteadyTime from, SteadyTime to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

// One answer as it streams in.
struct AnswerState {
  RequestRecord* record;
  SteadyTime start;
  SteadyTime first_token, last_token;
  client::SseParser parser;
  bool done = false;

  bool take(std::string_view bytes) {
    const SteadyTime now = std::chrono::steady_clock::now();
    const bool fits = parser.push(bytes, [&](std::string_view data) {
      if (!done && record->error_label.empty()) take_event(data, now);
    });
    if (!fits) fail("protocol", "an event is too large");
    return record->error_label.empty();
  }

  void take_event(std::string_view data, SteadyTime now) {
    auto parsed = client::parse_stream_event(data);
    if (!parsed.ok()) return fail(parsed.error().field, parsed.error().message);
    const StreamEvent& event = *parsed;
    if (event.error) return fail(event.error->field, event.error->message);
    if (event.has_token) {
      if (record->num_events++ == 0) {
        first_token = now;
        record->ttft_ms = ms_between(start, now);
      } else {
        record->itl_ms.push_back(ms_between(last_token, now));
      }
      last_token = now;
    }
    if (!event.finish_reason.empty()) record->finish_reason = event.finish_reason;
    if (event.usage) {
      record->prompt_tokens = event.usage->prompt_tokens;
      record->output_tokens = event.usage->completion_tokens;
      record->cached_tokens = event.usage->cached_tokens;
    }
    done = event.done;
  }

  void fail(std::string label, std::string message) {
    record->error_label = std::move(label);
    record->error_message = std::move(message);
  }
};

class Runner {
 public:
  Runner(std::shared_ptr<const client::HttpTarget> target, const PromptSource& prompts, const RunOptions& options)
      : target_(std::move(target)), prompts_(prompts), options_(options), signals_(io_), progress_timer_(io_) {}

  RunResult run() {
    signals_.add(SIGINT);
    signals_.async_wait([this](boost::system::error_code code, int) {
      if (!code) interrupt();
    });
    if (options_.num_warmup > 0) warm_up();
    if (result_.interrupted) return std::move(result_);
    result_.records.resize(static_cast<size_t>(options_.num_requests));
    start_ = std::chrono::steady_clock::now();
    if (options_.request_rate > 0) {
      spawn(open_loop());
    } else {
      closed_loop(options_.num_requests, /*first_prompt=*/0, &result_.records);
    }
    if (options_.show_progress) asio::co_spawn(io_, show_progress(), asio::detached);
    run_until_idle();
    result_.records.resize(static_cast<size_t>(started_));
    for (const RequestRecord& record : result_.records) {
      result_.duration_s = std::max(result_.duration_s, record.start_s + record.e2e_ms / 1000);
    }
    return std::move(result_);
  }

 private:
  void spawn(asio::awaitable<void> work) {
    ++active_;
    asio::co_spawn(io_, std::move(work), [this](std::exception_ptr error) {
      if (error) std::rethrow_exception(error);
      if (--active_ == 0) io_.stop();
    });
  }

  void run_until_idle() {
    io_.restart();
    if (active_ > 0) io_.run();
    idle_.clear();
  }

  void warm_up() {
    std::vector<RequestRecord> unused(static_cast<size_t>(options_.num_warmup));
    start_ = std::chrono::steady_clock::now();
    closed_loop(options_.num_warmup, /*first_prompt=*/options_.num_requests, &unused);
    run_until_idle();
    started_ = finished_ = failed_ = 0;
    events_ = 0;
    result_.max_in_flight = 0;
  }

  void closed_loop(int64_t count, int64_t first_prompt, std::vector<RequestRecord>* records) {
    const int64_t workers = std::min(options_.concurrency, count);
    for (int64_t i = 0; i < workers; ++i) spawn(worker(count, first_prompt, records));
  }

  asio::awaitable<void> worker(int64_t count, int64_t first_prompt, std::vector<RequestRecord>* records) {
    HttpConnection connection(io_.get_executor(), target_);
    while (started_ < count && !result_.interrupted) {
      const int64_t index = started_++;
      co_await one_request(connection, first_prompt + index, (*records)[static_cast<size_t>(index)]);
    }
  }

  asio::awaitable<void> open_loop() {
    PoissonArrivals arrivals(options_.request_rate, options_.seed);
    asio::steady_timer timer(io_);
    for (int64_t index = 0; index < options_.num_requests && !result_.interrupted; ++index) {
      const std::chrono::duration<double> due(arrivals.next_s());
      timer.expires_at(start_ + std::chrono::duration_cast<std::chrono::nanoseconds>(due));
      sleeping_ = &timer;
      co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
      sleeping_ = nullptr;
      if (result_.interrupted) break;
      ++started_;
      spawn(arrival(index));
    }
  }

  asio::awaitable<void> arrival(int64_t index) {
    std::unique_ptr<HttpConnection> connection;
    if (idle_.empty()) {
      connection = std::make_unique<HttpConnection>(io_.get_executor(), target_);
    } else {
      connection = std::move(idle_.back());
      idle_.pop_back();
    }
    co_await one_request(*connection, index, result_.records[static_cast<size_t>(index)]);
    idle_.push_back(std::move(connection));
  }

  HttpRequest make_request(const Prompt& prompt) const {
    nlohmann::json body = {{"model", options_.model},
                           {"max_tokens", options_.output_len},
                           {"temperature", options_.temperature},
                           {"stream", true},
                           {"stream_options", {{"include_usage", true}}}};
    if (options_.ignore_eos) body["ignore_eos"] = true;
    body[options_.chat ? "messages" : "prompt"] = prompt.content;
    return HttpRequest{"POST", options_.chat ? "/v1/chat/completions" : "/v1/completions",
                       body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
  }

  asio::awaitable<void> one_request(HttpConnection& connection, int64_t prompt_index, RequestRecord& record) {
    const Prompt prompt = prompts_.prompt(prompt_index);
    const HttpRequest request = make_request(prompt);
    record.expected_prompt_tokens = prompt.num_tokens;
    AnswerState answer{&record, std::chrono::steady_clock::now()};
    record.start_s = ms_between(start_, answer.start) / 1000;
    running_.insert(&connection);
    result_.max_in_flight = std::max(result_.max_in_flight, static_cast<int64_t>(running_.size()));
    const client::BodySink sink = [&](std::string_view bytes) {
      const int64_t before = record.num_events;
      const bool go_on = answer.take(bytes);
      events_ += record.num_events - before;
      return go_on;
    };
    const Result<HttpResponse> response = co_await connection.exchange(request, options_.timeout, sink);
    running_.erase(&connection);
    record.e2e_ms = ms_between(answer.start, std::chrono::steady_clock::now());
    finish(answer, response);
  }

  void finish(AnswerState& answer, const Result<HttpResponse>& response) {
    RequestRecord& record = *answer.record;
    if (record.error_label.empty()) {
      if (!response.ok()) {
        answer.fail(response.error().field, response.error().message);
      } else if (response->status / 100 != 2) {
        const Error error = client::http_error(*response);
        answer.fail(error.field, error.message);
      } else if (!answer.done) {
        answer.fail("cut off", "the stream ended without [DONE]");
      }
    }
    const int64_t tokens = record.output_tokens >= 0 ? record.output_tokens : record.num_events;
    if (tokens > 1 && record.num_events > 1) {
      record.tpot_ms = ms_between(answer.first_token, answer.last_token) / static_cast<double>(tokens - 1);
    }
    ++finished_;
    if (!record.error_label.empty()) ++failed_;
  }

  void interrupt() {
    result_.interrupted = true;
    if (sleeping_) sleeping_->cancel();
    for (HttpConnection* connection : running_) connection->cancel();
  }

  asio::awaitable<void> show_progress() {
    Progress progress(options_.num_requests);
    while (active_ > 0) {
      progress.show(finished_, static_cast<int64_t>(running_.size()), failed_, events_,
                    ms_between(start_, std::chrono::steady_clock::now()) / 1000);
      progress_timer_.expires_after(std::chrono::milliseconds(200));
      co_await progress_timer_.async_wait(asio::as_tuple(asio::use_awaitable));
    }
  }

  std::shared_ptr<const client::HttpTarget> target_;
  const PromptSource& prompts_;
  const RunOptions& options_;
  asio::io_context io_{1};
  asio::signal_set signals_;
  asio::steady_timer progress_timer_;
  asio::steady_timer* sleeping_ = nullptr;             // of the open loop
  std::vector<std::unique_ptr<HttpConnection>> idle_;  // open loop: kept connections
  std::set<HttpConnection*> running_;
  SteadyTime start_;
  int64_t active_ = 0;  // spawned coroutines that have not ended
  int64_t started_ = 0, finished_ = 0, failed_ = 0, events_ = 0;
  RunResult result_;
};

}  // namespace

RunResult run_requests(std::shared_ptr<const client::HttpTarget> target, const PromptSource& prompts,
                       const RunOptions& options) {
  return Runner(std::move(target), prompts, options).run();
}

}  // namespace vayu::bench
