#include "server/session.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <random>

#include "base/log.h"
#include "server/limits.h"

namespace vayu::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using std::chrono::milliseconds;

constexpr int kLingerMs = 2000;

std::string random_id() {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{:016x}{:016x}", random(), random());
}

// Goes into logs and response ids, so only harmless characters.
bool is_good_request_id(std::string_view id) {
  return !id.empty() && id.size() <= kMaxRequestIdBytes && std::all_of(id.begin(), id.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == ':';
  });
}

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

bool is_http_error(const boost::system::error_code& ec) {
  return ec.category() == http::make_error_code(http::error::end_of_stream).category() &&
         ec != http::error::end_of_stream && ec != http::error::partial_message;
}

bool is_json_type(std::string_view content_type) {
  const std::string_view type = content_type.substr(0, content_type.find(';'));
  return type.find("json") != std::string_view::npos;
}

// Keeps a server that drains waiting.
class ActiveRequest {
 public:
  explicit ActiveRequest(std::atomic<int>& count) : count_(count) { ++count_; }
  ActiveRequest(const ActiveRequest&) = delete;
  ActiveRequest& operator=(const ActiveRequest&) = delete;
  ~ActiveRequest() { --count_; }

 private:
  std::atomic<int>& count_;
};

}  // namespace

Session::Session(Socket socket, SessionContext& context)
    : socket_(std::move(socket)),
      context_(context),
      config_(context.api.config()),
      buffer_(kMaxHeaderBytes + kMaxPipelinedBytes),
      deadline_(socket_.get_executor()),
      news_timer_(socket_.get_executor()) {
  std::lock_guard lock(context_.mutex);
  context_.sessions.insert(this);
  context_.api.metrics().set_connections(static_cast<int64_t>(context_.sessions.size()));
}

Session::~Session() {
  release_body();
  std::lock_guard lock(context_.mutex);
  context_.sessions.erase(this);
  context_.api.metrics().set_connections(static_cast<int64_t>(context_.sessions.size()));
}

void Session::start() {
  asio::co_spawn(
      socket_.get_executor(), [self = shared_from_this()]() -> Awaitable<void> { co_await self->run(); },
      asio::detached);
}

void Session::start_refusing() {
  asio::co_spawn(
      socket_.get_executor(),
      [self = shared_from_this()]() -> Awaitable<void> {
        self->request_id_ = random_id();
        co_await self->write_response(
            error_response(make_error(ErrorKind::kUnavailable, "The server has too many open connections.")));
        self->close();
      },
      asio::detached);
}

void Session::drain() {
  asio::post(socket_.get_executor(), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->draining_ = true;
    if (self->idle_) self->close();
  });
}

void Session::close() {
  ErrorCode ignored;
  socket_.close(ignored);
}

Session::Awaitable<void> Session::run() {
  ErrorCode ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  if (config_.socket_send_buffer_bytes > 0) {
    socket_.set_option(asio::socket_base::send_buffer_size(config_.socket_send_buffer_bytes), ignored);
  }
  do {
    if (!co_await wait_for_request()) break;
    const ActiveRequest active(context_.active);
    co_await serve_one();
    release_body();
    if (buffer_.size() == 0 && buffer_.capacity() > 4096) buffer_.shrink_to_fit();
  } while (keep_alive_ && !draining_ && socket_.is_open());
  close();
}

// Waits without a buffer until bytes arrive: an idle connection costs its coroutine and little else.
Session::Awaitable<bool> Session::wait_for_request() {
  if (buffer_.size() > 0) co_return true;
  if (draining_) co_return false;
  idle_ = true;
  arm(config_.idle_timeout_ms);
  ErrorCode ec;
  co_await socket_.async_wait(Socket::wait_read, asio::redirect_error(asio::use_awaitable_t<Strand>(), ec));
  disarm();
  idle_ = false;
  co_return !ec && !timed_out_;
}

Session::Awaitable<bool> Session::read_header(Parser& parser) {
  parser.header_limit(kMaxHeaderBytes);
  parser.body_limit(boost::none);  // checked once the header is known to be acceptable
  ErrorCode ec;
  arm(config_.header_timeout_ms);
  co_await http::async_read_header(socket_, buffer_, parser, asio::redirect_error(asio::use_awaitable_t<Strand>(), ec));
  disarm();
  arrival_us_ = context_.api.clock().now_us();
  if (!ec) co_return true;
  keep_alive_ = false;
  if (timed_out_) {
    co_await refuse(status_response(408, "The request header took too long."));
  } else if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
    co_await refuse(status_response(431, fmt::format("The request header is over {} bytes.", kMaxHeaderBytes)));
  } else if (is_http_error(ec)) {
    co_await refuse(status_response(400, fmt::format("The request is not valid HTTP: {}.", ec.message())));
  }
  co_return false;
}

