#include "apps/client/http_client.h"

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http.hpp>
#include <optional>

namespace vayu::client {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr auto use_tuple = asio::as_tuple(asio::use_awaitable);
constexpr size_t kMaxBody = 64u << 20;

Error labelled(const char* label, const error_code& code, std::string_view what) {
  if (code == beast::error::timeout) label = "timeout";
  if (code == asio::error::operation_aborted) label = "cancelled";
  const ErrorKind kind = code == asio::error::operation_aborted ? ErrorKind::kCancelled : ErrorKind::kIo;
  return Error{kind, fmt::format("{}: {}", what, code.message()), label};
}

Error read_error(const error_code& code, bool answered) {
  if (code == http::error::end_of_stream || code == http::error::partial_message || code == asio::error::eof ||
      code == asio::error::connection_reset || code == asio::error::broken_pipe) {
    return Error{ErrorKind::kIo,
                 answered ? "the server closed the connection in mid-answer" : "the server closed the connection",
                 "closed"};
  }
  return labelled("protocol", code, "read");
}

}  // namespace

Result<Url> parse_url(std::string_view text) {
  const std::string whole(text);
  const auto bad = [&] { return field_error("url", "not an http URL: '{}'", whole); };
  if (const size_t scheme = text.find("://"); scheme != std::string_view::npos) {
    if (text.substr(0, scheme) == "https") {
      return Error{ErrorKind::kUnsupported, "https is not supported, use http", "url"};
    }
    if (text.substr(0, scheme) != "http") return bad();
    text.remove_prefix(scheme + 3);
  }
  Url url;
  const size_t slash = text.find('/');
  std::string_view authority = text.substr(0, slash);
  if (slash != std::string_view::npos) url.path = text.substr(slash);
  while (url.path.ends_with('/')) url.path.pop_back();
  const size_t host_end = authority.starts_with('[') ? authority.find(']') : authority.find(':');
  if (authority.starts_with('[')) {
    if (host_end == std::string_view::npos) return bad();
    url.host = authority.substr(1, host_end - 1);
    authority.remove_prefix(host_end + 1);
  } else {
    url.host = authority.substr(0, host_end);
    authority.remove_prefix(host_end == std::string_view::npos ? authority.size() : host_end);
  }
  if (!authority.empty()) {
    if (authority[0] != ':') return bad();
    url.port = authority.substr(1);
    if (url.port.empty() || url.port.size() > 5 || url.port.find_first_not_of("0123456789") != std::string::npos ||
        std::stoi(url.port) > 65535) {
      return bad();
    }
  }
  // Control characters and spaces would change the request line.
  for (const char c : url.host + url.path) {
    if (static_cast<unsigned char>(c) <= ' ' || c == '@') return bad();
  }
  if (url.host.empty()) return bad();
  return url;
}

Result<HttpTarget> resolve(const Url& url, std::string api_key) {
  if (api_key.find_first_of("\r\n") != std::string::npos) return field_error("api-key", "the key holds a line break");
  asio::io_context io;
  asio::ip::tcp::resolver resolver(io);
  error_code code;
  const auto results = resolver.resolve(url.host, url.port, code);
  if (code) return labelled("connect", code, "look-up of " + url.host);
  HttpTarget target{url, std::move(api_key), {}};
  for (const auto& entry : results) target.endpoints.push_back(entry.endpoint());
  return target;
}

struct HttpConnection::Attempt {
  std::optional<Error> error;
  bool answered = false;  // at least the header came
  HttpResponse response;
};

HttpConnection::HttpConnection(asio::any_io_executor executor, std::shared_ptr<const HttpTarget> target)
    : target_(std::move(target)), stream_(std::move(executor)) {}

void HttpConnection::close() {
  error_code ignored;
  stream_.socket().close(ignored);
  buffer_.clear();
  open_ = false;
}

void HttpConnection::cancel() {
  cancelled_ = true;
  stream_.cancel();
}

