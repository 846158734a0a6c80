// What a connection does between a request and its answer: work on other threads, the stream, the watch for a hang-up.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/log.h"
#include "server/limits.h"
#include "server/session.h"

namespace vayu::server {

namespace asio = boost::asio;
using std::chrono::milliseconds;

constexpr milliseconds kProfilePoll(200);
constexpr milliseconds kLastStep(10'000);  // for the steps under way when a recording ends early

template <class Work>
Session::Awaitable<std::invoke_result_t<Work>> Session::on_worker(size_t body_bytes, Work work) {
  using Value = std::invoke_result_t<Work>;
  asio::thread_pool& pool = body_bytes > kHeavyBodyBytes ? context_.heavy : context_.workers;
  // The result travels through a slot of this frame, which outlives the job because it waits for it.
  std::optional<Value> value;
  co_await asio::co_spawn(
      pool,
      [&]() -> asio::awaitable<void, asio::thread_pool::executor_type> {
        value.emplace(work());
        co_return;
      },
      asio::use_awaitable_t<Strand>());
  co_return std::move(*value);
}

Session::Awaitable<void> Session::dispatch(HttpRequest request) {
  if (Api::generates(*route_)) co_return co_await serve_generation(std::move(request));
  if (route_->id == RouteId::kProfile) co_return co_await serve_profile(std::move(request));
  if (!Api::is_heavy(*route_)) co_return co_await write_response(context_.api.answer(*route_, request));
  const size_t bytes = request.body.size();
  // A named lambda: GCC 12 destroys the captures of one written inside co_await's operand twice.
  auto answer = [this, &request] { return context_.api.answer(*route_, request); };
  HttpResponse response = co_await on_worker(bytes, answer);
  co_await write_response(std::move(response));
}

Session::Awaitable<void> Session::serve_generation(HttpRequest request) {
  start_watch();
  auto outcome = co_await on_worker(
      request.body.size(), [this, &request] { return context_.api.generate(*route_, request, gone_, waker()); });
  std::string().swap(request.body);
  if (auto* failure = std::get_if<Api::Failure>(&outcome)) {
    co_await stop_watch();
    if (!gone_) co_await write_response(error_response(failure->error, failure->code));
    spdlog::info("request {}: {} {}", request_id_, route_->path, gone_ ? 0 : status_);
    co_return;
  }
  auto& generation = std::get<std::unique_ptr<Generation>>(outcome);
  if (generation->stream()) {
    co_await write_stream(*generation);
  } else {
    while (!generation->done() && !gone_) {
      co_await wait_for_news(milliseconds(0));
      generation->pump();
    }
  }
  if (gone_) generation->abandon("disconnect");
  co_await stop_watch();
  if (!generation->stream() && !gone_) {
    if (generation->error()) {
      co_await write_response(error_response(*generation->error()));
    } else {
      HttpResponse response;
      response.body = co_await on_worker(0, [&] { return generation->body(); });
      co_await write_response(std::move(response));
    }
  }
  log_access(generation.get());
}

// The 200 waits for the first event, so that a request that fails before its first token gets a plain HTTP error.
Session::Awaitable<void> Session::write_stream(Generation& generation) {
  bool header_sent = false;
  status_ = 200;
  if (http_1_0_) keep_alive_ = false;  // the end of the connection is the end of the stream
  const milliseconds ping(config_.sse_ping_interval_ms);
  while (!gone_) {
    const bool news = co_await wait_for_news(ping);
    generation.pump();
    std::string events = generation.take_events();
    if (!news && events.empty()) events = ":\n\n";
    if (!header_sent && generation.error() && !generation.has_output()) {
      co_return co_await write_response(error_response(*generation.error()));
    }
    bool written = true;
    if (!events.empty()) {
      std::string bytes = std::exchange(header_sent, true) ? std::string() : stream_header();
      bytes += http_1_0_ ? events : fmt::format("{:x}\r\n{}\r\n", events.size(), events);
      if (!http_1_0_ && generation.done()) bytes += "0\r\n\r\n";
      generation_ = &generation;
      written = co_await write(std::move(bytes));
      generation_ = nullptr;
    }
    if (generation.overflow() || timed_out_) {
      generation.abandon(timed_out_ ? "write_timeout" : "slow_reader");
      spdlog::warn("request {}: the client reads too slowly; cancelled", request_id_);
      close();
      break;
    }
    if (!written) break;
    if (generation.done()) {
      context_.api.metrics().on_http_response(route_->path, status_);
      co_return;
    }
  }
  keep_alive_ = false;
  gone_ = true;
}

// Clients may wait for the steps of others for minutes, so theirs is watched as that of a generation.
Session::Awaitable<void> Session::serve_profile(HttpRequest request) {
  start_watch();
  auto start = [this, &request] { return context_.api.start_profile(request, waker()); };
  auto started = co_await on_worker(request.body.size(), start);
  HttpResponse response;
  if (auto* refusal = std::get_if<HttpResponse>(&started)) {
    response = std::move(*refusal);
  } else {
    response = co_await profile_response(*std::get<std::unique_ptr<ProfileRun>>(started));
  }
  co_await stop_watch();
  if (!gone_) co_await write_response(std::move(response));
  spdlog::info("request {}: {} {}", request_id_, route_->path, gone_ ? 0 : status_);
}

// Until the steps have run, time is up, nobody listens any more or the server shuts down.
Session::Awaitable<HttpResponse> Session::profile_response(ProfileRun& run) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + run.timeout();
  while (!run.done() && !gone_ && !context_.api.draining() && Clock::now() < until) {
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
    co_await wait_for_news(std::clamp(left, milliseconds(1), kProfilePoll));
  }
  auto end = [&run, shutting_down = context_.api.draining()] {
    run.end(shutting_down);
    return true;
  };
  co_await on_worker(0, end);  // it fetches records
  const auto last = Clock::now() + kLastStep;
  while (!run.done() && !gone_ && Clock::now() < last) co_await wait_for_news(kProfilePoll);
  if (gone_) co_return HttpResponse{};  // nobody reads it
  auto respond = [&run] { return run.response(); };
  co_return co_await on_worker(0, respond);
}

std::string Session::stream_header() const {
  return fmt::format(
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
      "X-Accel-Buffering: no\r\nX-Request-Id: {}\r\n{}\r\n",
      request_id_, http_1_0_ ? "Connection: close\r\n" : "Transfer-Encoding: chunked\r\n");
}

void Session::start_watch() {
  gone_ = false;
  watching_ = true;
  news_ = false;
  read_ahead();
}

void Session::read_ahead() {
  if (buffer_.size() >= kMaxPipelinedBytes) return;
  read_running_ = true;
  socket_.async_read_some(
      buffer_.prepare(std::min<size_t>(1024, buffer_.max_size() - buffer_.size())),
      asio::bind_cancellation_slot(watch_cancel_.slot(), [self = shared_from_this()](ErrorCode ec, size_t size) {
        self->read_running_ = false;
        self->buffer_.commit(size);
        if (ec && self->watching_) self->gone_ = true;
        if (!ec && self->watching_) return self->read_ahead();
        self->wake();
      }));
}

Session::Awaitable<void> Session::stop_watch() {
  watching_ = false;
  watch_cancel_.emit(asio::cancellation_type::all);
  while (read_running_) co_await wait_for_news(milliseconds(0));
}

std::function<void()> Session::waker() {
  return [weak = weak_from_this(), executor = socket_.get_executor(), gate = context_.wake_gate] {
    std::lock_guard lock(gate->mutex);
    if (!gate->open) return;
    asio::post(executor, [weak] {
      if (const auto self = weak.lock()) self->wake();
    });
  };
}

void Session::wake() {
  news_ = true;
  news_timer_.cancel();
  // The coroutine may be inside a write that the client does not take.
  if (generation_ != nullptr && (generation_->overflow() || gone_)) close();
}

Session::Awaitable<bool> Session::wait_for_news(milliseconds timeout) {
  if (!news_) {
    if (timeout.count() > 0) {
      news_timer_.expires_after(timeout);
    } else {
      news_timer_.expires_at(Timer::time_point::max());
    }
    ErrorCode ec;
    co_await news_timer_.async_wait(asio::redirect_error(asio::use_awaitable_t<Strand>(), ec));
  }
  co_return std::exchange(news_, false);
}

void Session::log_access(const Generation* generation) const {
  const Usage usage = generation->usage();
  const double ttft_ms = generation->ttft_us() < 0 ? -1.0 : static_cast<double>(generation->ttft_us()) / 1000.0;
  const double e2e_ms = static_cast<double>(context_.api.clock().now_us() - arrival_us_) / 1000.0;
  spdlog::info(
      "request {}: {} {} prompt_tokens={} cached_tokens={} completion_tokens={} ttft_ms={:.1f} e2e_ms={:.1f} "
      "finish={}",
      request_id_, route_->path, status_, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, ttft_ms,
      e2e_ms, generation->finish_summary());
}

}  // namespace vayu::server
