#include <algorithm>

#include "tokenizer/pipeline/read_model.h"

namespace vayu {
namespace {

constexpr size_t kMaxTokens = size_t{1} << 24;
constexpr size_t kMaxTokenBytes = 4096;  // real vocabularies stay under 1,100 (runs of spaces)

// Texts by id, as they come in.
class TokenList {
 public:
  explicit TokenList(size_t count) : texts_(count), is_set_(count) {}

  // `where`: for errors.
  Status set(const JsonNode& where, int64_t id, std::string_view text) {
    if (id < 0 || static_cast<size_t>(id) >= texts_.size()) {
      return where.corrupt(fmt::format("id {} of '{}' leaves a gap: there are {} tokens", id, text, texts_.size()));
    }
    if (text.size() > kMaxTokenBytes) {
      return where.error(ErrorKind::kUnsupported,
                         fmt::format("token {} has {} bytes, limit {}", id, text.size(), kMaxTokenBytes));
    }
    if (is_set_[id]) return where.corrupt(fmt::format("'{}' and '{}' both have id {}", texts_[id], text, id));
    texts_[id] = text;
    is_set_[id] = true;
    return {};
  }
  bool is_set(int64_t id) const { return id >= 0 && static_cast<size_t>(id) < texts_.size() && is_set_[id]; }
  std::string_view text(int64_t id) const { return texts_[id]; }

  Result<PieceTable> finish(const JsonNode& where) const {
    PieceTable table;
    table.reserve(texts_.size());
    for (size_t id = 0; id < texts_.size(); ++id) {
      if (!is_set_[id]) return where.corrupt(fmt::format("no token has id {} of {}", id, texts_.size()));
      table.add(texts_[id]);
    }
    table.index([](TokenId) { return true; });
    for (TokenId id = 0; id < table.size(); ++id) {
      const TokenId first = table.find(table[id]);
      if (first != id && !table[id].empty()) {
        return where.corrupt(fmt::format("tokens {} and {} are both '{}'", first, id, table[id]));
      }
    }
    return table;
  }

 private:
  std::vector<std::string_view> texts_;
  std::vector<bool> is_set_;
};

Status read_vocab_object(const JsonNode& vocab, TokenList& list) {
  simdjson::dom::object object;
  if (vocab.value().get(object)) return vocab.corrupt("not an object");
  for (const auto& [text, value] : object) {
    int64_t id = 0;
    if (value.get(id)) return vocab.corrupt(fmt::format("id of '{}' is not an integer", text));
    VAYU_RETURN_IF_ERROR(list.set(vocab, id, text));
  }
  return {};
}

Status read_vocab_array(const JsonNode& vocab, TokenList& list) {
  simdjson::dom::array array;
  if (vocab.value().get(array)) return vocab.corrupt("not an array");
  int64_t id = 0;
  for (const simdjson::dom::element entry : array) {
    std::string_view text;
    if (entry.at(0).get(text)) return vocab.corrupt(fmt::format("entry {} is not [text, score]", id));
    VAYU_RETURN_IF_ERROR(list.set(vocab, id++, text));
  }
  return {};
}

Result<AddedToken> read_added_token(const JsonNode& node) {
  AddedToken token;
  VAYU_ASSIGN_OR_RETURN(const std::string_view content, node.get_string("content"));
  VAYU_ASSIGN_OR_RETURN(const JsonNode id_node, node.get("id"));
  VAYU_ASSIGN_OR_RETURN(const int64_t id, id_node.integer());
  VAYU_ASSIGN_OR_RETURN(token.special, node.get_bool_or("special", false));
  VAYU_ASSIGN_OR_RETURN(token.lstrip, node.get_bool_or("lstrip", false));
  VAYU_ASSIGN_OR_RETURN(token.rstrip, node.get_bool_or("rstrip", false));
  VAYU_ASSIGN_OR_RETURN(token.single_word, node.get_bool_or("single_word", false));
  VAYU_ASSIGN_OR_RETURN(token.normalized, node.get_bool_or("normalized", !token.special));
  if (content.empty()) return node.corrupt("content is empty");
  if (id < 0 || id >= static_cast<int64_t>(kMaxTokens)) return id_node.corrupt("out of range");
  token.content = content;
  token.id = static_cast<TokenId>(id);
  return token;
}

Result<std::vector<AddedToken>> read_added_tokens(const JsonNode& root) {
  std::vector<AddedToken> tokens;
  const auto node = root.find("added_tokens");
  if (!node) return tokens;
  VAYU_ASSIGN_OR_RETURN(const auto items, node->items());
  for (const JsonNode& item : items) {
    VAYU_ASSIGN_OR_RETURN(AddedToken token, read_added_token(item));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// Number of entries, counted: the parser's own count stops at 2^24 - 1.
Result<size_t> count_entries(const JsonNode& vocab) {
  size_t count = 0;
  simdjson::dom::object object;
  simdjson::dom::array array;
  if (!vocab.value().get(object)) {
    for (auto it = object.begin(); it != object.end(); ++it) ++count;
  } else if (!vocab.value().get(array)) {
    for (auto it = array.begin(); it != array.end(); ++it) ++count;
  } else {
    return vocab.corrupt("neither an object nor an array");
  }
  if (count == 0) return vocab.corrupt("empty");
  if (count > kMaxTokens) return vocab.error(ErrorKind::kUnsupported, "more than 2^24 tokens");
  return count;
}

}  // namespace

Result<FileTokens> read_tokens(const JsonNode& root, const JsonNode& model, ModelKind kind) {
  VAYU_ASSIGN_OR_RETURN(const JsonNode vocab, model.get("vocab"));
  VAYU_ASSIGN_OR_RETURN(const size_t num_model, count_entries(vocab));
  FileTokens out;
  VAYU_ASSIGN_OR_RETURN(out.added, read_added_tokens(root));
  TokenId max_id = static_cast<TokenId>(num_model) - 1;
  for (const AddedToken& token : out.added) max_id = std::max(max_id, token.id);
  if (static_cast<size_t>(max_id) >= num_model + out.added.size()) {
    const JsonNode added(root.value(), root.path() + ": added_tokens");
    return added.corrupt(
        fmt::format("id {} leaves a gap: there are at most {} tokens", max_id, num_model + out.added.size()));
  }
  TokenList list(static_cast<size_t>(max_id) + 1);
  VAYU_RETURN_IF_ERROR(kind == ModelKind::kUnigram ? read_vocab_array(vocab, list) : read_vocab_object(vocab, list));
  out.is_plain.assign(static_cast<size_t>(max_id) + 1, false);
  for (TokenId id = 0; id <= max_id; ++id) out.is_plain[id] = list.is_set(id);
  for (size_t i = 0; i < out.added.size(); ++i) {
    const AddedToken& token = out.added[i];
    const JsonNode where(root.value(), fmt::format("{}: added_tokens[{}]", root.path(), i));
    if (!list.is_set(token.id) || list.text(token.id) != token.content) {
      VAYU_RETURN_IF_ERROR(list.set(where, token.id, token.content));
    }
    out.is_plain[token.id] = out.is_plain[token.id] && token.is_plain_piece();
  }
  VAYU_ASSIGN_OR_RETURN(out.tokens, list.finish(vocab));
  return out;
}

}  // namespace vayu
