// vayu chat: talk to a model in the terminal, on a server or in this process.
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "apps/chat/chat_loop.h"
#include "apps/chat/http_backend.h"
#include "apps/chat/local_backend.h"
#include "apps/chat/terminal.h"
#include "apps/commands.h"
#include "apps/local_model.h"
#include "base/clock.h"
#include "base/log.h"

namespace vayu {

namespace {

struct ChatFlags {
  std::string model_path;  // empty: a server
  std::string url = "http://127.0.0.1:8000";
  std::string api_key;
  std::string server_model;
  std::string system_prompt;
  chat::ChatSettings settings;
  LocalModelOptions local;
};

Result<std::unique_ptr<chat::ChatBackend>> open_backend(ChatFlags& flags, const Clock& clock) {
  if (flags.model_path.empty()) {
    auto backend = chat::connect_http_backend(flags.url, flags.api_key, flags.server_model);
    if (!backend.ok() && backend.error().field == "connect") {
      return make_error(ErrorKind::kUnavailable,
                        "no server at {} ({}). Start one with `vayu serve MODEL`, or give MODEL here", flags.url,
                        backend.error().message);
    }
    return backend;
  }
  const bool show = isatty(STDERR_FILENO) != 0;
  if (show) {
    flags.local.progress = [](int64_t done, int64_t total) {
      std::fprintf(stderr, "\r\x1b[Kloading %.0f of %.0f MiB", done / double{1 << 20}, total / double{1 << 20});
      std::fflush(stderr);
    };
  }
  Result<LocalModel> model = open_local_model(flags.model_path, flags.local, clock);
  if (show) std::fputs("\r\x1b[K", stderr);
  if (!model.ok()) return model.error();
  return chat::make_local_backend(std::move(model->engine), std::move(model->tokenizer),
                                  std::move(model->chat_template));
}

int run_chat(ChatFlags& flags) {
  init_logging("warn", /*json=*/false);
  const SteadyClock clock;
  chat::Console console = chat::open_console();
  auto backend = open_backend(flags, clock);
  if (!backend.ok()) {
    std::fprintf(stderr, "vayu chat: %s\n", backend.error().message.c_str());
    return 1;
  }
  return chat::ChatLoop(**backend, flags.settings, flags.system_prompt, std::move(console)).run();
}

}  // namespace

void add_chat_command(CLI::App& root, int& exit_code) {
  CLI::App* command = root.add_subcommand("chat", "Talk to a model in the terminal");
  auto flags = std::make_shared<ChatFlags>();
  CLI::Option* model =
      command->add_option("MODEL", flags->model_path, "A .gguf file to run here; without it a server is asked");
  CLI::App* server = command->add_option_group("Server");
  server->add_option("--url", flags->url, "Server")->capture_default_str()->excludes(model);
  server->add_option("--api-key", flags->api_key, "Sent as a bearer token")->envname("VAYU_API_KEY");
  server->add_option("--model", flags->server_model, "Model of the server; default: its first");
  CLI::App* answer = command->add_option_group("Answers");
  answer->add_option("--system", flags->system_prompt, "System prompt");
  answer->add_option("--temperature", flags->settings.temperature, "0 is greedy")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str();
  answer->add_option("--top-p", flags->settings.top_p, "Nucleus sampling")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  answer->add_option("--max-tokens", flags->settings.max_tokens, "Longest answer in tokens")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  answer->add_option("--seed", flags->settings.seed, "Same seed, same answer");
  add_model_flags(*command, flags->local);
  command->callback([flags, &exit_code] { exit_code = run_chat(*flags); });
}

}  // namespace vayu
