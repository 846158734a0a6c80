#include "server/api.h"

#include <algorithm>
#include <ctime>

#include "base/log.h"
#include "server/web_files.h"

namespace vayu::server {
namespace {

HttpResponse json_response(const Json& body) {
  HttpResponse response;
  response.body = dump(body);
  return response;
}

Error unknown_model(const std::string& name) {
  return Error{ErrorKind::kNotFound, fmt::format("The model '{}' does not exist.", name), "model"};
}

EngineSample sample_of(const EngineStats& stats) {
  EngineSample sample;
  sample.running = stats.running;
  sample.waiting = stats.waiting;
  sample.total_pages = stats.total_pages;
  sample.free_pages = stats.free_pages;
  sample.cached_pages = stats.cached_pages;
  sample.steps = stats.steps;
  sample.prompt_tokens = stats.prompt_tokens;
  sample.cached_tokens = stats.cached_tokens;
  sample.generated_tokens = stats.generated_tokens;
  sample.preemptions = stats.preemptions;
  sample.non_finite_rows = stats.non_finite_rows;
  return sample;
}

Json latency_json(const LatencySummary& summary) {
  const auto value = [&](double ms) { return summary.count > 0 ? Json(ms) : Json(nullptr); };
  Json json;
  json["count"] = summary.count;
  json["p50"] = value(summary.p50_ms);
  json["p90"] = value(summary.p90_ms);
  json["p95"] = value(summary.p95_ms);
  json["p99"] = value(summary.p99_ms);
  return json;
}

Status check_engine(const EngineStats& stats) {
  if (stats.failed.empty()) return {};
  return Error{ErrorKind::kUnavailable, stats.failed, {}};
}

void log_format(const ChatFormat& format) {
  if (format.reasoning) {
    spdlog::info(
        "chat: thinking is read between {} and {}{}", format.reasoning->open, format.reasoning->close,
        format.empty_thinking.empty() ? "" : "; enable_thinking=false puts an empty block in front of the answer");
  }
  if (format.tool_calls) {
    spdlog::info("chat: tool calls are read as {}JSON{}", format.tool_calls->open, format.tool_calls->close);
  }
}

}  // namespace

Api::Api(const ServerConfig& config, const Clock& clock)
    : config_(config), clock_(clock), metrics_(config.model_names.front(), clock) {}

void Api::attach(ServedModel model) {
  VAYU_CHECK(model.engine != nullptr && model.tokenizer != nullptr, "a served model has an engine and a tokenizer");
  const EngineInfo& info = model.engine->info();
  metrics_.set_cache_config(model.engine->stats().total_pages, info.page_size);
  PromptBuilder prompts(model, config_.parsers);
  log_format(prompts.format());
  std::vector<TokenId> marks = mark_tokens(*model.tokenizer, prompts.format());
  const RequestRules rules{info.vocab_size, info.max_context, config_.debug_hooks};
  attached_ = std::make_shared<const Attached>(Attached{std::move(model), std::move(prompts), std::move(marks), rules,
                                                        static_cast<int64_t>(std::time(nullptr))});
}

EngineClient* Api::engine() const {
  const auto model = attached();
  return model == nullptr ? nullptr : model->model.engine;
}

Status Api::check_ready() const {
  if (draining_) return make_error(ErrorKind::kUnavailable, "The server is shutting down.");
  const EngineClient* engine = this->engine();
  if (engine == nullptr) return make_error(ErrorKind::kUnavailable, "The model is still loading.");
  return check_engine(engine->stats());
}

bool Api::is_heavy(const Route& route) {
  switch (route.id) {
    case RouteId::kCompletions:
    case RouteId::kChat:
    case RouteId::kTokenize:
    case RouteId::kDetokenize:
    case RouteId::kMetrics:
    case RouteId::kStats:
      return true;
    default:
      return false;
  }
}

HttpResponse Api::answer(const Route& route, const HttpRequest& request) try {
  return dispatch(route, request);
} catch (const std::exception& exception) {  // a library's: memory, above all
  return error_response(make_error(ErrorKind::kInternal, "The request failed: {}.", exception.what()));
}

HttpResponse Api::dispatch(const Route& route, const HttpRequest& request) {
  switch (route.id) {
    case RouteId::kPage:
      return page();
    case RouteId::kHealth:
      return health();
    case RouteId::kReady:
      return ready();
    case RouteId::kVersion:
      return json_response({{"version", config_.version}});
    case RouteId::kMetrics:
      return metrics_page();
    case RouteId::kStats:
      return stats();
    case RouteId::kModels:
      return models();
    case RouteId::kModel:
      return model(request.path.substr(route.path.size() - 1));
    case RouteId::kTokenize:
    case RouteId::kDetokenize: {
      auto body = parse_json(request.body);
      if (!body.ok()) return error_response({ErrorKind::kInvalidArgument, body.error().message, body.error().field});
      const auto result = route.id == RouteId::kTokenize ? tokenize(*body) : detokenize(*body);
      return result.ok() ? json_response(*result) : error_response(result.error());
    }
    case RouteId::kCompletions:
    case RouteId::kChat:
    case RouteId::kProfile:
      break;
  }
  return error_response(make_error(ErrorKind::kInternal, "This route's answer is waited for."));
}

std::variant<std::unique_ptr<ProfileRun>, HttpResponse> Api::start_profile(const HttpRequest& request,
                                                                           std::function<void()> wake) try {
  if (!config_.profiling) {
    return status_response(403, "Profiling is off: start the server with --enable-profiling.");
  }
  const auto wanted = parse_profile(request.body);
  if (!wanted.ok()) return error_response(wanted.error());
  StepProfiler* profiler = attached()->model.profiler;
  if (profiler == nullptr) {
    return error_response(
        make_error(ErrorKind::kUnsupported, "Profiling needs --device cuda; this server has no GPU."));
  }
  auto run = ProfileRun::open(*profiler, config_.model_names.front(), *wanted, std::move(wake));
  if (run == nullptr) return status_response(409, "Another request is recording steps; one at a time.");
  return run;
} catch (const std::exception& exception) {  // a library's: memory, above all
  return error_response(make_error(ErrorKind::kInternal, "The request failed: {}.", exception.what()));
}

HttpResponse Api::page() const {
  const WebFile* file = find_web_file("index.html");
  if (file == nullptr) return error_response(make_error(ErrorKind::kNotFound, "This build has no web page."));
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.body = file->content;
  response.headers.emplace_back("Cache-Control", "no-cache");
  response.headers.emplace_back("X-Frame-Options", "DENY");
  response.headers.emplace_back("Referrer-Policy", "no-referrer");
  return response;
}

// Alive, until the engine has failed or has had work for a set time without ending a step.
HttpResponse Api::health() const {
  if (const EngineClient* engine = this->engine()) {
    const EngineStats stats = engine->stats();
    if (const Status works = check_engine(stats); !works.ok()) return error_response(works.error());
    const int64_t since_us = stats.step_running_since_us;
    const int64_t stalled_ms = since_us == 0 ? 0 : (clock_.now_us() - since_us) / 1000;
    if (stalled_ms > config_.stall_timeout_ms) {
      return error_response(make_error(ErrorKind::kUnavailable, "The engine has ended no step for {} ms.", stalled_ms));
    }
  }
  return json_response({{"status", "ok"}});
}

HttpResponse Api::ready() const {
  const Status ready = check_ready();
  return ready.ok() ? json_response({{"status", "ready"}}) : error_response(ready.error());
}

HttpResponse Api::metrics_page() {
  if (const EngineClient* engine = this->engine()) metrics_.update_engine(sample_of(engine->stats()));
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = metrics_.text();
  return response;
}

HttpResponse Api::stats() const {
  const EngineClient* engine = this->engine();
  const EngineStats stats = engine == nullptr ? EngineStats{} : engine->stats();
  const LiveSummary live = metrics_.live();
  Json json;
  json["model"] = config_.model_names.front();
  json["ready"] = check_ready().ok();
  json["uptime_s"] = live.uptime_s;
  json["running"] = stats.running;
  json["waiting"] = stats.waiting;
  json["tokens_per_s"] = live.generation_tokens_per_s;
  json["prompt_tokens_per_s"] = live.prompt_tokens_per_s;
  json["requests_total"] = live.requests_total;
  json["kv"] = {{"total", stats.total_pages},
                {"used", stats.total_pages - stats.free_pages - stats.cached_pages},
                {"cached", stats.cached_pages},
                {"free", stats.free_pages},
                {"page_size", stats.page_size}};
  json["ttft_ms"] = latency_json(live.ttft);
  json["itl_ms"] = latency_json(live.itl);
  json["e2e_ms"] = latency_json(live.e2e);
  json["steps"] = stats.steps;
  json["batch_rows"] = stats.last_batch_rows;
  json["batch_tokens"] = stats.last_batch_tokens;
  json["prompt_tokens_total"] = stats.prompt_tokens;
  json["cached_tokens_total"] = stats.cached_tokens;
  json["generated_tokens_total"] = stats.generated_tokens;
  json["preemptions_total"] = stats.preemptions;
  return json_response(json);
}

Json Api::model_json(const std::string& name) const {
  const auto model = attached();
  Json json;
  json["id"] = name;
  json["object"] = "model";
  json["created"] = model->created_s;
  json["owned_by"] = "vayu";
  json["root"] = model->model.engine->info().model_name;
  json["parent"] = nullptr;
  json["max_model_len"] = model->rules.max_context;
  json["permission"] = Json::array();
  return json;
}

HttpResponse Api::models() const {
  Json list;
  list["object"] = "list";
  list["data"] = Json::array();
  for (const std::string& name : config_.model_names) list["data"].push_back(model_json(name));
  return json_response(list);
}

HttpResponse Api::model(const std::string& name) const {
  const Status known = check_model(name);
  return known.ok() ? json_response(model_json(name)) : error_response(known.error(), "model_not_found");
}

Status Api::check_model(const std::string& name) const {
  const auto& names = config_.model_names;
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) return {};
  return unknown_model(name);
}

