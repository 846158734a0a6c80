#include "tokenizer/pipeline/json_node.h"

namespace vayu {
namespace {

constexpr size_t kMaxJsonBytes = size_t{256} << 20;
constexpr size_t kMaxDepth = 64;

}  // namespace

Result<JsonDocument> JsonDocument::parse(std::string_view text, std::string file) {
  if (text.size() > kMaxJsonBytes) {
    return make_error(ErrorKind::kTooLarge, "{}: {} bytes, limit {}", file, text.size(), kMaxJsonBytes);
  }
  JsonDocument document;
  document.parser_ = std::make_unique<simdjson::dom::parser>();
  document.file_ = std::move(file);
  auto error = document.parser_->allocate(std::max<size_t>(text.size(), 64), kMaxDepth);
  if (!error) error = document.parser_->parse(text.data(), text.size()).get(document.root_);
  if (error) {
    return make_error(ErrorKind::kCorrupt, "{}: not valid JSON: {}", document.file_, simdjson::error_message(error));
  }
  return document;
}

Error JsonNode::error(ErrorKind kind, std::string_view message) const {
  return make_error(kind, "{}: {}", path_, message);
}

Error JsonNode::unknown_kind(std::string_view kind) const {
  return error(ErrorKind::kUnsupported, fmt::format("unknown kind '{}'", kind));
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  simdjson::dom::object object;
  simdjson::dom::element value;
  if (value_.get(object) || object.at_key(key).get(value) || value.is_null()) return std::nullopt;
  // The file's name is parted from the path by a colon, the path's members by dots.
  const char* separator = path_.find(": ") == std::string::npos ? ": " : ".";
  return JsonNode(value, path_ + separator + std::string(key));
}

Result<JsonNode> JsonNode::get(std::string_view key) const {
  if (!value_.is_object()) return corrupt("not an object");
  auto node = find(key);
  if (!node) return corrupt(fmt::format("'{}' is missing", key));
  return std::move(*node);
}

Result<std::string_view> JsonNode::string() const {
  std::string_view out;
  if (value_.get(out)) return corrupt("not a string");
  return out;
}

Result<int64_t> JsonNode::integer() const {
  int64_t out = 0;
  if (value_.get(out)) return corrupt("not an integer");
  return out;
}

Result<std::vector<JsonNode>> JsonNode::items() const {
  simdjson::dom::array array;
  if (value_.get(array)) return corrupt("not an array");
  std::vector<JsonNode> nodes;
  for (const simdjson::dom::element item : array) nodes.emplace_back(item, fmt::format("{}[{}]", path_, nodes.size()));
  return nodes;
}

Result<std::string_view> JsonNode::get_string(std::string_view key) const {
  VAYU_ASSIGN_OR_RETURN(const JsonNode node, get(key));
  return node.string();
}

Result<std::string_view> JsonNode::get_string_or(std::string_view key, std::string_view otherwise) const {
  const auto node = find(key);
  return node ? node->string() : otherwise;
}

Result<bool> JsonNode::get_bool_or(std::string_view key, bool otherwise) const {
  const auto node = find(key);
  if (!node) return otherwise;
  bool out = false;
  if (node->value().get(out)) return node->corrupt("not true or false");
  return out;
}

Result<int64_t> JsonNode::get_int_or(std::string_view key, int64_t otherwise) const {
  const auto node = find(key);
  return node ? node->integer() : otherwise;
}

}  // namespace vayu
