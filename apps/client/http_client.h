// HTTP/1.1 client for coroutines: one keep-alive connection, whole or streamed answers. Plain HTTP only; put a proxy in
// front for TLS.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vayu::client {

struct Url {
  std::string host;
  std::string port = "80";
  std::string path;  // in front of every target, without the last slash; normally empty
};

// "http://host:port/path"; the scheme may be left out, IPv6 addresses stand in brackets. https is kUnsupported.
Result<Url> parse_url(std::string_view text);

// A server whose name has been looked up, so that a thousand connections need one lookup. api_key may be empty.
struct HttpTarget {
  Url url;
  std::string api_key;
  std::vector<boost::asio::ip::tcp::endpoint> endpoints;
};
Result<HttpTarget> resolve(const Url& url, std::string api_key);  // blocks

struct HttpRequest {
  std::string method = "GET";
  std::string path;  // with the leading slash
  std::string body;  // JSON; sent when not empty
};

struct HttpResponse {
  int status = 0;
  std::string body;  // empty where a sink took it
};

// Takes each piece of a body as it arrives. False: enough, the connection is closed.
using BodySink = std::function<bool(std::string_view)>;

// Errors carry a short stable label in Error::field, fit for counting: "connect", "timeout", "closed", "protocol",
// "too large", "cancelled". One coroutine at a time; all on the executor's thread.
class HttpConnection {
 public:
  HttpConnection(boost::asio::any_io_executor executor, std::shared_ptr<const HttpTarget> target);

  // Connects when needed. The answer's body goes to `sink` when there is one and the status is 2xx, else to
  // HttpResponse::body (at most 64 MiB). `timeout` covers everything from connect to the last byte. A kept connection
  // that the server has closed meanwhile is opened again once, unseen.
  boost::asio::awaitable<Result<HttpResponse>> exchange(const HttpRequest& request, std::chrono::milliseconds timeout,
                                                        const BodySink& sink);
  // Ends a running exchange with "cancelled".
  void cancel();

 private:
  struct Attempt;  // what one try came to
  boost::asio::awaitable<Status> connect();
  boost::asio::awaitable<Attempt> attempt(const HttpRequest& request, const BodySink& sink);
  void close();

  std::shared_ptr<const HttpTarget> target_;
  boost::beast::tcp_stream stream_;
  boost::beast::flat_buffer buffer_;
  bool open_ = false;
  bool cancelled_ = false;
};

// The same, blocking, for set-up work.
class BlockingClient {
 public:
  explicit BlockingClient(std::shared_ptr<const HttpTarget> target);
  Result<HttpResponse> fetch(const HttpRequest& request, std::chrono::milliseconds timeout = std::chrono::seconds(30));

 private:
  boost::asio::io_context io_;
  HttpConnection connection_;
};

}  // namespace vayu::client