// What is wrong with a request, as far as its header tells. The order matters: an unknown caller learns nothing but
// 401.
std::optional<HttpResponse> Session::check_request(const Parser& parser) {
  const auto& header = parser.get();
  const auto count = std::distance(header.begin(), header.end());
  if (count > static_cast<ptrdiff_t>(kMaxHeaders)) {
    return status_response(431, fmt::format("The request has more than {} headers.", kMaxHeaders));
  }
  if (header.target().size() > kMaxTargetBytes) return status_response(414, "The request target is too long.");
  const auto path = normalise_target(view(header.target()));
  path_ = path.value_or("");
  route_ = path ? find_route(*path) : nullptr;
  if (!config_.api_keys.empty() && (route_ == nullptr || !route_->open)) {
    const auto key = find_api_key(view(header[http::field::authorization]), config_.api_keys);
    if (!key) {
      return error_response(
          make_error(ErrorKind::kUnauthorized, "A valid API key is needed: Authorization: Bearer KEY."),
          "invalid_api_key");
    }
    tenant_ = fmt::format("key{}", *key);
  }
  if (!path) return status_response(400, "The request target is malformed.");
  if (route_ == nullptr) return error_response(make_error(ErrorKind::kNotFound, "There is no route {}.", *path));
  if (method_ == "OPTIONS") {
    HttpResponse response;
    response.status = 204;
    response.headers.emplace_back("Allow", allowed_methods(*route_));
    return response;
  }
  if (method_ != route_->method && !(method_ == "HEAD" && route_->method == "GET")) {
    HttpResponse response = status_response(405, fmt::format("{} allows {}.", route_->path, allowed_methods(*route_)));
    response.headers.emplace_back("Allow", allowed_methods(*route_));
    return response;
  }
  if (route_->needs_model) {
    const Status ready = context_.api.check_ready();
    if (!ready.ok()) return error_response(ready.error());
  }
  if (route_->method == "POST" && header.count(http::field::origin) > 0 &&
      !is_json_type(view(header[http::field::content_type]))) {
    // A page of another site can send such a body without asking first.
    return status_response(415, "A browser must send Content-Type: application/json.");
  }
  if (parser.content_length() && *parser.content_length() > config_.max_body_bytes) {
    return error_response(make_error(ErrorKind::kTooLarge, "The request body has {} bytes; the limit is {}.",
                                     *parser.content_length(), config_.max_body_bytes));
  }
  return std::nullopt;
}

Session::Awaitable<void> Session::serve_one() {
  Parser parser;
  route_ = nullptr;
  tenant_.clear();
  method_ = "-";
  path_ = "-";
  http_1_0_ = false;
  request_id_ = random_id();
  if (!co_await read_header(parser)) co_return;
  const auto& header = parser.get();
  method_ = std::string(view(header.method_string()));
  keep_alive_ = parser.keep_alive();
  http_1_0_ = header.version() < 11;
  const std::string_view given_id = view(header["X-Request-Id"]);
  if (is_good_request_id(given_id)) request_id_ = given_id;

  auto refusal = check_request(parser);
  if (refusal) {
    // A small body is read away so that the connection can go on; else the connection ends.
    const bool small = parser.is_done() || (parser.content_length() && *parser.content_length() <= kMaxPipelinedBytes &&
                                            header[http::field::expect].empty());
    if (small && co_await read_body(parser)) co_return co_await write_response(std::move(*refusal));
    if (small) co_return;  // read_body has answered
    keep_alive_ = false;
    co_return co_await refuse(std::move(*refusal));
  }
  if (!reserve_body(parser)) {
    co_return co_await refuse(
        error_response(make_error(ErrorKind::kUnavailable, "The server is taking in too many large requests.")));
  }
  if (!co_await read_body(parser)) co_return;
  co_await dispatch(make_request(parser));
}

// Bounds the memory of all bodies together; one without a length counts as the largest.
bool Session::reserve_body(const Parser& parser) {
  if (parser.is_done()) return true;
  const size_t bytes = parser.content_length() ? *parser.content_length() : config_.max_body_bytes;
  reserved_bytes_ = bytes;
  return context_.body_bytes.fetch_add(bytes) + bytes <= std::max(config_.max_total_body_bytes, config_.max_body_bytes);
}

