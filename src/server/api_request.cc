#include "server/api_request.h"

#include <algorithm>
#include <limits>

#include "server/chat_messages.h"
#include "server/field_reader.h"
#include "server/limits.h"
#include "server/sampling_fields.h"
#include "server/tool_fields.h"

namespace vayu::server {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

Status check_object(const Json& body) {
  if (body.is_object()) return {};
  return make_error(ErrorKind::kInvalidArgument, "The request body must be a JSON object, not {}.", type_name(body));
}

// A list of ids, or nothing after an error stuck to the reader.
std::optional<std::vector<TokenId>> token_list(FieldReader& reader, const Json& list, const RequestRules& rules) {
  std::vector<TokenId> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    const auto id = as_integer(item);
    if (!id || *id < 0 || *id >= rules.vocab_size) {
      reader.fail("prompt", "prompt: token ids must be integers from 0 to {}.", rules.vocab_size - 1);
      return std::nullopt;
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  if (ids.empty()) {
    reader.fail("prompt", "prompt must have at least one token.");
    return std::nullopt;
  }
  return ids;
}

// A string, a list of strings, a list of ids, or a list of lists of ids.
void read_prompts(FieldReader& reader, const RequestRules& rules, std::vector<PromptInput>* prompts) {
  const Json* prompt = reader.find("prompt");
  if (prompt == nullptr) return reader.fail("prompt", "prompt is required.");
  if (prompt->is_string()) {
    prompts->emplace_back(prompt->get<std::string>());
    return;
  }
  if (!prompt->is_array())
    return reader.fail("prompt", "prompt must be a string or a list, not {}.", type_name(*prompt));
  if (prompt->empty()) return reader.fail("prompt", "prompt must not be an empty list.");
  if (prompt->front().is_number()) {
    if (auto ids = token_list(reader, *prompt, rules)) prompts->emplace_back(std::move(*ids));
    return;
  }
  if (prompt->size() > kMaxPrompts) {
    return reader.fail("prompt", "prompt may hold at most {} prompts; it has {}.", kMaxPrompts, prompt->size());
  }
  for (const Json& item : *prompt) {
    if (item.type() != prompt->front().type() || !(item.is_string() || item.is_array())) {
      return reader.fail("prompt", "prompt must hold only strings, only token ids, or only lists of token ids.");
    }
    if (item.is_string()) {
      prompts->emplace_back(item.get<std::string>());
    } else {
      auto ids = token_list(reader, item, rules);
      if (!ids) return;
      prompts->emplace_back(std::move(*ids));
    }
  }
}

void check_min_tokens(FieldReader& reader, const GenerateOptions& options) {
  if (options.max_tokens && options.sampling.min_tokens > *options.max_tokens) {
    reader.fail("min_tokens", "min_tokens ({}) is more than max_tokens ({}).", options.sampling.min_tokens,
                *options.max_tokens);
  }
}

// enable_thinking and reasoning_effort may stand beside chat_template_kwargs or in it.
void read_thinking(FieldReader& reader, ChatInput* input) {
  std::optional<bool> enable;
  reader.boolean("enable_thinking", &enable);
  if (const auto inner = input->kwargs.find("enable_thinking"); inner != input->kwargs.end() && !inner->is_null()) {
    if (!inner->is_boolean()) {
      return reader.fail("chat_template_kwargs", "chat_template_kwargs.enable_thinking must be true or false, not {}.",
                         type_name(*inner));
    }
    if (enable && *enable != inner->get<bool>()) {
      return reader.fail("enable_thinking", "enable_thinking and chat_template_kwargs.enable_thinking contradict.");
    }
    enable = inner->get<bool>();
  }
  std::string effort;
  reader.text("reasoning_effort", kMaxNameBytes, &effort);
  static constexpr std::string_view kEfforts[] = {"", "none", "minimal", "low", "medium", "high", "xhigh"};
  if (std::find(std::begin(kEfforts), std::end(kEfforts), effort) == std::end(kEfforts)) {
    return reader.fail("reasoning_effort", "reasoning_effort must be none, minimal, low, medium, high or xhigh.");
  }
  if (!effort.empty() && !input->kwargs.contains("reasoning_effort")) input->kwargs["reasoning_effort"] = effort;
  if (effort == "none" && !enable) enable = false;
  if (enable) input->kwargs["enable_thinking"] = *enable;
}

void read_chat_input(FieldReader& reader, ChatInput* input) {
  const Json* messages = reader.array("messages", kMaxMessages);
  if (!reader.ok()) return;
  if (messages == nullptr) return reader.fail("messages", "messages is required.");
  if (messages->empty()) return reader.fail("messages", "messages must have at least one message.");
  auto normalised = normalise_messages(*messages);
  if (!normalised.ok()) return reader.fail(normalised.error().field, "{}", normalised.error().message);
  input->messages = std::move(*normalised);

  read_tools(reader, &input->tools);

  std::optional<bool> add_generation_prompt;
  reader.boolean("add_generation_prompt", &add_generation_prompt);
  reader.boolean("continue_final_message", &input->continue_final);
  if (input->continue_final && add_generation_prompt.value_or(false)) {
    return reader.fail("continue_final_message",
                       "continue_final_message and add_generation_prompt cannot both be true.");
  }
  input->add_generation_prompt = add_generation_prompt.value_or(!input->continue_final);

  if (const Json* kwargs = reader.object("chat_template_kwargs")) {
    // These are set by the server; the token strings are trusted by the template, so no client may give them.
    for (const char* name : {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token",
                             "pad_token", "unk_token"}) {
      if (kwargs->contains(name)) {
        return reader.fail("chat_template_kwargs", "chat_template_kwargs must not set {}.", name);
      }
    }
    input->kwargs = *kwargs;
  }
  read_thinking(reader, input);
}

}  // namespace

Result<CompletionBody> parse_completion(const Json& body, const RequestRules& rules) {
  VAYU_RETURN_IF_ERROR(check_object(body));
  CompletionBody request;
  GenerateOptions& options = request.options;
  FieldReader reader(body);
  read_generate_options(reader, rules, &options);
  reader.boolean("echo", &request.echo);
  reader.integer("max_tokens", request.echo ? 0 : 1, kMaxInt32, &options.max_tokens);
  check_min_tokens(reader, options);
  reader.integer("logprobs", 0, kMaxTopLogprobs, &options.sampling.logprobs);
  if (request.echo) options.sampling.prompt_logprobs = options.sampling.logprobs;
  if (reader.ok()) read_prompts(reader, rules, &request.prompts);
  if (request.prompts.size() * options.n > kMaxAnswers) {
    reader.fail("n", "{} prompts with n = {} ask for more than {} answers.", request.prompts.size(), options.n,
                kMaxAnswers);
  }
  VAYU_RETURN_IF_ERROR(reader.status());
  return request;
}

Result<ChatBody> parse_chat(const Json& body, const RequestRules& rules) {
  VAYU_RETURN_IF_ERROR(check_object(body));
  ChatBody request;
  GenerateOptions& options = request.options;
  FieldReader reader(body);
  read_generate_options(reader, rules, &options);
  reader.integer("max_tokens", 1, kMaxInt32, &options.max_tokens);
  reader.integer("max_completion_tokens", 1, kMaxInt32, &options.max_tokens);
  check_min_tokens(reader, options);
  bool logprobs = false;
  std::optional<int32_t> top_logprobs;
  reader.boolean("logprobs", &logprobs);
  reader.integer("top_logprobs", 0, kMaxTopLogprobs, &top_logprobs);
  if (top_logprobs.value_or(0) > 0 && !logprobs) {
    reader.fail("top_logprobs", "top_logprobs needs logprobs to be true.");
  }
  if (logprobs) options.sampling.logprobs = top_logprobs.value_or(0);
  bool echo = false;
  reader.boolean("echo", &echo);
  if (echo) reader.fail("echo", "echo is only supported by /v1/completions.");
  reader.boolean("separate_reasoning", &request.separate_reasoning);
  reader.boolean("include_reasoning", &options.include_reasoning);
  reader.boolean("stream_reasoning", &options.stream_reasoning);
  reader.boolean("parallel_tool_calls", &options.parallel_tool_calls);
  if (reader.ok()) read_chat_input(reader, &request.input);
  VAYU_RETURN_IF_ERROR(reader.status());
  return request;
}

Result<TokenizeBody> parse_tokenize(const Json& body, const RequestRules& rules) {
  VAYU_RETURN_IF_ERROR(check_object(body));
  TokenizeBody request;
  FieldReader reader(body);
  reader.text("model", kMaxNameBytes, &request.model);
  reader.boolean("add_special_tokens", &request.add_special);
  reader.boolean("return_token_strs", &request.return_token_strs);
  if (reader.has("prompt") == reader.has("messages")) {
    reader.fail("prompt", "Give either prompt or messages.");
  } else if (reader.has("prompt")) {
    request.prompt.emplace();
    reader.text("prompt", std::numeric_limits<size_t>::max(), &*request.prompt);
  } else {
    request.chat.emplace();
    read_chat_input(reader, &*request.chat);
  }
  VAYU_RETURN_IF_ERROR(reader.status());
  return request;
}

Result<DetokenizeBody> parse_detokenize(const Json& body, const RequestRules& rules) {
  VAYU_RETURN_IF_ERROR(check_object(body));
  DetokenizeBody request;
  FieldReader reader(body);
  reader.text("model", kMaxNameBytes, &request.model);
  if (!reader.has("tokens")) reader.fail("tokens", "tokens is required.");
  reader.int_list("tokens", 0, rules.vocab_size - 1, kMaxJsonValues, &request.tokens);
  VAYU_RETURN_IF_ERROR(reader.status());
  return request;
}

Result<int32_t> fit_max_tokens(int64_t prompt_tokens, std::optional<int32_t> asked, std::optional<int32_t> fallback,
                               int32_t max_context, const std::string& field) {
  if (prompt_tokens == 0) return field_error(field, "The prompt has no tokens.");
  const int64_t room = max_context - prompt_tokens;
  if (room < 1) {
    return field_error(field,
                       "The prompt has {} tokens; the model's context is {} tokens, one of which must be left for the "
                       "answer.",
                       prompt_tokens, max_context);
  }
  const int64_t wanted = std::max(1, asked ? *asked : fallback.value_or(std::numeric_limits<int32_t>::max()));
  return static_cast<int32_t>(std::min(wanted, room));
}

}  // namespace vayu::server
