#include <algorithm>

#include "tokenizer/end_markers.h"
#include "tokenizer/pipeline/special_tokens.h"

namespace vayu {
namespace {

// A token as tokenizer_config.json names it: its text, or an object with "content".
Result<std::optional<TokenId>> read_token(const JsonNode& config, std::string_view key, const Pipeline& pipeline) {
  auto node = config.find(key);
  if (!node) return std::optional<TokenId>();
  if (node->is_object()) {
    VAYU_ASSIGN_OR_RETURN(node, node->get("content"));
  }
  VAYU_ASSIGN_OR_RETURN(const std::string_view text, node->string());
  const TokenId id = pipeline.tokens.find(text);
  if (id == kNoToken) return node->corrupt(fmt::format("'{}' is not a token of tokenizer.json", text));
  return std::optional<TokenId>(id);
}

// One id or a list of ids.
Status read_ids(const JsonNode& config, std::string_view key, const Pipeline& pipeline, std::vector<TokenId>& ids) {
  const auto node = config.find(key);
  if (!node) return {};
  std::vector<JsonNode> items = {*node};
  if (node->is_array()) {
    VAYU_ASSIGN_OR_RETURN(items, node->items());
  }
  for (const JsonNode& item : items) {
    VAYU_ASSIGN_OR_RETURN(const int64_t id, item.integer());
    if (id < 0 || id >= pipeline.tokens.size()) {
      return item.corrupt(fmt::format("{} is outside the vocabulary of {} tokens", id, pipeline.tokens.size()));
    }
    ids.push_back(static_cast<TokenId>(id));
  }
  return {};
}

// Puts `id` at the outer end of `side`, or takes it away there, where add_bos_token or add_eos_token says something.
Status overrule(const JsonNode& config, std::string_view key, std::optional<TokenId> id, std::vector<TokenId>& side,
                bool at_front) {
  if (!config.find(key)) return {};
  VAYU_ASSIGN_OR_RETURN(const bool wanted, config.get_bool_or(key, false));
  const bool present = id && !side.empty() && (at_front ? side.front() : side.back()) == *id;
  if (wanted && !id) return config.find(key)->corrupt("true, but the token is not named");
  if (wanted && !present) side.insert(at_front ? side.begin() : side.end(), *id);
  if (!wanted && present) side.erase(at_front ? side.begin() : side.end() - 1);
  return {};
}

Status read_tokenizer_config(std::string_view text, Pipeline& pipeline) {
  VAYU_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(text, "tokenizer_config.json"));
  const JsonNode root = document.root();
  VAYU_ASSIGN_OR_RETURN(pipeline.bos_id, read_token(root, "bos_token", pipeline));
  VAYU_ASSIGN_OR_RETURN(const std::optional<TokenId> eos, read_token(root, "eos_token", pipeline));
  if (eos) pipeline.end_ids.push_back(*eos);
  VAYU_RETURN_IF_ERROR(overrule(root, "add_bos_token", pipeline.bos_id, pipeline.prefix, true));
  return overrule(root, "add_eos_token", eos, pipeline.suffix, false);
}

Status read_config(std::string_view text, bool names_bos, Pipeline& pipeline) {
  VAYU_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(text, "config.json"));
  std::vector<TokenId> bos;
  for (auto node : {std::optional(document.root()), document.root().find("text_config")}) {
    if (!node) continue;
    VAYU_RETURN_IF_ERROR(read_ids(*node, "eos_token_id", pipeline, pipeline.end_ids));
    if (names_bos) VAYU_RETURN_IF_ERROR(read_ids(*node, "bos_token_id", pipeline, bos));
  }
  if (!bos.empty() && std::ranges::find(pipeline.prefix, bos[0]) != pipeline.prefix.end()) pipeline.bos_id = bos[0];
  return {};
}

}  // namespace

Status read_folder_texts(const ModelFolderTexts& folder, Pipeline& pipeline) {
  if (!folder.tokenizer_config.empty()) {
    VAYU_RETURN_IF_ERROR(read_tokenizer_config(folder.tokenizer_config, pipeline));
  }
  if (!folder.generation_config.empty()) {
    VAYU_ASSIGN_OR_RETURN(const JsonDocument document,
                          JsonDocument::parse(folder.generation_config, "generation_config.json"));
    VAYU_RETURN_IF_ERROR(read_ids(document.root(), "eos_token_id", pipeline, pipeline.end_ids));
  }
  if (!folder.config.empty()) {
    VAYU_RETURN_IF_ERROR(read_config(folder.config, folder.tokenizer_config.empty(), pipeline));
  }
  std::vector<std::pair<TokenId, std::string_view>> markers;
  for (const AddedToken& token : pipeline.added) markers.emplace_back(token.id, token.content);
  pipeline.end_ids = union_of_ends(std::move(pipeline.end_ids), markers);
  return {};
}

}  // namespace vayu
