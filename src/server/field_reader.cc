#include "server/field_reader.h"

#include <cmath>
#include <limits>

namespace vayu::server {

std::string_view type_name(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "a list";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return "an integer";
    case Json::value_t::number_float:
      return "a number";
    default:
      return "another type";
  }
}

std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::abs(number) <= 0x1p53 && std::trunc(number) == number) return static_cast<int64_t>(number);
  }
  return std::nullopt;
}

const Json* FieldReader::find(std::string_view name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::optional<int64_t> FieldReader::read_integer(std::string_view name, int64_t low, int64_t high) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    fail(name, "{} must be an integer, not {}.", full_name(name), type_name(*value));
    return std::nullopt;
  }
  const auto number = as_integer(*value);
  if (!number || *number < low || *number > high) {
    fail(name, "{} must be an integer from {} to {}.", full_name(name), low, high);
    return std::nullopt;
  }
  return number;
}

std::optional<double> FieldReader::read_number(std::string_view name, double low, double high) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    fail(name, "{} must be a number, not {}.", full_name(name), type_name(*value));
    return std::nullopt;
  }
  const double number = value->get<double>();
  if (!(number >= low && number <= high)) {
    fail(name, "{} must be from {} to {}.", full_name(name), low, high);
    return std::nullopt;
  }
  return number;
}

void FieldReader::boolean(std::string_view name, bool* out) {
  std::optional<bool> value;
  boolean(name, &value);
  if (value) *out = *value;
}

void FieldReader::boolean(std::string_view name, std::optional<bool>* out) {
  const Json* value = find(name);
  if (value == nullptr) return;
  if (!value->is_boolean()) return fail(name, "{} must be true or false, not {}.", full_name(name), type_name(*value));
  *out = value->get<bool>();
}

void FieldReader::text(std::string_view name, size_t max_bytes, std::string* out) {
  const Json* value = find(name);
  if (value == nullptr) return;
  if (!value->is_string()) return fail(name, "{} must be a string, not {}.", full_name(name), type_name(*value));
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() > max_bytes) return fail(name, "{} must have at most {} bytes.", full_name(name), max_bytes);
  *out = text;
}

void FieldReader::int_list(std::string_view name, int64_t low, int64_t high, size_t max_items,
                           std::vector<int32_t>* out) {
  const Json* list = array(name, max_items);
  if (list == nullptr) return;
  std::vector<int32_t> numbers;
  numbers.reserve(list->size());
  for (const Json& item : *list) {
    const auto number = as_integer(item);
    if (!number || *number < low || *number > high) {
      return fail(name, "{} must hold integers from {} to {}.", full_name(name), low, high);
    }
    numbers.push_back(static_cast<int32_t>(*number));
  }
  *out = std::move(numbers);
}

const Json* FieldReader::object(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr || value->is_object()) return value;
  fail(name, "{} must be an object, not {}.", full_name(name), type_name(*value));
  return nullptr;
}

const Json* FieldReader::array(std::string_view name, size_t max_items) {
  const Json* value = find(name);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) {
    fail(name, "{} must be a list, not {}.", full_name(name), type_name(*value));
    return nullptr;
  }
  if (value->size() > max_items) {
    fail(name, "{} must have at most {} entries; it has {}.", full_name(name), max_items, value->size());
    return nullptr;
  }
  return value;
}

}  // namespace vayu::server
