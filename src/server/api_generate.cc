// The generating routes: from a body to a submitted Generation.
#include <ctime>

#include "server/api.h"
#include "server/limits.h"
#include "server/sampling_fields.h"
#include "server/tool_fields.h"

namespace vayu::server {
namespace {

constexpr int32_t kDefaultCompletionTokens = 16;  // OpenAI's default for /v1/completions

// Tokens whose log-probabilities one answer may carry.
int32_t scored_tokens(const GenerationSpec& spec) {
  int64_t most = 0;
  for (size_t i = 0; i < spec.prompts.size(); ++i) {
    const int64_t echoed = spec.echo ? static_cast<int64_t>(spec.prompts[i].ids.size()) : 0;
    most = std::max(most, spec.max_tokens[i] + echoed);
  }
  return static_cast<int32_t>(most);
}

std::string cache_namespace(const std::string& tenant, const std::string& salt) {
  // Each part carries its kind and length, so that no text of one can pass for another.
  if (tenant.empty() && salt.empty()) return {};
  return fmt::format("tenant:{}:{};salt:{}:{}", tenant.size(), tenant, salt.size(), salt);
}

// How the answer to this request is read: nothing when all of it is content.
std::optional<AnswerParserOptions> answer_parsing(const ChatFormat& format, const ChatBody& request,
                                                  const BuiltPrompt& prompt) {
  AnswerParserOptions options;
  if (format.reasoning && request.separate_reasoning) {
    options.reasoning = format.reasoning;
    options.reasoning->starts_thinking = prompt.thinking_open;
    options.after_thinking = prompt.thinking_done;
  }
  if (format.tool_calls && !request.input.tools.is_null()) {
    options.tool_calls = format.tool_calls;
    options.tool_names = tool_names(request.input.tools);
  }
  if (!options.reasoning && !options.tool_calls) return std::nullopt;
  return options;
}

}  // namespace

Result<GenerationSpec> Api::completion_spec(const Attached& model, const Json& body) const {
  VAYU_ASSIGN_OR_RETURN(CompletionBody request, parse_completion(body, model.rules));
  GenerationSpec spec;
  spec.echo = request.echo;
  spec.options = std::move(request.options);
  VAYU_RETURN_IF_ERROR(check_model(spec.options.model));
  for (const PromptInput& input : request.prompts) {
    VAYU_ASSIGN_OR_RETURN(BuiltPrompt prompt, model.prompts.raw(input, spec.options.add_special));
    VAYU_ASSIGN_OR_RETURN(const int32_t max_tokens,
                          fit_max_tokens(static_cast<int64_t>(prompt.ids.size()), spec.options.max_tokens,
                                         kDefaultCompletionTokens, model.rules.max_context, "prompt"));
    spec.max_tokens.push_back(max_tokens);
    spec.prompts.push_back(std::move(prompt));
  }
  return spec;
}

Result<GenerationSpec> Api::chat_spec(const Attached& model, const Json& body) const {
  VAYU_ASSIGN_OR_RETURN(ChatBody request, parse_chat(body, model.rules));
  GenerationSpec spec;
  spec.head.chat = true;
  spec.options = std::move(request.options);
  VAYU_RETURN_IF_ERROR(check_model(spec.options.model));
  VAYU_ASSIGN_OR_RETURN(BuiltPrompt prompt, model.prompts.chat(request.input, spec.options.add_special));
  VAYU_ASSIGN_OR_RETURN(const int32_t max_tokens,
                        fit_max_tokens(static_cast<int64_t>(prompt.ids.size()), spec.options.max_tokens, std::nullopt,
                                       model.rules.max_context, "messages"));
  spec.max_tokens.push_back(max_tokens);
  spec.parsing = answer_parsing(model.prompts.format(), request, prompt);
  spec.marks = model.marks;
  spec.prompts.push_back(std::move(prompt));
  return spec;
}

Api::Outcome Api::generate(const Route& route, const HttpRequest& request, const std::atomic<bool>& gone,
                           std::function<void()> wake) try {
  return start_generation(route, request, gone, std::move(wake));
} catch (const std::exception& exception) {  // a library's: memory, above all
  return Failure{make_error(ErrorKind::kInternal, "The request failed: {}.", exception.what()), {}};
}

Api::Outcome Api::start_generation(const Route& route, const HttpRequest& request, const std::atomic<bool>& gone,
                                   std::function<void()> wake) {
  const auto model = attached();
  auto body = parse_json(request.body);
  if (!body.ok()) {
    return Failure{{ErrorKind::kInvalidArgument, body.error().message, body.error().field}, {}};
  }
  const bool chat = route.id == RouteId::kChat;
  auto spec = chat ? chat_spec(*model, *body) : completion_spec(*model, *body);
  if (!spec.ok()) {
    return Failure{spec.error(), spec.error().kind == ErrorKind::kNotFound ? "model_not_found" : ""};
  }
  const size_t answers = spec->prompts.size() * spec->options.n;
  if (const Status fits = check_logprob_volume(spec->options, answers, scored_tokens(*spec)); !fits.ok()) {
    return Failure{fits.error(), {}};
  }
  if (gone) return Failure{make_error(ErrorKind::kCancelled, "The client is gone."), {}};

  spec->head.id = (chat ? "chatcmpl-" : "cmpl-") + request.request_id;
  spec->head.created_s = static_cast<int64_t>(std::time(nullptr));
  spec->head.model = spec->options.model.empty() ? config_.model_names.front() : spec->options.model;
  spec->cache_namespace = cache_namespace(request.tenant, spec->options.cache_salt);
  spec->arrival_us = request.arrival_us;
  if (config_.queue_timeout_ms > 0) spec->deadline_us = request.arrival_us + int64_t{1000} * config_.queue_timeout_ms;
  spec->max_pending_tokens = config_.max_pending_tokens;

  Generation::Services services{model->model.engine, model->model.tokenizer, &metrics_, &clock_};
  auto generation = Generation::submit(std::move(services), std::move(*spec), std::move(wake));
  if (!generation.ok()) return Failure{generation.error(), {}};
  return std::move(*generation);
}

}  // namespace vayu::server
