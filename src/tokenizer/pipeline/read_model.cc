#include "tokenizer/pipeline/read_model.h"

#include <cmath>

#include "tokenizer/bpe_model.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/pipeline/unigram_model.h"
#include "tokenizer/pipeline/wordpiece_model.h"

namespace vayu {
namespace {

Result<TokenId> read_unknown(const JsonNode& model, const PieceTable& tokens) {
  const auto node = model.find("unk_token");
  if (!node) return kNoToken;
  VAYU_ASSIGN_OR_RETURN(const std::string_view text, node->string());
  const TokenId id = tokens.find(text);
  if (id == kNoToken) return node->corrupt(fmt::format("'{}' is not in the vocabulary", text));
  return id;
}

std::array<TokenId, 256> find_byte_ids(const PieceTable& tokens) {
  std::array<TokenId, 256> ids;
  for (int byte = 0; byte < 256; ++byte) ids[byte] = tokens.find(byte_token(static_cast<uint8_t>(byte)));
  return ids;
}

bool has_all_bytes(const std::array<TokenId, 256>& ids) { return std::ranges::find(ids, kNoToken) == ids.end(); }

// Tokens that text may become, in the form of the words.
std::unique_ptr<const PieceTable> make_pieces(const FileTokens& file, bool raw_bytes) {
  auto pieces = std::make_unique<PieceTable>();
  pieces->reserve(file.tokens.size());
  for (TokenId id = 0; id < file.tokens.size(); ++id) {
    if (!file.is_plain[id]) {
      pieces->add({});
    } else if (raw_bytes) {
      pieces->add(from_printable(file.tokens[id]).value_or(""));
    } else {
      pieces->add(file.tokens[id]);
    }
  }
  pieces->index([](TokenId) { return true; });
  return pieces;
}

// The two halves of a merge: "left right" or ["left", "right"].
bool read_pair(simdjson::dom::element entry, std::string_view& left, std::string_view& right) {
  if (std::string_view text; !entry.get(text)) {
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) return false;
    left = text.substr(0, space);
    right = text.substr(space + 1);
  } else {
    simdjson::dom::array pair;
    if (entry.get(pair) || pair.size() != 2 || pair.at(0).get(left) || pair.at(1).get(right)) return false;
  }
  return !left.empty() && !right.empty();
}

// The three tokens of a merge must exist; a merge into a token that text must not become is left out.
Result<MergeTable> read_merges(const JsonNode& model, const FileTokens& file, const std::string& prefix) {
  VAYU_ASSIGN_OR_RETURN(const JsonNode node, model.get("merges"));
  simdjson::dom::array array;
  if (node.value().get(array)) return node.corrupt("not an array");
  MergeTable table;
  table.reserve(array.size());
  uint32_t rank = 0;
  std::string joined;
  for (const simdjson::dom::element entry : array) {
    std::string_view left, right;
    if (!read_pair(entry, left, right)) return node.corrupt(fmt::format("entry {} is not a pair of tokens", rank));
    joined.assign(left);
    joined += right.starts_with(prefix) ? right.substr(prefix.size()) : right;
    const TokenId left_id = file.tokens.find(left), right_id = file.tokens.find(right), id = file.tokens.find(joined);
    if (left_id == kNoToken || right_id == kNoToken || id == kNoToken) {
      const std::string_view missing = left_id == kNoToken ? left : right_id == kNoToken ? right : joined;
      return node.corrupt(fmt::format("entry {} needs the token '{}', which is not in the vocabulary", rank, missing));
    }
    if (file.is_plain[id]) table.insert(left_id, right_id, {rank, id});
    ++rank;
  }
  return table;
}

Result<BuiltModel> build_bpe(const JsonNode& model, const FileTokens& file, bool raw_bytes) {
  BpeOptions options{.raw_bytes = raw_bytes};
  VAYU_ASSIGN_OR_RETURN(options.unknown, read_unknown(model, file.tokens));
  VAYU_ASSIGN_OR_RETURN(options.fuse_unknown, model.get_bool_or("fuse_unk", false));
  VAYU_ASSIGN_OR_RETURN(const bool byte_fallback, model.get_bool_or("byte_fallback", false));
  if (byte_fallback) options.byte_ids = find_byte_ids(file.tokens);
  VAYU_ASSIGN_OR_RETURN(const bool ignore_merges, model.get_bool_or("ignore_merges", false));
  if (ignore_merges) options.whole_word = [](TokenId) { return true; };
  VAYU_ASSIGN_OR_RETURN(const std::string_view prefix, model.get_string_or("continuing_subword_prefix", ""));
  VAYU_ASSIGN_OR_RETURN(const std::string_view suffix, model.get_string_or("end_of_word_suffix", ""));
  options.continuing_prefix = prefix;
  options.end_of_word_suffix = suffix;
  if (const auto dropout = model.find("dropout")) {
    double rate = 0;
    if (dropout->value().get(rate) || rate != 0) {
      return dropout->error(ErrorKind::kUnsupported, "random merges are for training");
    }
  }
  VAYU_ASSIGN_OR_RETURN(MergeTable merges, read_merges(model, file, options.continuing_prefix));
  const bool falls_back = has_all_bytes(options.byte_ids);
  const bool one_unknown_each = options.unknown != kNoToken && !options.fuse_unknown;
  BuiltModel built{.pieces = make_pieces(file, raw_bytes)};
  auto made = std::make_unique<BpeModel>(*built.pieces, std::move(merges), std::move(options));
  built.every_byte_counts = falls_back || one_unknown_each || (raw_bytes && made->num_missing_bytes() == 0);
  built.model = std::move(made);
  return built;
}

Result<std::vector<double>> read_scores(const JsonNode& vocab, int32_t vocab_size) {
  std::vector<double> scores;
  simdjson::dom::array array;
  if (vocab.value().get(array)) return vocab.corrupt("not an array");
  for (const simdjson::dom::element entry : array) {
    double score = 0;
    if (entry.at(1).get(score)) return vocab.corrupt(fmt::format("entry {} is not [text, score]", scores.size()));
    scores.push_back(score);
  }
  return scores;
}

Result<BuiltModel> build_unigram(const JsonNode& model, const FileTokens& file) {
  UnigramOptions options;
  VAYU_ASSIGN_OR_RETURN(const JsonNode vocab, model.get("vocab"));
  VAYU_ASSIGN_OR_RETURN(options.scores, read_scores(vocab, file.tokens.size()));
  if (const auto unknown = model.find("unk_id")) {
    VAYU_ASSIGN_OR_RETURN(const int64_t id, unknown->integer());
    if (id < 0 || id >= static_cast<int64_t>(options.scores.size())) return unknown->corrupt("not in the vocabulary");
    options.unknown = static_cast<TokenId>(id);
  }
  VAYU_ASSIGN_OR_RETURN(options.byte_fallback, model.get_bool_or("byte_fallback", false));
  options.byte_ids = find_byte_ids(file.tokens);
  BuiltModel built{.pieces = make_pieces(file, false)};
  built.every_byte_counts = options.byte_fallback && has_all_bytes(options.byte_ids);
  built.model = std::make_unique<UnigramModel>(*built.pieces, std::move(options));
  return built;
}

Result<BuiltModel> build_wordpiece(const JsonNode& model, const FileTokens& file) {
  WordPieceOptions options;
  VAYU_ASSIGN_OR_RETURN(options.unknown, read_unknown(model, file.tokens));
  if (options.unknown == kNoToken) return model.corrupt("'unk_token' is missing");
  VAYU_ASSIGN_OR_RETURN(const std::string_view prefix, model.get_string_or("continuing_subword_prefix", "##"));
  options.continuing_prefix = prefix;
  VAYU_ASSIGN_OR_RETURN(const int64_t most, model.get_int_or("max_input_chars_per_word", 100));
  if (most < 1) return model.get("max_input_chars_per_word")->corrupt("not positive");
  options.max_characters = static_cast<size_t>(most);
  BuiltModel built{.pieces = make_pieces(file, false)};
  built.model = std::make_unique<WordPieceModel>(*built.pieces, std::move(options));
  return built;
}

}  // namespace

