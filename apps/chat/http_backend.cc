#include "apps/chat/http_backend.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "apps/chat/stats_text.h"
#include "apps/client/http_client.h"
#include "apps/client/openai_api.h"
#include "apps/client/sse_parser.h"

namespace vayu::chat {

namespace asio = boost::asio;
using client::HttpRequest;
using client::HttpResponse;
using Seconds = std::chrono::duration<double>;

namespace {

constexpr std::chrono::milliseconds kStopPoll(50);
constexpr std::chrono::hours kTimeout(24);  // the user is the one who decides

class HttpBackend : public ChatBackend {
 public:
  HttpBackend(std::shared_ptr<const client::HttpTarget> target, std::string model)
      : target_(std::move(target)), model_(std::move(model)), connection_(io_.get_executor(), target_) {}

  const std::string& model_name() const override { return model_; }

  Result<AnswerStats> answer(const std::vector<ChatMessage>& messages, const ChatSettings& settings,
                             const TextSink& text, const StopQuery& stop) override {
    Answer answer{text};
    const HttpRequest request = make_request(messages, settings);
    std::optional<Result<HttpResponse>> response;
    asio::steady_timer timer(io_);
    asio::co_spawn(io_, exchange(request, answer, response, timer), asio::detached);
    asio::co_spawn(io_, watch(stop, response, timer), asio::detached);
    io_.restart();
    io_.run();

    if (answer.error) return std::move(*answer.error);
    if (!response->ok()) {
      if (response->error().kind != ErrorKind::kCancelled) return response->error();
      answer.stats.finish_reason = "cancelled";
      answer.stats.output_tokens = answer.events;  // usage comes last, so a cut answer has none
      return answer.stats;
    }
    if ((*response)->status / 100 != 2) return client::http_error(**response);
    if (!answer.done)
      return make_error(ErrorKind::kIo, "the server ended the connection before the answer was complete");
    return answer.stats;
  }

  Result<std::string> stats() override {
    client::BlockingClient server(target_);
    VAYU_ASSIGN_OR_RETURN(const HttpResponse response, server.fetch({"GET", "/stats", ""}));
    if (response.status != 200) return client::http_error(response);
    return format_server_stats(response.body);
  }

 private:
  struct Answer {
    const TextSink& text;
    AnswerStats stats;
    client::SseParser parser;
    std::optional<Error> error;
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now(), first, last;
    int64_t events = 0;
    bool done = false;

    void take_event(std::string_view data) {
      auto event = client::parse_stream_event(data);
      if (!event.ok() || event->error) {
        error = event.ok() ? *event->error : event.error();
        return;
      }
      if (event->has_token) {
        last = std::chrono::steady_clock::now();
        if (events++ == 0) first = last;
        stats.ttft_s = Seconds(first - start).count();
        stats.decode_s = Seconds(last - first).count();
      }
      if (!event->reasoning.empty()) text(TextKind::kThinking, event->reasoning);
      if (!event->text.empty()) text(TextKind::kAnswer, event->text);
      if (!event->finish_reason.empty()) stats.finish_reason = event->finish_reason;
      if (event->usage) {
        stats.prompt_tokens = event->usage->prompt_tokens;
        stats.cached_tokens = event->usage->cached_tokens;
        stats.output_tokens = event->usage->completion_tokens;
      }
      done = event->done;
    }
  };

  HttpRequest make_request(const std::vector<ChatMessage>& messages, const ChatSettings& settings) const {
    nlohmann::json list = nlohmann::json::array();
    for (const ChatMessage& m : messages) list.push_back({{"role", m.role}, {"content", m.content}});
    nlohmann::json body = {{"model", model_},
                           {"messages", std::move(list)},
                           {"temperature", settings.temperature},
                           {"top_p", settings.top_p},
                           {"max_tokens", settings.max_tokens},
                           {"stream", true},
                           {"stream_options", {{"include_usage", true}}}};
    if (settings.seed) body["seed"] = *settings.seed;
    return {"POST", "/v1/chat/completions", body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
  }

  asio::awaitable<void> exchange(const HttpRequest& request, Answer& answer,
                                 std::optional<Result<HttpResponse>>& response, asio::steady_timer& timer) {
    const client::BodySink sink = [&](std::string_view bytes) {
      const bool fits = answer.parser.push(bytes, [&](std::string_view data) {
        if (!answer.done && !answer.error) answer.take_event(data);
      });
      if (!fits) answer.error = make_error(ErrorKind::kCorrupt, "the server sent an endless event");
      return !answer.error;
    };
    response.emplace(co_await connection_.exchange(request, kTimeout, sink));
    timer.cancel();
  }

  asio::awaitable<void> watch(const StopQuery& stop, const std::optional<Result<HttpResponse>>& response,
                              asio::steady_timer& timer) {
    while (!response) {
      if (stop()) {
        connection_.cancel();
        co_return;
      }
      timer.expires_after(kStopPoll);
      co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
    }
  }

  std::shared_ptr<const client::HttpTarget> target_;
  const std::string model_;
  asio::io_context io_;
  client::HttpConnection connection_;
};

}  // namespace

Result<std::unique_ptr<ChatBackend>> connect_http_backend(const std::string& url, const std::string& api_key,
                                                          const std::string& model) {
  VAYU_ASSIGN_OR_RETURN(const client::Url parsed, client::parse_url(url));
  VAYU_ASSIGN_OR_RETURN(client::HttpTarget resolved, client::resolve(parsed, api_key));
  auto target = std::make_shared<const client::HttpTarget>(std::move(resolved));
  client::BlockingClient server(target);
  VAYU_ASSIGN_OR_RETURN(const std::string first, client::first_model(server));
  return std::unique_ptr<ChatBackend>(std::make_unique<HttpBackend>(std::move(target), model.empty() ? first : model));
}

}  // namespace vayu::chat
