// The "model" and "added_tokens" parts of a tokenizer.json file.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/piece_table.h"
#include "tokenizer/pipeline/added_tokens.h"
#include "tokenizer/pipeline/json_node.h"
#include "tokenizer/subword_model.h"

namespace vayu {

enum class ModelKind { kBpe, kUnigram, kWordPiece };

// Every token of a file, checked: ids from 0 without a gap, no text twice.
struct FileTokens {
  PieceTable tokens;           // (vocab_size) as the file writes them, all indexed
  std::vector<bool> is_plain;  // (vocab_size) the model may make it out of text
  std::vector<AddedToken> added;
};

Result<ModelKind> read_model_kind(const JsonNode& model);
// Whether a BPE model may start from bytes where words are written in the printable alphabet: its options do not look
// at characters.
Result<bool> can_start_from_bytes(const JsonNode& model, ModelKind kind);
Result<FileTokens> read_tokens(const JsonNode& root, const JsonNode& model, ModelKind kind);

struct BuiltModel {
  std::unique_ptr<const PieceTable> pieces;
  std::unique_ptr<const SubwordModel> model;
  bool every_byte_counts = false;  // as in Pipeline
};
// `raw_bytes`: words come as bytes.
Result<BuiltModel> build_model(const JsonNode& model, ModelKind kind, const FileTokens& tokens, bool raw_bytes);

}  // namespace vayu
