#include "server/chat_messages.h"

#include "server/field_reader.h"
#include "server/limits.h"

namespace vayu::server {
namespace {

Result<std::string> join_parts(const Json& parts, const std::string& path) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Json& part = parts[i];
    const std::string at = fmt::format("{}[{}]", path, i);
    if (part.is_string()) {
      text += part.get_ref<const std::string&>();
      continue;
    }
    if (!part.is_object()) return field_error(at, "{} must be an object, not {}.", at, type_name(part));
    const auto type = part.find("type");
    if (type == part.end() || !type->is_string()) return field_error(at, "{} needs a type.", at);
    const auto& kind = type->get_ref<const std::string&>();
    const bool refusal = kind == "refusal";
    if (kind != "text" && kind != "input_text" && kind != "output_text" && !refusal) {
      return field_error(at, "{}: this model reads text only; image, audio and file parts are not supported.", at);
    }
    const auto value = part.find(refusal ? "refusal" : "text");
    if (value == part.end() || !value->is_string()) return field_error(at, "{} needs a text.", at);
    text += value->get_ref<const std::string&>();
  }
  return text;
}

Result<std::string> normalise_content(const Json& message, const std::string& path) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) return std::string();
  if (content->is_string()) return content->get<std::string>();
  if (content->is_array()) return join_parts(*content, path);
  return field_error(path, "{} must be a string or a list of parts, not {}.", path, type_name(*content));
}

Status normalise_arguments(Json& function, const std::string& path) {
  const auto arguments = function.find("arguments");
  if (arguments == function.end()) return {};
  if (arguments->is_null()) {
    *arguments = Json::object();
    return {};
  }
  if (!arguments->is_string()) return {};
  const auto& text = arguments->get_ref<const std::string&>();
  if (text.empty()) {
    *arguments = Json::object();
    return {};
  }
  auto parsed = parse_json(text, path);
  if (!parsed.ok() && parsed.error().kind == ErrorKind::kTooLarge) {
    return Error{ErrorKind::kInvalidArgument, parsed.error().message, path};
  }
  if (!parsed.ok()) return {};  // not JSON: the model's own earlier output, kept as it is
  if (parsed->is_object())
    *arguments = std::move(*parsed);
  else if (parsed->is_null())
    *arguments = Json::object();
  return {};
}

Status normalise_tool_calls(Json& calls, const std::string& path) {
  if (!calls.is_array()) return field_error(path, "{} must be a list, not {}.", path, type_name(calls));
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    Json& call = calls[i];
    if (!call.is_object()) return field_error(at, "{} must be an object, not {}.", at, type_name(call));
    const auto function = call.find("function");
    if (function == call.end()) continue;
    if (!function->is_object()) return field_error(at, "{}.function must be an object.", at);
    FieldReader reader(*function, at + ".function.");
    std::string name;
    reader.text("name", kMaxNameBytes, &name);
    VAYU_RETURN_IF_ERROR(reader.status());
    VAYU_RETURN_IF_ERROR(normalise_arguments(*function, at + ".function.arguments"));
  }
  return {};
}

Result<Json> normalise_message(const Json& message, const std::string& path) {
  if (!message.is_object()) return field_error(path, "{} must be an object, not {}.", path, type_name(message));
  FieldReader reader(message, path + ".");
  std::string role;
  reader.text("role", kMaxNameBytes, &role);
  std::string name;
  reader.text("name", kMaxNameBytes, &name);
  for (const char* field : {"reasoning_content", "reasoning"}) {
    const Json* value = reader.find(field);
    if (value != nullptr && !value->is_string()) {
      reader.fail(field, "{}.{} must be a string, not {}.", path, field, type_name(*value));
    }
  }
  VAYU_RETURN_IF_ERROR(reader.status());
  if (role.empty()) return field_error(path + ".role", "{}.role is required.", path);

  Json result;
  result["role"] = role == "developer" ? "system" : role;
  VAYU_ASSIGN_OR_RETURN(result["content"], normalise_content(message, path + ".content"));
  for (const auto& [key, value] : message.items()) {
    if (key == "role" || key == "content" || value.is_null()) continue;
    if (key == "tool_calls" && value.is_array() && value.empty()) continue;
    Json& copy = result[key] = value;
    if (key == "tool_calls") VAYU_RETURN_IF_ERROR(normalise_tool_calls(copy, path + ".tool_calls"));
    if (key == "function_call" && copy.is_object()) {
      VAYU_RETURN_IF_ERROR(normalise_arguments(copy, path + ".function_call.arguments"));
    }
  }
  if (const auto alias = result.find("reasoning"); alias != result.end()) {
    if (!result.contains("reasoning_content")) result["reasoning_content"] = *alias;
    result.erase("reasoning");
  }
  return result;
}

}  // namespace

Result<Json> normalise_messages(const Json& messages) {
  Json result = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    VAYU_ASSIGN_OR_RETURN(Json message, normalise_message(messages[i], fmt::format("messages[{}]", i)));
    result.push_back(std::move(message));
  }
  return result;
}

}  // namespace vayu::server