Result<Json> Api::tokenize(const Json& body) const {
  const auto model = attached();
  VAYU_ASSIGN_OR_RETURN(const TokenizeBody request, parse_tokenize(body, model->rules));
  VAYU_RETURN_IF_ERROR(check_model(request.model));
  VAYU_ASSIGN_OR_RETURN(const BuiltPrompt prompt, request.chat
                                                      ? model->prompts.chat(*request.chat, request.add_special)
                                                      : model->prompts.raw(*request.prompt, request.add_special));
  Json json;
  json["count"] = prompt.ids.size();
  json["max_model_len"] = model->rules.max_context;
  json["tokens"] = prompt.ids;
  Json& names = json["token_strs"] = nullptr;
  if (request.return_token_strs) {
    names = Json::array();
    for (const TokenId id : prompt.ids) names.push_back(token_name(*model->model.tokenizer, id));
  }
  if (request.chat) json["prompt"] = prompt.text;
  return json;
}

Result<Json> Api::detokenize(const Json& body) const {
  const auto model = attached();
  VAYU_ASSIGN_OR_RETURN(const DetokenizeBody request, parse_detokenize(body, model->rules));
  VAYU_RETURN_IF_ERROR(check_model(request.model));
  Json json;
  json["prompt"] = model->model.tokenizer->decode(request.tokens, /*skip_special=*/false);
  return json;
}

}  // namespace vayu::server
