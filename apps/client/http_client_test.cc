#include "apps/client/http_client.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <optional>
#include <thread>

namespace vayu::client {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using namespace std::chrono_literals;

// One step of a server that plays a script: reads one request, sends the pieces, then keeps, closes or holds the line.
struct Step {
  std::vector<std::string> pieces;
  enum Then { kKeep, kClose, kHold } then = kKeep;
};

class ScriptServer {
 public:
  explicit ScriptServer(std::vector<Step> script)
      : acceptor_(io_, tcp::endpoint(asio::ip::make_address("127.0.0.1"), 0)),
        port_(acceptor_.local_endpoint().port()),
        thread_([this, script = std::move(script)] { play(script); }) {}
  ~ScriptServer() { thread_.join(); }

  std::shared_ptr<const HttpTarget> target() const {
    return std::make_shared<HttpTarget>(*resolve(*parse_url(fmt::format("http://127.0.0.1:{}/api", port_)), "secret"));
  }
  std::vector<std::string> requests;
  int connections = 0;

 private:
  void play(const std::vector<Step>& script) {
    tcp::socket socket(io_);
    boost::system::error_code code;
    for (const Step& step : script) {
      if (!socket.is_open()) {
        acceptor_.accept(socket);
        ++connections;
      }
      std::string request;
      const size_t size = asio::read_until(socket, asio::dynamic_buffer(request), "\r\n\r\n", code);
      if (step.pieces.empty() || !code) requests.push_back(request.substr(0, size));
      for (const std::string& piece : step.pieces) asio::write(socket, asio::buffer(piece), code);
      if (step.then == Step::kHold) asio::read_until(socket, asio::dynamic_buffer(request), "never", code);
      if (step.then != Step::kKeep) socket.close(code);
    }
  }

  asio::io_context io_;
  tcp::acceptor acceptor_;
  const uint16_t port_;
  std::thread thread_;
};

constexpr const char* kOk = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

Result<HttpResponse> stream_once(const std::shared_ptr<const HttpTarget>& target, const BodySink& sink,
                                 std::chrono::milliseconds timeout,
                                 const std::function<void(HttpConnection&)>& poke = {}) {
  asio::io_context io;
  HttpConnection connection(io.get_executor(), target);
  std::optional<Result<HttpResponse>> result;
  const HttpRequest request{"GET", "/x", ""};
  const auto work = [&]() -> asio::awaitable<void> {
    result.emplace(co_await connection.exchange(request, timeout, sink));
  };
  asio::co_spawn(io, work(), asio::detached);
  if (poke) {
    io.run_for(100ms);
    poke(connection);
  }
  io.run();
  return std::move(*result);
}

TEST(HttpClient, KeepsTheConnectionAndSendsKeyHostAndBody) {
  ScriptServer server({{{kOk}}, {{"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\nno such thing"}, Step::kClose}});
  BlockingClient client(server.target());
  const auto first = client.fetch({"POST", "/a", "{}"});
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->status, 200);
  EXPECT_EQ(first->body, "ok");
  const auto second = client.fetch({"GET", "/b", ""});
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->status, 404);
  EXPECT_EQ(second->body, "no such thing");
  EXPECT_EQ(server.connections, 1);
  EXPECT_TRUE(server.requests[0].starts_with("POST /api/a HTTP/1.1\r\n"));
  EXPECT_NE(server.requests[0].find("Authorization: Bearer secret\r\n"), std::string::npos);
  EXPECT_NE(server.requests[0].find("Host: 127.0.0.1:"), std::string::npos);
}

TEST(HttpClient, AKeptConnectionThatDiedIsOpenedAgain) {
  ScriptServer server({{{kOk}}, {{}, Step::kClose}, {{kOk}}});
  BlockingClient client(server.target());
  ASSERT_TRUE(client.fetch({"GET", "/a", ""}).ok());
  const auto again = client.fetch({"GET", "/b", ""});  // the server reads it and hangs up without a word
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(again->body, "ok");
  EXPECT_EQ(server.connections, 2);
}

TEST(HttpClient, PiecesOfAChunkedStreamArriveWhole) {
  ScriptServer server(
      {{{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", "lo\r\n", "1", "\r\n!\r\n0\r\n\r\n"}}});
  std::string got;
  const auto response = stream_once(
      server.target(),
      [&](std::string_view piece) {
        got += piece;
        return true;
      },
      5s);
  ASSERT_TRUE(response.ok()) << response.error().message;
  EXPECT_EQ(got, "hello!");
  EXPECT_EQ(response->body, "");
}

TEST(HttpClient, AnErrorAnswerDoesNotReachTheSink) {
  ScriptServer server({{{"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nfull"}}});
  bool called = false;
  const auto response = stream_once(
      server.target(), [&](std::string_view) { return called = true; }, 5s);
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->body, "full");
  EXPECT_FALSE(called);
}

TEST(HttpClient, FailuresHaveLabels) {
  const auto label = [](std::vector<Step> script, std::chrono::milliseconds timeout,
                        const std::function<void(HttpConnection&)>& poke = {}) {
    ScriptServer server(std::move(script));
    const auto result = stream_once(
        server.target(), [](std::string_view) { return true; }, timeout, poke);
    return result.ok() ? "ok" : result.error().field;
  };
  const std::string half = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf";
  EXPECT_EQ(label({{{}, Step::kClose}}, 5s), "closed");
  EXPECT_EQ(label({{{half}, Step::kClose}}, 5s), "closed");
  EXPECT_EQ(label({{{"SSH-2.0-hello\r\n\r\n"}, Step::kClose}}, 5s), "protocol");
  EXPECT_EQ(label({{{half}, Step::kHold}}, 100ms), "timeout");
  EXPECT_EQ(label({{{half}, Step::kHold}}, 5s, [](HttpConnection& c) { c.cancel(); }), "cancelled");
  const auto refused = std::make_shared<HttpTarget>(*resolve(*parse_url("127.0.0.1:1"), ""));
  EXPECT_EQ(BlockingClient(refused).fetch({"GET", "/", ""}).error().field, "connect");
  EXPECT_FALSE(resolve(*parse_url("127.0.0.1:1"), "key\r\nX: y").ok());
}

}  // namespace
}  // namespace vayu::client