Result<ModelKind> read_model_kind(const JsonNode& model) {
  VAYU_ASSIGN_OR_RETURN(std::string_view kind, model.get_string_or("type", ""));
  if (kind.empty()) {  // files of before 2021
    kind = model.find("merges") ? "BPE" : model.find("unk_id") ? "Unigram" : "WordPiece";
  }
  if (kind == "BPE") return ModelKind::kBpe;
  if (kind == "Unigram") return ModelKind::kUnigram;
  if (kind == "WordPiece") return ModelKind::kWordPiece;
  return model.unknown_kind(kind);
}

Result<bool> can_start_from_bytes(const JsonNode& model, ModelKind kind) {
  if (kind != ModelKind::kBpe) return false;
  VAYU_ASSIGN_OR_RETURN(const bool byte_fallback, model.get_bool_or("byte_fallback", false));
  VAYU_ASSIGN_OR_RETURN(const std::string_view prefix, model.get_string_or("continuing_subword_prefix", ""));
  VAYU_ASSIGN_OR_RETURN(const std::string_view suffix, model.get_string_or("end_of_word_suffix", ""));
  return !byte_fallback && prefix.empty() && suffix.empty();
}

Result<BuiltModel> build_model(const JsonNode& model, ModelKind kind, const FileTokens& tokens, bool raw_bytes) {
  switch (kind) {
    case ModelKind::kBpe:
      return build_bpe(model, tokens, raw_bytes);
    case ModelKind::kUnigram:
      return build_unigram(model, tokens);
    case ModelKind::kWordPiece:
      break;
  }
  return build_wordpiece(model, tokens);
}

}  // namespace vayu
