#include "server/tool_fields.h"

#include <algorithm>

#include "server/limits.h"

namespace vayu::server {
namespace {

Json without_nulls(const Json& object) {
  Json copy = Json::object();
  for (const auto& [key, value] : object.items()) {
    if (!value.is_null()) copy[key] = value;
  }
  return copy;
}

Result<Json> read_tool(const Json& tool, const std::string& path) {
  if (!tool.is_object()) return field_error(path, "{} must be an object, not {}.", path, type_name(tool));
  Json copy = without_nulls(tool);
  if (copy.value("type", Json("function")) != "function")
    return field_error(path + ".type", "{}.type must be \"function\".", path);
  const auto function = copy.find("function");
  const std::string at = path + ".function";
  if (function == copy.end()) return field_error(at, "{} is required.", at);
  if (!function->is_object()) return field_error(at, "{} must be an object, not {}.", at, type_name(*function));
  *function = without_nulls(*function);
  FieldReader reader(*function, at + ".");
  std::string name, description;
  reader.text("name", kMaxNameBytes, &name);
  reader.text("description", kMaxDescriptionBytes, &description);
  reader.object("parameters");
  bool strict = false;
  reader.boolean("strict", &strict);
  VAYU_RETURN_IF_ERROR(reader.status());
  if (name.empty()) return field_error(at + ".name", "{}.name is required.", at);
  return copy;
}

// {"type": "function", "function": {"name": NAME}}
bool is_named_choice(const Json& choice) {
  if (!choice.is_object() || choice.value("type", Json()) != "function") return false;
  const auto function = choice.find("function");
  return function != choice.end() && function->is_object() && function->value("name", Json()).is_string();
}

void read_tool_choice(FieldReader& reader, Json* tools) {
  const Json* choice = reader.find("tool_choice");
  if (choice == nullptr || *choice == "auto") return;
  if (*choice == "none") {
    *tools = nullptr;  // a model that is not shown tools calls none
    return;
  }
  if (*choice == "required" || is_named_choice(*choice)) {
    return reader.fail(
        "tool_choice",
        "This server cannot make a model call a tool: that needs constrained decoding. tool_choice must be "
        "\"none\" or \"auto\".");
  }
  reader.fail("tool_choice", "tool_choice must be \"none\" or \"auto\".");
}

}  // namespace

void read_tools(FieldReader& reader, Json* tools) {
  const Json* list = reader.array("tools", kMaxTools);
  if (list != nullptr && !list->empty()) {
    *tools = Json::array();
    for (size_t i = 0; i < list->size(); ++i) {
      auto tool = read_tool((*list)[i], fmt::format("tools[{}]", i));
      if (!tool.ok()) return reader.fail(tool.error().field, "{}", tool.error().message);
      tools->push_back(std::move(*tool));
    }
  }
  read_tool_choice(reader, tools);
}

std::vector<std::string> tool_names(const Json& tools) {
  std::vector<std::string> names;
  if (!tools.is_array()) return names;
  for (const Json& tool : tools) names.push_back(tool["function"]["name"]);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace vayu::server
