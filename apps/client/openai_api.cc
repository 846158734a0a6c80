#include "apps/client/openai_api.h"

#include <nlohmann/json.hpp>

namespace vayu::client {

using nlohmann::json;

namespace {

const json& member(const json& object, const char* key) {
  static const json null;
  if (!object.is_object()) return null;
  const auto it = object.find(key);
  return it == object.end() ? null : *it;
}

std::string text_of(const json& value) { return value.is_string() ? value.get<std::string>() : std::string(); }
int64_t count_of(const json& value) { return value.is_number_integer() ? value.get<int64_t>() : 0; }

// OpenAI nests the message under "error"; SGLang has it at the top.
std::string message_of(const json& body) {
  const json& error = member(body, "error");
  if (error.is_string()) return text_of(error);
  return text_of(member(error.is_object() ? error : body, "message"));
}

Usage read_usage(const json& value) {
  return Usage{count_of(member(value, "prompt_tokens")), count_of(member(value, "completion_tokens")),
               count_of(member(member(value, "prompt_tokens_details"), "cached_tokens"))};
}

void read_choice(const json& choice, StreamEvent& event) {
  event.finish_reason = text_of(member(choice, "finish_reason"));
  if (const json& text = member(choice, "text"); text.is_string()) {
    event.text = text.get<std::string>();
    event.has_token = !event.text.empty() || event.finish_reason.empty();
    return;
  }
  const json& delta = member(choice, "delta");
  event.text = text_of(member(delta, "content"));
  event.reasoning = text_of(member(delta, "reasoning_content"));
  if (event.reasoning.empty()) event.reasoning = text_of(member(delta, "reasoning"));
  event.has_token = !event.text.empty() || !event.reasoning.empty();
}

}  // namespace

Result<StreamEvent> parse_stream_event(std::string_view data) {
  StreamEvent event;
  if (data == "[DONE]") {
    event.done = true;
    return event;
  }
  const json body = json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!body.is_object()) return Error{ErrorKind::kCorrupt, "an event is not a JSON object", "protocol"};
  if (!member(body, "error").is_null()) {
    event.error = Error{ErrorKind::kInternal, message_of(body), "error event"};
    return event;
  }
  if (const json& usage = member(body, "usage"); usage.is_object()) event.usage = read_usage(usage);
  if (const json& choices = member(body, "choices"); choices.is_array() && !choices.empty()) {
    read_choice(choices[0], event);
  }
  return event;
}

Error http_error(const HttpResponse& response) {
  ErrorKind kind = ErrorKind::kInternal;
  switch (response.status) {
    case 400:
      kind = ErrorKind::kInvalidArgument;
      break;
    case 401:
    case 403:
      kind = ErrorKind::kUnauthorized;
      break;
    case 404:
      kind = ErrorKind::kNotFound;
      break;
    case 413:
      kind = ErrorKind::kTooLarge;
      break;
    case 429:
      kind = ErrorKind::kResourceExhausted;
      break;
    case 503:
      kind = ErrorKind::kUnavailable;
      break;
    default:
      break;
  }
  std::string message = message_of(json::parse(response.body, nullptr, /*allow_exceptions=*/false));
  if (message.empty()) message = "no further words from the server";
  return Error{kind, fmt::format("HTTP {}: {}", response.status, message), fmt::format("http {}", response.status)};
}

Result<std::string> first_model(BlockingClient& client) {
  VAYU_ASSIGN_OR_RETURN(const HttpResponse response, client.fetch({"GET", "/v1/models", ""}));
  if (response.status != 200) return http_error(response);
  const json body = json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  const json& data = member(body, "data");
  if (data.is_array() && !data.empty()) {
    if (std::string id = text_of(member(data[0], "id")); !id.empty()) return id;
  }
  return Error{ErrorKind::kCorrupt, "/v1/models names no model", "protocol"};
}

}  // namespace vayu::client
