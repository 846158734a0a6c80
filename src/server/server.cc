#include "server/server.h"

#include <sys/resource.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <thread>

#include "base/log.h"
#include "server/session.h"

namespace vayu::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using std::chrono::milliseconds;

constexpr milliseconds kAcceptPause(100);  // after running out of file descriptors
constexpr milliseconds kDrainPoll(20);
constexpr milliseconds kLastBytes(1000);  // for responses that the engine's last deltas complete

// Each connection needs a descriptor; the soft limit is often 1,024.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) spdlog::debug("the limit of open files stays as it is");
}

}  // namespace

class Server::Impl {
 public:
  Impl(ServerConfig config, const Clock& clock)
      : config_(std::move(config)),
        clock_(clock),
        api_(config_, clock),
        io_(std::make_unique<asio::io_context>()),
        workers_(std::make_unique<asio::thread_pool>(std::max(1, config_.worker_threads))),
        heavy_(std::make_unique<asio::thread_pool>(1)),
        context_{api_, *workers_, *heavy_},
        acceptor_(std::make_unique<tcp::acceptor>(*io_)) {}
  ~Impl() { stop(); }

  Result<uint16_t> start();
  void attach(ServedModel model) { api_.attach(std::move(model)); }
  void drain(int64_t deadline_us);
  void stop();

 private:
  asio::awaitable<void> accept_loop();
  size_t num_sessions() {
    std::lock_guard lock(context_.mutex);
    return context_.sessions.size();
  }

  const ServerConfig config_;
  const Clock& clock_;
  Api api_;
  // Null once stopped.
  std::unique_ptr<asio::io_context> io_;
  std::unique_ptr<asio::thread_pool> workers_;
  std::unique_ptr<asio::thread_pool> heavy_;
  SessionContext context_;
  std::unique_ptr<tcp::acceptor> acceptor_;
  std::vector<std::thread> threads_;
  std::mutex life_mutex_;  // of start, drain's first part, stop
  std::atomic<bool> stopped_ = false;
};

Result<uint16_t> Server::Impl::start() {
  const std::string address = fmt::format("{}:{}", config_.host, config_.port);
  boost::system::error_code ec;
  tcp::resolver resolver(*io_);
  const auto endpoints = resolver.resolve(config_.host, std::to_string(config_.port), tcp::resolver::passive, ec);
  if (ec || endpoints.empty()) return make_error(ErrorKind::kIo, "Cannot resolve {}: {}.", address, ec.message());
  const tcp::endpoint endpoint = endpoints.begin()->endpoint();
  acceptor_->open(endpoint.protocol(), ec);
  if (!ec) acceptor_->set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor_->bind(endpoint, ec);
  if (!ec) acceptor_->listen(asio::socket_base::max_listen_connections, ec);
  if (ec) return make_error(ErrorKind::kIo, "Cannot listen on {}: {}.", address, ec.message());
  raise_descriptor_limit();
  asio::co_spawn(*io_, accept_loop(), asio::detached);
  for (int i = 0; i < std::max(1, config_.io_threads); ++i) threads_.emplace_back([this] { io_->run(); });
  return acceptor_->local_endpoint().port();
}

asio::awaitable<void> Server::Impl::accept_loop() {
  while (acceptor_->is_open()) {
    boost::system::error_code ec;
    const Session::Strand strand = asio::make_strand(io_->get_executor());
    Session::Socket socket(strand);
    co_await acceptor_->async_accept(socket, asio::redirect_error(asio::use_awaitable, ec));
    if (!acceptor_->is_open()) co_return;
    if (ec) {
      spdlog::warn("accept: {}", ec.message());
      asio::steady_timer pause(*io_, kAcceptPause);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ec));
      continue;
    }
    const bool full = num_sessions() >= config_.max_connections;
    const auto session = std::make_shared<Session>(std::move(socket), context_);
    if (full)
      session->start_refusing();
    else
      session->start();
  }
}

void Server::Impl::drain(int64_t deadline_us) {
  {
    std::lock_guard life(life_mutex_);
    if (stopped_) return;
    api_.start_draining();
    asio::post(*io_, [this] {
      boost::system::error_code ignored;
      acceptor_->close(ignored);
    });
    {
      std::lock_guard lock(context_.mutex);
      for (Session* session : context_.sessions) session->drain();
    }
    if (EngineClient* engine = api_.engine()) engine->drain(deadline_us);
  }
  const int64_t last_us = deadline_us + std::chrono::duration_cast<std::chrono::microseconds>(kLastBytes).count();
  while (!stopped_ && context_.active > 0 && clock_.now_us() < last_us) std::this_thread::sleep_for(kDrainPoll);
}

void Server::Impl::stop() {
  std::lock_guard life(life_mutex_);
  if (stopped_.exchange(true)) return;
  io_->stop();
  for (std::thread& thread : threads_) thread.join();
  workers_->stop();
  heavy_->stop();
  workers_->join();
  heavy_->join();
  {
    std::lock_guard lock(context_.wake_gate->mutex);
    context_.wake_gate->open = false;
  }
  // Jobs of the pools own connections of io_; connections own generations, which cancel what they have in the engine.
  workers_.reset();
  heavy_.reset();
  acceptor_.reset();
  io_.reset();
}

Server::Server(ServerConfig config, const Clock& clock) : impl_(std::make_unique<Impl>(std::move(config), clock)) {}
Server::~Server() = default;
Result<uint16_t> Server::start() { return impl_->start(); }
void Server::attach(ServedModel model) { impl_->attach(std::move(model)); }
void Server::drain(int64_t deadline_us) { impl_->drain(deadline_us); }
void Server::stop() { impl_->stop(); }

}  // namespace vayu::server
