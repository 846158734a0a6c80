// Typed reading of one JSON object. A field that is absent or null keeps its default; one of the wrong type or out of
// range is an error that names it. The first error sticks, so that callers check once.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/json_guard.h"

namespace vayu::server {

class FieldReader {
 public:
  // `object` must be a JSON object and outlive the reader. `prefix` stands in front of field names in errors.
  explicit FieldReader(const Json& object, std::string prefix = {}) : object_(object), prefix_(std::move(prefix)) {}

  // The value, or null when the field is absent or null.
  const Json* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }

  // `out` may be a plain value or an optional of it.
  template <class T>
  void integer(std::string_view name, int64_t low, int64_t high, T* out) {
    if (const auto value = read_integer(name, low, high)) *out = static_cast<unwrapped<T>>(*value);
  }
  template <class T>
  void number(std::string_view name, double low, double high, T* out) {
    if (const auto value = read_number(name, low, high)) *out = static_cast<unwrapped<T>>(*value);
  }
  void boolean(std::string_view name, bool* out);
  void boolean(std::string_view name, std::optional<bool>* out);
  void text(std::string_view name, size_t max_bytes, std::string* out);
  void int_list(std::string_view name, int64_t low, int64_t high, size_t max_items, std::vector<int32_t>* out);
  const Json* object(std::string_view name);  // null when absent; an error when of another type
  const Json* array(std::string_view name, size_t max_items);

  template <class... Args>
  void fail(std::string_view name, fmt::format_string<Args...> format, Args&&... args) {
    if (!error_) error_ = field_error(full_name(name), format, std::forward<Args>(args)...);
  }
  bool ok() const { return !error_; }
  Status status() const { return error_ ? Status(*error_) : Status(); }
  std::string full_name(std::string_view name) const { return prefix_ + std::string(name); }

 private:
  template <class T>
  struct unwrap {
    using type = T;
  };
  template <class T>
  struct unwrap<std::optional<T>> {
    using type = T;
  };
  template <class T>
  using unwrapped = typename unwrap<T>::type;

  std::optional<int64_t> read_integer(std::string_view name, int64_t low, int64_t high);
  std::optional<double> read_number(std::string_view name, double low, double high);

  const Json& object_;
  const std::string prefix_;
  std::optional<Error> error_;
};

// An integer that JSON may write as 3 or 3.0; nothing for any other value or beyond 64 bits.
std::optional<int64_t> as_integer(const Json& value);
// "a string", "null", ...: for messages.
std::string_view type_name(const Json& value);

}  // namespace vayu::server