asio::awaitable<Status> HttpConnection::connect() {
  buffer_.clear();
  const auto [code, endpoint] = co_await stream_.async_connect(target_->endpoints, use_tuple);
  if (code) co_return labelled("connect", code, fmt::format("connect to {}:{}", target_->url.host, target_->url.port));
  error_code ignored;
  stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
  open_ = true;
  co_return Status();
}

asio::awaitable<HttpConnection::Attempt> HttpConnection::attempt(const HttpRequest& request, const BodySink& sink) {
  Attempt result;
  http::request<http::string_body> message(http::string_to_verb(request.method), target_->url.path + request.path, 11);
  const Url& url = target_->url;
  const bool ipv6 = url.host.find(':') != std::string::npos;
  message.set(http::field::host, (ipv6 ? "[" + url.host + "]" : url.host) + ":" + url.port);
  message.set(http::field::user_agent, "vayu");
  if (!target_->api_key.empty()) message.set(http::field::authorization, "Bearer " + target_->api_key);
  if (!request.body.empty()) message.set(http::field::content_type, "application/json");
  message.body() = request.body;
  message.prepare_payload();

  const auto [write_code, written] = co_await http::async_write(stream_, message, use_tuple);
  if (write_code) {
    result.error = labelled("closed", write_code, "send");
    co_return result;
  }
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);  // a stream has no natural end; whole bodies are limited below
  parser.eager(true);
  const auto [header_code, header_bytes] = co_await http::async_read_header(stream_, buffer_, parser, use_tuple);
  if (header_code) {
    result.error = read_error(header_code, /*answered=*/false);
    co_return result;
  }
  result.answered = true;
  result.response.status = parser.get().result_int();
  const bool to_sink = sink && result.response.status / 100 == 2;
  std::array<char, 16384> piece;
  while (!parser.is_done()) {
    auto& body = parser.get().body();
    body.data = piece.data();
    body.size = piece.size();
    const auto [code, bytes] = co_await http::async_read_some(stream_, buffer_, parser, use_tuple);
    const std::string_view got(piece.data(), piece.size() - parser.get().body().size);
    if (to_sink && !got.empty() && !sink(got)) {
      close();
      co_return result;
    }
    if (!to_sink) result.response.body.append(got);
    if (code && code != http::error::need_buffer) {
      result.error = read_error(code, /*answered=*/true);
      co_return result;
    }
    if (result.response.body.size() > kMaxBody) {
      result.error = Error{ErrorKind::kTooLarge, "the answer is larger than 64 MiB", "too large"};
      co_return result;
    }
  }
  if (!parser.keep_alive()) close();
  co_return result;
}

asio::awaitable<Result<HttpResponse>> HttpConnection::exchange(const HttpRequest& request,
                                                               std::chrono::milliseconds timeout,
                                                               const BodySink& sink) {
  cancelled_ = false;
  stream_.expires_after(timeout);
  for (;;) {
    const bool reused = open_;
    if (!open_) {
      Status connected = co_await connect();
      if (!connected.ok()) {
        close();
        co_return connected.error();
      }
    }
    Attempt outcome = co_await attempt(request, sink);
    if (!outcome.error) {
      stream_.expires_never();
      co_return std::move(outcome.response);
    }
    close();
    if (cancelled_) co_return Error{ErrorKind::kCancelled, "cancelled", "cancelled"};
    if (!(reused && !outcome.answered && outcome.error->field == "closed")) co_return std::move(*outcome.error);
  }
}

BlockingClient::BlockingClient(std::shared_ptr<const HttpTarget> target)
    : connection_(io_.get_executor(), std::move(target)) {}

Result<HttpResponse> BlockingClient::fetch(const HttpRequest& request, std::chrono::milliseconds timeout) {
  std::optional<Result<HttpResponse>> result;
  const auto work = [&]() -> asio::awaitable<void> {
    result.emplace(co_await connection_.exchange(request, timeout, nullptr));
  };
  asio::co_spawn(io_, work(), asio::detached);
  io_.restart();
  io_.run();
  return std::move(*result);
}

}  // namespace vayu::client
