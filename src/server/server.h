// OpenAI-compatible HTTP server over an EngineClient: completions, chat, tokenize, models, metrics, health, the web
// page. One or two I/O threads run every connection as a coroutine; parsing, templates and tokenising run on worker
// threads, so that neither a long prompt nor a slow client delays /health or another stream.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "core/engine_client.h"
#include "core/step_profiler.h"
#include "server/chat_format.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace vayu::server {

// Limits that are not settings stand in limits.h.
struct ServerConfig {
  std::string host = "127.0.0.1";  // an address, or a name that resolves to one
  uint16_t port = 8000;            // 0: the system chooses
  int io_threads = 1;
  int worker_threads = 2;
  std::vector<std::string> model_names = {"model"};  // names requests may use; the first is reported
  std::vector<std::string> api_keys;                 // none: no key is asked for
  std::string version = "0.1.0";
  size_t max_connections = 10'000;
  size_t max_body_bytes = 16u << 20;
  size_t max_total_body_bytes = 256u << 20;  // of all requests being read or parsed; over it 503
  int idle_timeout_ms = 120'000;             // kept-alive connection without a request
  int header_timeout_ms = 10'000;            // first byte to last header byte
  int body_timeout_ms = 30'000;              // for the whole body
  int write_timeout_ms = 30'000;             // one write that makes no end: the client reads too slowly
  int sse_ping_interval_ms = 0;   // > 0: a comment line on streams idle that long (off: some clients cannot skip them)
  int queue_timeout_ms = 0;       // > 0: a request not started by then fails
  int stall_timeout_ms = 30'000;  // work present and no step ended for that long: /health says 503
  size_t max_pending_tokens = 2048;  // an answer's tokens waiting for its client; over it the request is cancelled
  int socket_send_buffer_bytes = 0;  // > 0: SO_SNDBUF of connections
  ParserChoice parsers;              // how thinking and tool calls are found in answers
  bool debug_hooks = false;          // accept the body field vayu_debug
  bool profiling = false;            // answer /debug/profile
};

struct ServedModel {
  EngineClient* engine = nullptr;  // must outlive the server (or its stop())
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null: /v1/chat/completions answers 400
  std::string bos_token;                              // text for the template; empty: from the tokenizer
  std::string eos_token;
  StepProfiler* profiler = nullptr;  // of the engine's steps, and lives as long; null: they cannot be recorded
};

// Methods may be called from any thread.
class Server {
 public:
  // The clock must outlive the server and be the engine's.
  Server(ServerConfig config, const Clock& clock);
  ~Server();  // stop()

  // Binds and starts serving: /health is 200 and everything that needs the model answers 503 with Retry-After until
  // attach(). Returns the port. kIo, with the address, when it cannot listen.
  Result<uint16_t> start();

  // Once, when the model is loaded and warm: /ready becomes 200.
  void attach(ServedModel model);

  // Stops accepting; /ready is 503; drains the engine; returns when every response is written, the Clock is at
  // deadline_us (plus a second for the last bytes), or stop() was called.
  void drain(int64_t deadline_us);

  // Closes everything at once; unfinished requests are cancelled in the engine. Idempotent.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vayu::server