void Session::release_body() { context_.body_bytes -= std::exchange(reserved_bytes_, 0); }

Session::Awaitable<bool> Session::read_body(Parser& parser) {
  if (parser.is_done()) co_return true;
  if (boost::beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    if (!co_await write("HTTP/1.1 100 Continue\r\n\r\n")) co_return false;
  }
  parser.body_limit(config_.max_body_bytes);
  arm(config_.body_timeout_ms);
  ErrorCode ec;
  co_await http::async_read(socket_, buffer_, parser, asio::redirect_error(asio::use_awaitable_t<Strand>(), ec));
  disarm();
  if (!ec) co_return true;
  keep_alive_ = false;
  if (timed_out_) {
    co_await refuse(status_response(408, "The request body took too long."));
  } else if (ec == http::error::body_limit) {
    co_await refuse(
        error_response(make_error(ErrorKind::kTooLarge, "The request body is over {} bytes.", config_.max_body_bytes)));
  } else if (is_http_error(ec)) {
    co_await refuse(status_response(400, fmt::format("The request body is not valid HTTP: {}.", ec.message())));
  }
  co_return false;
}

HttpRequest Session::make_request(Parser& parser) const {
  HttpRequest request;
  request.method = method_;
  request.path = path_;
  request.body = std::move(parser.get().body());
  request.request_id = request_id_;
  request.tenant = tenant_;
  request.arrival_us = arrival_us_;
  return request;
}

Session::Awaitable<bool> Session::write(std::string bytes) {
  ErrorCode ec;
  arm(config_.write_timeout_ms);
  co_await asio::async_write(socket_, asio::buffer(bytes), asio::redirect_error(asio::use_awaitable_t<Strand>(), ec));
  disarm();
  if (ec) keep_alive_ = false;
  co_return !ec;
}

Session::Awaitable<void> Session::write_response(HttpResponse response) {
  status_ = response.status;
  const std::string_view route = route_ == nullptr ? "none" : route_->path;
  context_.api.metrics().on_http_response(route, response.status);
  if (draining_ || context_.api.draining()) keep_alive_ = false;
  std::string bytes = fmt::format("HTTP/1.1 {} {}\r\n", response.status, status_text(response.status));
  if (response.status != 204) {
    bytes += fmt::format("Content-Type: {}\r\nContent-Length: {}\r\n", response.content_type, response.body.size());
  }
  bytes += fmt::format("X-Request-Id: {}\r\nX-Content-Type-Options: nosniff\r\nConnection: {}\r\n", request_id_,
                       keep_alive_ ? "keep-alive" : "close");
  for (const auto& [name, value] : response.headers) bytes += fmt::format("{}: {}\r\n", name, value);
  bytes += "\r\n";
  if (method_ != "HEAD" && response.status != 204) bytes += response.body;
  co_await write(std::move(bytes));
  spdlog::debug("request {}: {} {} {}", request_id_, method_, route, response.status);
}

Session::Awaitable<void> Session::refuse(HttpResponse response) {
  keep_alive_ = false;
  co_await write_response(std::move(response));
  co_await linger();
}

// Closing with unread bytes resets the connection and may take the answer with it: reads a bounded part of them away.
Session::Awaitable<void> Session::linger() {
  ErrorCode ec;
  socket_.shutdown(Socket::shutdown_send, ec);
  buffer_.clear();
  size_t discarded = 0;
  arm(kLingerMs);
  std::array<char, 4096> scratch;
  while (!ec && discarded < kMaxDiscardedBytes) {
    discarded += co_await socket_.async_read_some(asio::buffer(scratch),
                                                  asio::redirect_error(asio::use_awaitable_t<Strand>(), ec));
  }
  disarm();
}

// Time-outs cancel what the socket is doing; the coroutine sees timed_out_.
void Session::arm(int timeout_ms) {
  timed_out_ = false;
  deadline_.expires_after(milliseconds(timeout_ms));
  deadline_.async_wait([weak = weak_from_this()](ErrorCode ec) {
    const auto self = weak.lock();
    // disarm() may come between the timer's end and this call.
    if (ec || self == nullptr || self->deadline_.expiry() > std::chrono::steady_clock::now()) return;
    self->timed_out_ = true;
    ErrorCode ignored;
    self->socket_.cancel(ignored);
  });
}

void Session::disarm() { deadline_.expires_at(Timer::time_point::max()); }

}  // namespace vayu::server
