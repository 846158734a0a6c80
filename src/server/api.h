// What the routes do, without sockets. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "server/generation.h"
#include "server/http_message.h"
#include "server/profile_run.h"
#include "server/prompt_builder.h"
#include "server/routes.h"
#include "server/server.h"
#include "telemetry/serving_metrics.h"

namespace vayu::server {

class Api {
 public:
  Api(const ServerConfig& config, const Clock& clock);

  void attach(ServedModel model);
  void start_draining() { draining_ = true; }
  bool draining() const { return draining_; }
  EngineClient* engine() const;  // null before attach()

  // kUnavailable before attach(), while draining and once the engine has failed.
  Status check_ready() const;

  // Every route that is answered at once. Some tokenise: see is_heavy().
  HttpResponse answer(const Route& route, const HttpRequest& request);
  // Whether the route's work belongs on a worker thread.
  static bool is_heavy(const Route& route);
  static bool generates(const Route& route) { return route.id == RouteId::kCompletions || route.id == RouteId::kChat; }

  struct Failure {
    Error error;
    std::string code;
  };
  // Parses, renders, tokenises and submits. `gone` turns true when the client hangs up: nothing is submitted then.
  using Outcome = std::variant<std::unique_ptr<Generation>, Failure>;
  Outcome generate(const Route& route, const HttpRequest& request, const std::atomic<bool>& gone,
                   std::function<void()> wake);

  // Opens a window over the next steps; else the refusal.
  std::variant<std::unique_ptr<ProfileRun>, HttpResponse> start_profile(const HttpRequest& request,
                                                                        std::function<void()> wake);

  ServingMetrics& metrics() { return metrics_; }
  const ServerConfig& config() const { return config_; }
  const Clock& clock() const { return clock_; }

 private:
  struct Attached {
    ServedModel model;
    PromptBuilder prompts;
    std::vector<TokenId> marks;  // mark_tokens() of the prompts' format
    RequestRules rules;
    int64_t created_s;
  };

  HttpResponse dispatch(const Route& route, const HttpRequest& request);
  Outcome start_generation(const Route& route, const HttpRequest& request, const std::atomic<bool>& gone,
                           std::function<void()> wake);
  std::shared_ptr<const Attached> attached() const { return attached_.load(); }
  Status check_model(const std::string& name) const;
  HttpResponse health() const;
  HttpResponse ready() const;
  HttpResponse page() const;
  HttpResponse metrics_page();
  HttpResponse stats() const;
  HttpResponse models() const;
  HttpResponse model(const std::string& name) const;
  Json model_json(const std::string& name) const;
  Result<Json> tokenize(const Json& body) const;
  Result<Json> detokenize(const Json& body) const;
  Result<GenerationSpec> completion_spec(const Attached& model, const Json& body) const;
  Result<GenerationSpec> chat_spec(const Attached& model, const Json& body) const;

  const ServerConfig config_;
  const Clock& clock_;
  ServingMetrics metrics_;
  std::atomic<bool> draining_ = false;
  std::atomic<std::shared_ptr<const Attached>> attached_;
};

}  // namespace vayu::server
