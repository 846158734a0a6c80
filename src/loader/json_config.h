// Reads config.json-like files with range checks; every error names file and field. null counts as absent.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vayu::loader {

class JsonConfig {
 public:
  // `file` is for messages. kCorrupt when the text is no JSON object, is nested deeper than 64, or names a key twice.
  static Result<std::shared_ptr<const JsonConfig>> parse(std::string_view text, std::string file);

  bool has(std::string_view key) const;  // present and not null
  Result<int32_t> integer(std::string_view key, int32_t low, int32_t high) const;
  Result<int32_t> integer_or(std::string_view key, int32_t fallback, int32_t low, int32_t high) const;
  Result<double> number(std::string_view key) const;  // finite
  Result<double> number_or(std::string_view key, double fallback) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string> text(std::string_view key) const;
  Result<std::string> text_or(std::string_view key, std::string fallback) const;
  Result<std::vector<std::string>> texts_or_empty(std::string_view key) const;  // a list of strings
  Result<std::vector<int32_t>> integers_or_empty(std::string_view key) const;   // a list of integers
  // The object under a key as a reader of its own ("rope_scaling.factor" in messages); null when absent.
  Result<std::shared_ptr<const JsonConfig>> object_or_null(std::string_view key) const;
  std::vector<std::string> keys() const;

  Error corrupt(std::string_view key, std::string_view what) const;
  Error unsupported(std::string_view key, std::string_view what) const;
  const std::string& file() const { return file_; }
  const nlohmann::json& json() const { return json_; }

 private:
  JsonConfig(nlohmann::json json, std::string file, std::string prefix)
      : json_(std::move(json)), file_(std::move(file)), prefix_(std::move(prefix)) {}
  const nlohmann::json* find(std::string_view key) const;  // null when absent or null
  template <class T>
  Result<std::vector<T>> list_or_empty(std::string_view key, std::string_view wanted) const;

  nlohmann::json json_;
  std::string file_;
  std::string prefix_;  // of keys in messages
};

}  // namespace vayu::loader
