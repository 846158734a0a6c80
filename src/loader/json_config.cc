#include "loader/json_config.h"

#include <cmath>
#include <set>
#include <vector>

#include "loader/gguf.h"

namespace vayu::loader {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr size_t kMaxBytes = 64 << 20;

// Stops at the first key that an object names twice, and at depth.
class Watcher {
 public:
  bool operator()(int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDepth) fault_ = "nested deeper than 64";
    if (event == Json::parse_event_t::object_start) keys_.emplace_back();
    if (event == Json::parse_event_t::object_end && !keys_.empty()) keys_.pop_back();
    if (event == Json::parse_event_t::key && fault_.empty() && !keys_.back().insert(value.get<std::string>()).second) {
      fault_ = fmt::format("field '{}' stands twice", printable(value.get<std::string>()));
    }
    return true;
  }
  const std::string& fault() const { return fault_; }

 private:
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
  std::string fault_;
};

// Depth by brackets alone: the parser's own recursion must never see more.
bool too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

std::string_view kind_name(const Json& value) { return value.type_name(); }

}  // namespace

Result<std::shared_ptr<const JsonConfig>> JsonConfig::parse(std::string_view text, std::string file) {
  const auto corrupt = [&](std::string_view what) { return make_error(ErrorKind::kCorrupt, "{}: {}", file, what); };
  if (text.size() > kMaxBytes) return corrupt("over 64 MiB of JSON");
  if (too_deep(text)) return corrupt("nested deeper than 64");
  Watcher watcher;
  Json parsed;
  try {
    parsed = Json::parse(text, std::ref(watcher));
  } catch (const Json::exception& e) {
    return corrupt(fmt::format("not valid JSON: {}", printable(e.what())));
  }
  if (!watcher.fault().empty()) return corrupt(watcher.fault());
  if (!parsed.is_object()) return corrupt(fmt::format("a JSON {} where an object is expected", kind_name(parsed)));
  return std::shared_ptr<const JsonConfig>(new JsonConfig(std::move(parsed), std::move(file), ""));
}

Error JsonConfig::corrupt(std::string_view key, std::string_view what) const {
  return make_error(ErrorKind::kCorrupt, "{}: field '{}{}': {}", file_, prefix_, key, what);
}

Error JsonConfig::unsupported(std::string_view key, std::string_view what) const {
  return make_error(ErrorKind::kUnsupported, "{}: field '{}{}': {}", file_, prefix_, key, what);
}

const Json* JsonConfig::find(std::string_view key) const {
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

bool JsonConfig::has(std::string_view key) const { return find(key) != nullptr; }

Result<int32_t> JsonConfig::integer(std::string_view key, int32_t low, int32_t high) const {
  const Json* value = find(key);
  if (!value) return corrupt(key, "is missing");
  if (!value->is_number_integer())
    return corrupt(key, fmt::format("a {} where an integer is expected", kind_name(*value)));
  const bool huge = value->is_number_unsigned() && value->get<uint64_t>() > INT32_MAX;
  const int64_t number = huge ? INT64_MAX : value->get<int64_t>();
  if (number < low || number > high) {
    return corrupt(key, fmt::format("{} is outside {} to {}", value->dump(), low, high));
  }
  return static_cast<int32_t>(number);
}

Result<int32_t> JsonConfig::integer_or(std::string_view key, int32_t fallback, int32_t low, int32_t high) const {
  if (!has(key)) return fallback;
  return integer(key, low, high);
}

Result<double> JsonConfig::number(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return corrupt(key, "is missing");
  if (!value->is_number()) return corrupt(key, fmt::format("a {} where a number is expected", kind_name(*value)));
  const auto number = value->get<double>();
  if (!std::isfinite(number)) return corrupt(key, "not finite");
  return number;
}

Result<double> JsonConfig::number_or(std::string_view key, double fallback) const {
  if (!has(key)) return fallback;
  return number(key);
}

Result<bool> JsonConfig::boolean_or(std::string_view key, bool fallback) const {
  const Json* value = find(key);
  if (!value) return fallback;
  if (!value->is_boolean()) return corrupt(key, fmt::format("a {} where true or false is expected", kind_name(*value)));
  return value->get<bool>();
}

Result<std::string> JsonConfig::text(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return corrupt(key, "is missing");
  if (!value->is_string()) return corrupt(key, fmt::format("a {} where a string is expected", kind_name(*value)));
  return value->get<std::string>();
}

Result<std::string> JsonConfig::text_or(std::string_view key, std::string fallback) const {
  if (!has(key)) return fallback;
  return text(key);
}

template <class T>
Result<std::vector<T>> JsonConfig::list_or_empty(std::string_view key, std::string_view wanted) const {
  const Json* value = find(key);
  if (!value) return std::vector<T>();
  const auto mismatch = [&] { return corrupt(key, fmt::format("is no list of {}", wanted)); };
  if (!value->is_array()) return mismatch();
  std::vector<T> out;
  for (const Json& element : *value) {
    if constexpr (std::is_same_v<T, std::string>) {
      if (!element.is_string()) return mismatch();
    } else {
      const bool fits =
          element.is_number_integer() && element.get<double>() >= INT32_MIN && element.get<double>() <= INT32_MAX;
      if (!fits) return mismatch();
    }
    out.push_back(element.get<T>());
  }
  return out;
}

Result<std::vector<std::string>> JsonConfig::texts_or_empty(std::string_view key) const {
  return list_or_empty<std::string>(key, "strings");
}

Result<std::vector<int32_t>> JsonConfig::integers_or_empty(std::string_view key) const {
  return list_or_empty<int32_t>(key, "integers");
}

Result<std::shared_ptr<const JsonConfig>> JsonConfig::object_or_null(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::shared_ptr<const JsonConfig>();
  if (!value->is_object()) return corrupt(key, fmt::format("a {} where an object is expected", kind_name(*value)));
  return std::shared_ptr<const JsonConfig>(new JsonConfig(*value, file_, fmt::format("{}{}.", prefix_, key)));
}

std::vector<std::string> JsonConfig::keys() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : json_.items()) out.push_back(key);
  return out;
}

}  // namespace vayu::loader
