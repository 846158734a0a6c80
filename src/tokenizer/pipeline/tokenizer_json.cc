#include "tokenizer/tokenizer_json.h"

#include <fstream>

#include "tokenizer/pipeline/pipeline_tokenizer.h"
#include "tokenizer/pipeline/read_model.h"
#include "tokenizer/pipeline/special_tokens.h"

namespace vayu {
namespace {

constexpr const char* kFileName = "tokenizer.json";
constexpr std::streamoff kMaxFileBytes = std::streamoff{256} << 20;

Result<Pipeline> read_pipeline(const JsonNode& root, const ModelFolderTexts& folder) {
  Pipeline pipeline;
  VAYU_ASSIGN_OR_RETURN(const JsonNode model, root.get("model"));
  VAYU_ASSIGN_OR_RETURN(const ModelKind kind, read_model_kind(model));
  VAYU_ASSIGN_OR_RETURN(FileTokens file, read_tokens(root, model, kind));
  if (const auto node = root.find("normalizer")) {
    VAYU_ASSIGN_OR_RETURN(pipeline.normalizer, read_normalizer(*node));
  }
  bool raw_bytes = false;
  if (const auto node = root.find("pre_tokenizer")) {
    VAYU_ASSIGN_OR_RETURN(const bool may_be_raw, can_start_from_bytes(model, kind));
    VAYU_ASSIGN_OR_RETURN(WordCutting cutting, read_word_cutting(*node, may_be_raw));
    pipeline.cutter = std::move(cutting.cutter);
    raw_bytes = cutting.raw_bytes;
  }
  pipeline.decoder = DecodeChain::join_with_spaces();
  if (const auto node = root.find("decoder")) {
    VAYU_ASSIGN_OR_RETURN(pipeline.decoder, DecodeChain::read(*node));
  }
  VAYU_ASSIGN_OR_RETURN(BuiltModel built, build_model(model, kind, file, raw_bytes));
  pipeline.pieces = std::move(built.pieces);
  pipeline.model = std::move(built.model);
  pipeline.every_byte_counts = built.every_byte_counts;
  pipeline.tokens = std::move(file.tokens);
  pipeline.added = std::move(file.added);
  if (const auto node = root.find("post_processor")) VAYU_RETURN_IF_ERROR(read_post_processor(*node, pipeline));
  VAYU_RETURN_IF_ERROR(read_folder_texts(folder, pipeline));
  std::vector<bool> is_added(pipeline.tokens.size());
  for (const AddedToken& token : pipeline.added) is_added[token.id] = true;
  pipeline.tokens.index([&](TokenId id) { return is_added[id]; });
  return pipeline;
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> parse_tokenizer_json(std::string_view text, const ModelFolderTexts& folder) {
  VAYU_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(text, kFileName));
  VAYU_ASSIGN_OR_RETURN(Pipeline pipeline, read_pipeline(document.root(), folder));
  return make_pipeline_tokenizer(std::move(pipeline));
}

Result<std::shared_ptr<const Tokenizer>> load_tokenizer_json(const std::string& path, const ModelFolderTexts& folder) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : -1;
  if (size < 0) return make_error(ErrorKind::kIo, "{}: cannot be read", path);
  if (size > kMaxFileBytes)
    return make_error(ErrorKind::kTooLarge, "{}: {} bytes, limit {}", path, size, kMaxFileBytes);
  std::string text(static_cast<size_t>(size), '\0');
  if (!file.seekg(0).read(text.data(), size)) return make_error(ErrorKind::kIo, "{}: cannot be read", path);
  return parse_tokenizer_json(text, folder);
}

}  // namespace vayu
