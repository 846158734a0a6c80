// vayu serve MODEL: the OpenAI-compatible server over one engine in this process.
#include <csignal>
#include <cstdio>
#include <ctime>
#include <future>

#include "apps/commands.h"
#include "apps/local_model.h"
#include "base/log.h"
#include "server/server.h"

namespace vayu {
namespace {

struct ServeOptions {
  std::string model;
  LocalModelOptions local;
  server::ServerConfig server;
  std::vector<std::string> served_names;
  double drain_timeout_s = 30;
  double ping_interval_s = 0, queue_timeout_s = 0, stall_timeout_s = 30;
  std::string log_level = "info";
  bool log_json = false;
  std::string config;  // read before the parser runs (config_file.h); here for --help
};

sigset_t shutdown_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

// True when SIGINT or SIGTERM came within the time.
bool signal_within(const sigset_t& signals, int milliseconds) {
  const timespec timeout{milliseconds / 1000, (milliseconds % 1000) * 1000000L};
  return sigtimedwait(&signals, nullptr, &timeout) > 0;
}

// True when SIGINT or SIGTERM came, false when the engine has failed.
bool run_until_signal(const sigset_t& signals, const EngineClient& engine) {
  while (!signal_within(signals, 200)) {
    if (!engine.stats().failed.empty()) return false;
  }
  return true;
}

// The open answers have ended with the error by now; clients and probes get a moment to read it.
[[noreturn]] void exit_failed(server::Server& server, const EngineClient& engine, const sigset_t& signals) {
  spdlog::critical("{}; this process ends now, so that whatever supervises it starts another", engine.stats().failed);
  signal_within(signals, 2000);
  server.stop();
  spdlog::shutdown();
  std::fflush(nullptr);
  std::_Exit(1);  // the driver of a lost device may never return from freeing its memory
}

void print_banner(const ServeOptions& o, uint16_t port, double seconds, const std::string& name) {
  const std::string host = o.server.host.find(':') == std::string::npos ? o.server.host : "[" + o.server.host + "]";
  const std::string url = fmt::format("http://{}:{}", host, port);
  const std::string key = o.server.api_keys.empty() ? "" : " -H 'Authorization: Bearer '$VAYU_API_KEY";
  std::printf(
      "\n  %s is ready after %.1f s\n"
      "  chat in the browser  %s/\n"
      "  OpenAI API           %s/v1\n\n"
      "  Try it:\n"
      "  curl %s/v1/chat/completions -H 'Content-Type: application/json'%s \\\n"
      "    -d '{\"messages\":[{\"role\":\"user\",\"content\":\"What is the capital of India?\"}]}'\n\n",
      name.c_str(), seconds, url.c_str(), url.c_str(), url.c_str(), key.c_str());
  std::fflush(stdout);
}

// Lets running answers finish; a second signal cuts that short.
void drain(server::Server& server, const Clock& clock, double timeout_s, const sigset_t& signals) {
  spdlog::info("shutting down: running requests have {:.0f} s to finish", timeout_s);
  auto drained =
      std::async(std::launch::async, [&] { server.drain(clock.now_us() + static_cast<int64_t>(timeout_s * 1e6)); });
  while (drained.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    if (signal_within(signals, 20)) {
      spdlog::warn("second signal: cancelling what still runs");
      server.stop();
    }
  }
}

int serve(ServeOptions& o) {
  if (!init_logging(o.log_level, o.log_json)) {
    std::fprintf(stderr, "vayu: --log-level %s: expected trace, debug, info, warn, error or off\n",
                 o.log_level.c_str());
    return 2;
  }
  if (const Status parsers = server::check_parser_choice(o.server.parsers); !parsers.ok()) {
    std::fprintf(stderr, "vayu: %s\n", parsers.error().message.c_str());
    return 2;
  }
  const sigset_t signals = shutdown_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // inherited by every thread; taken by sigtimedwait here

  static const SteadyClock clock;
  const int64_t start_us = clock.now_us();
  if (!o.served_names.empty()) o.local.served_model_name = o.served_names.front();
  o.server.model_names = o.served_names;
  if (o.served_names.empty()) o.server.model_names = {default_model_name(o.model)};
  o.local.profiling = o.server.profiling;
  o.server.sse_ping_interval_ms = static_cast<int>(o.ping_interval_s * 1000);
  o.server.queue_timeout_ms = static_cast<int>(o.queue_timeout_s * 1000);
  o.server.stall_timeout_ms = static_cast<int>(o.stall_timeout_s * 1000);

  server::Server server(o.server, clock);
  const Result<uint16_t> port = server.start();
  if (!port.ok()) {
    std::fprintf(stderr, "vayu: %s\n", port.error().message.c_str());
    return 1;
  }
  spdlog::info("listening on http://{}:{}, loading {}", o.server.host, *port, o.model);
  auto loading = std::async(std::launch::async, [&] { return open_local_model(o.model, o.local, clock); });
  while (loading.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    if (signal_within(signals, 5)) {
      server.stop();
      std::_Exit(0);  // loading cannot be interrupted, and nobody has been promised an answer yet
    }
  }
  Result<LocalModel> local = loading.get();
  if (!local.ok()) {
    server.stop();
    std::fprintf(stderr, "vayu: %s\n", local.error().message.c_str());
    return 1;
  }
  server.attach({.engine = local->engine.get(),
                 .tokenizer = local->tokenizer,
                 .chat_template = local->chat_template,
                 .bos_token = local->bos_token,
                 .eos_token = local->eos_token,
                 .profiler = local->profiler});
  print_banner(o, *port, (clock.now_us() - start_us) * 1e-6, local->name);
  if (!run_until_signal(signals, *local->engine)) exit_failed(server, *local->engine, signals);
  drain(server, clock, o.drain_timeout_s, signals);
  server.stop();
  return 0;
}

}  // namespace

void add_serve_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ServeOptions>();
  ServeOptions& o = *options;
  CLI::App& c = *app.add_subcommand("serve", "OpenAI-compatible HTTP server, metrics and web page");
  c.add_option("MODEL", o.model,
               "A .gguf file, a folder with safetensors, or a built-in geometry (--load-format dummy)")
      ->required();
  c.add_option("--config", o.config, "YAML file with any of these flags (`flag: value`); the command line wins");
  c.add_option("--host", o.server.host, "Address to listen on")->capture_default_str();
  c.add_option("--port", o.server.port, "Port to listen on; 0 lets the system choose")->capture_default_str();
  c.add_option("--api-key", o.server.api_keys,
               "Key that requests must carry; repeat for several (each has a prefix cache of its own)")
      ->envname("VAYU_API_KEY");
  add_model_flags(c, o.local);
  c.remove_option(c.get_option("--served-model-name"));
  c.add_option("--served-model-name", o.served_names,
               "Names in the API; the first is reported (default: the file's name)");
  c.add_option("--reasoning-parser", o.server.parsers.reasoning,
               "How thinking is found in answers: auto (from the chat template), none, or a format by name")
      ->capture_default_str();
  c.add_option("--tool-call-parser", o.server.parsers.tool_calls,
               "How tool calls are found in answers: auto (from the chat template), none, or a format by name")
      ->capture_default_str();
  c.add_option("--max-body-bytes", o.server.max_body_bytes, "Largest request body")->capture_default_str();
  c.add_option("--max-connections", o.server.max_connections, "Open connections")->capture_default_str();
  c.add_option("--queue-timeout", o.queue_timeout_s, "Seconds a request may wait to start; 0: no limit")
      ->capture_default_str();
  c.add_option("--sse-ping-interval", o.ping_interval_s,
               "Seconds after which an idle stream gets a comment line; 0: never")
      ->capture_default_str();
  c.add_option("--stall-timeout", o.stall_timeout_s,
               "Seconds without a finished step, with work there, until /health fails")
      ->capture_default_str();
  c.add_option("--drain-timeout", o.drain_timeout_s, "Seconds running requests get after SIGTERM")
      ->capture_default_str();
  c.add_flag("--enable-profiling", o.server.profiling,
             "With CUDA: let `vayu profile --url` record steps. Slows them while it does, and shows every key's load");
  c.add_option("--log-level", o.log_level, "trace, debug, info, warn, error or off")->capture_default_str();
  c.add_flag("--log-json", o.log_json, "One JSON object a log line");
  c.add_flag("--debug-hooks", o.server.debug_hooks, "Accept the test field vayu_debug; never in production");
  c.callback([options, &exit_code] { exit_code = serve(*options); });
}

}  // namespace vayu
