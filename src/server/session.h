// One HTTP/1.1 connection: a coroutine on its own strand that reads requests, hands them to the Api and writes what
// comes back. While an answer is being made it goes on reading, so a client that hangs up is noticed at once.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>

#include "server/api.h"

namespace vayu::server {

class Session;

constexpr size_t kHeavyBodyBytes = 128 * 1024;

// Engine threads wake connections through this; closed before the I/O context goes, which must not be posted to then.
struct WakeGate {
  std::mutex mutex;
  bool open = true;
};

// What every connection shares.
struct SessionContext {
  Api& api;
  boost::asio::thread_pool& workers;  // ordinary requests
  boost::asio::thread_pool& heavy;    // bodies over kHeavyBodyBytes: they must not delay short requests
  std::shared_ptr<WakeGate> wake_gate = std::make_shared<WakeGate>();

  std::mutex mutex;                    // guards sessions
  std::set<Session*> sessions;         // open connections
  std::atomic<int> active = 0;         // requests between their first byte and their last
  std::atomic<size_t> body_bytes = 0;  // of bodies being read or worked on
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
  using Socket = boost::asio::basic_stream_socket<boost::asio::ip::tcp, Strand>;

  Session(Socket socket, SessionContext& context);
  ~Session();

  void start();
  void start_refusing();  // over the connection limit: says so and closes
  // From any thread: closes as soon as no request is running.
  void drain();

 private:
  template <class T>
  using Awaitable = boost::asio::awaitable<T, Strand>;
  using Timer = boost::asio::basic_waitable_timer<std::chrono::steady_clock,
                                                  boost::asio::wait_traits<std::chrono::steady_clock>, Strand>;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using ErrorCode = boost::system::error_code;

  Awaitable<void> run();
  Awaitable<bool> wait_for_request();
  Awaitable<void> serve_one();
  Awaitable<bool> read_header(Parser& parser);
  Awaitable<bool> read_body(Parser& parser);
  std::optional<HttpResponse> check_request(const Parser& parser);
  HttpRequest make_request(Parser& parser) const;
  Awaitable<void> dispatch(HttpRequest request);
  Awaitable<void> serve_generation(HttpRequest request);
  Awaitable<void> write_stream(Generation& generation);
  Awaitable<void> serve_profile(HttpRequest request);
  Awaitable<HttpResponse> profile_response(ProfileRun& run);
  Awaitable<void> write_response(HttpResponse response);
  Awaitable<void> refuse(HttpResponse response);  // answers and closes, with unread bytes on the way
  Awaitable<bool> write(std::string bytes);
  Awaitable<void> linger();
  std::string stream_header() const;
  bool reserve_body(const Parser& parser);
  void release_body();
  template <class Work>
  Awaitable<std::invoke_result_t<Work>> on_worker(size_t body_bytes, Work work);

  // Hang-up watch, from the end of a request to the end of its answer.
  void start_watch();
  void read_ahead();
  Awaitable<void> stop_watch();

  // News: any thread posts wake() to the strand; the coroutine waits for it.
  std::function<void()> waker();
  void wake();
  Awaitable<bool> wait_for_news(std::chrono::milliseconds timeout);  // false: timed out

  void arm(int timeout_ms);
  void disarm();
  void log_access(const Generation* generation) const;
  void close();

  Socket socket_;
  SessionContext& context_;
  const ServerConfig& config_;
  boost::beast::flat_buffer buffer_;
  Timer deadline_;
  Timer news_timer_;
  bool news_ = false;
  bool timed_out_ = false;

  boost::asio::cancellation_signal watch_cancel_;
  bool watching_ = false;           // wanted
  bool read_running_ = false;       // a read-ahead is in progress
  std::atomic<bool> gone_ = false;  // read by workers

  // The request being served.
  const Route* route_ = nullptr;
  std::string method_;
  std::string request_id_;
  std::string tenant_;
  std::string path_;
  int64_t arrival_us_ = 0;
  size_t reserved_bytes_ = 0;  // of SessionContext::body_bytes
  bool keep_alive_ = false;
  bool http_1_0_ = false;
  int status_ = 0;
  Generation* generation_ = nullptr;  // while its events are written
  bool idle_ = false;
  bool draining_ = false;
};

}  // namespace vayu::server
