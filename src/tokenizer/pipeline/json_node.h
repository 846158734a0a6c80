// Reads JSON of a model folder with errors that name the file and the path in it.
#pragma once

#include <simdjson.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vayu {

// A value inside a JsonDocument, which must outlive it.
class JsonNode {
 public:
  JsonNode(simdjson::dom::element value, std::string path) : value_(value), path_(std::move(path)) {}

  // Member of an object. An absent one and null are the same: an error in the first, nothing in the second.
  Result<JsonNode> get(std::string_view key) const;
  std::optional<JsonNode> find(std::string_view key) const;

  Result<std::string_view> string() const;
  Result<int64_t> integer() const;
  Result<std::vector<JsonNode>> items() const;  // of an array

  Result<std::string_view> get_string(std::string_view key) const;
  Result<std::string_view> get_string_or(std::string_view key, std::string_view otherwise) const;
  Result<bool> get_bool_or(std::string_view key, bool otherwise) const;
  Result<int64_t> get_int_or(std::string_view key, int64_t otherwise) const;

  bool is_array() const { return value_.is_array(); }
  bool is_object() const { return value_.is_object(); }
  bool is_string() const { return value_.is_string(); }
  simdjson::dom::element value() const { return value_; }
  const std::string& path() const { return path_; }

  // "<file>: <path>: <message>"
  Error error(ErrorKind kind, std::string_view message) const;
  Error corrupt(std::string_view message) const { return error(ErrorKind::kCorrupt, message); }
  Error unknown_kind(std::string_view kind) const;

 private:
  simdjson::dom::element value_;
  std::string path_;  // "tokenizer.json: model.vocab"; the file alone for the root
};

class JsonDocument {
 public:
  // `file` names the text in errors. Limits: 256 MiB of text, 64 levels. The text is copied.
  static Result<JsonDocument> parse(std::string_view text, std::string file);

  JsonNode root() const { return JsonNode(root_, file_); }

 private:
  std::unique_ptr<simdjson::dom::parser> parser_;
  simdjson::dom::element root_;
  std::string file_;
};

}  // namespace vayu
