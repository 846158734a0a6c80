#include "tokenizer/pipeline/special_tokens.h"

namespace vayu {
namespace {

Result<TokenId> checked_id(const JsonNode& node, const Pipeline& pipeline) {
  VAYU_ASSIGN_OR_RETURN(const int64_t id, node.integer());
  if (id < 0 || id >= pipeline.tokens.size()) {
    return node.corrupt(fmt::format("{} is outside the vocabulary of {} tokens", id, pipeline.tokens.size()));
  }
  return static_cast<TokenId>(id);
}

// ["text", id]
Result<TokenId> read_token_pair(const JsonNode& node, std::string_view key, const Pipeline& pipeline) {
  VAYU_ASSIGN_OR_RETURN(const JsonNode pair, node.get(key));
  VAYU_ASSIGN_OR_RETURN(const auto items, pair.items());
  if (items.size() != 2) return pair.corrupt("not [text, id]");
  return checked_id(items[1], pipeline);
}

Status read_frame(const JsonNode& node, std::string_view first, std::string_view last, Pipeline& pipeline) {
  VAYU_ASSIGN_OR_RETURN(const TokenId before, read_token_pair(node, first, pipeline));
  VAYU_ASSIGN_OR_RETURN(const TokenId after, read_token_pair(node, last, pipeline));
  pipeline.prefix.insert(pipeline.prefix.begin(), before);
  pipeline.suffix.push_back(after);
  return {};
}

Result<std::vector<TokenId>> read_template_ids(const JsonNode& node, const JsonNode& item, const Pipeline& pipeline) {
  VAYU_ASSIGN_OR_RETURN(const std::string_view name, item.get_string("id"));
  VAYU_ASSIGN_OR_RETURN(const JsonNode table, node.get("special_tokens"));
  VAYU_ASSIGN_OR_RETURN(const JsonNode entry, table.get(name));
  VAYU_ASSIGN_OR_RETURN(const JsonNode ids_node, entry.get("ids"));
  VAYU_ASSIGN_OR_RETURN(const auto ids, ids_node.items());
  std::vector<TokenId> out;
  for (const JsonNode& id_node : ids) {
    VAYU_ASSIGN_OR_RETURN(const TokenId id, checked_id(id_node, pipeline));
    out.push_back(id);
  }
  return out;
}

Status read_template(const JsonNode& node, Pipeline& pipeline) {
  VAYU_ASSIGN_OR_RETURN(const JsonNode single, node.get("single"));
  VAYU_ASSIGN_OR_RETURN(const auto items, single.items());
  std::vector<TokenId> before, after;
  bool seen_text = false;
  for (const JsonNode& item : items) {
    if (item.find("Sequence")) {
      if (seen_text) return item.error(ErrorKind::kUnsupported, "the text stands in the template twice");
      seen_text = true;
      continue;
    }
    VAYU_ASSIGN_OR_RETURN(const JsonNode special, item.get("SpecialToken"));
    VAYU_ASSIGN_OR_RETURN(const auto ids, read_template_ids(node, special, pipeline));
    std::vector<TokenId>& side = seen_text ? after : before;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (!seen_text) return single.error(ErrorKind::kUnsupported, "the text does not stand in the template");
  pipeline.prefix.insert(pipeline.prefix.begin(), before.begin(), before.end());
  pipeline.suffix.insert(pipeline.suffix.end(), after.begin(), after.end());
  return {};
}

}  // namespace

Status read_post_processor(const JsonNode& node, Pipeline& pipeline) {
  VAYU_ASSIGN_OR_RETURN(const std::string_view kind, node.get_string("type"));
  if (kind == "TemplateProcessing") return read_template(node, pipeline);
  if (kind == "ByteLevel") return {};  // moves offsets only
  if (kind == "BertProcessing" || kind == "RobertaProcessing") return read_frame(node, "cls", "sep", pipeline);
  if (kind != "Sequence") return node.unknown_kind(kind);
  VAYU_ASSIGN_OR_RETURN(const JsonNode list, node.get("processors"));
  VAYU_ASSIGN_OR_RETURN(const auto items, list.items());
  for (const JsonNode& item : items) VAYU_RETURN_IF_ERROR(read_post_processor(item, pipeline));
  return {};
}

}  // namespace vayu
