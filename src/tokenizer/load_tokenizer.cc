// Fills a TokenizerSpec from a GGUF file, and picks the kind of tokenizer.
#include "base/log.h"
#include "loader/gguf.h"
#include "tokenizer/vocab_tokenizer.h"

namespace vayu {
namespace {

Status read_optional(const loader::GgufFile& file, std::string_view key, std::optional<int64_t>& out) {
  if (!file.has(key)) return {};
  VAYU_ASSIGN_OR_RETURN(out, file.get_int(key));
  return {};
}

Status read_optional(const loader::GgufFile& file, std::string_view key, std::optional<bool>& out) {
  if (!file.has(key)) return {};
  VAYU_ASSIGN_OR_RETURN(out, file.get_bool(key));
  return {};
}

Status read_strings(const loader::GgufFile& file, std::string_view key, std::vector<std::string>& out) {
  VAYU_ASSIGN_OR_RETURN(const auto views, file.get_strings(key));
  out.assign(views.begin(), views.end());
  return {};
}

Status read_ids_and_flags(const loader::GgufFile& file, TokenizerSpec& spec) {
  VAYU_RETURN_IF_ERROR(read_optional(file, "tokenizer.ggml.bos_token_id", spec.bos_id));
  VAYU_RETURN_IF_ERROR(read_optional(file, "tokenizer.ggml.eos_token_id", spec.eos_id));
  VAYU_RETURN_IF_ERROR(read_optional(file, "tokenizer.ggml.eot_token_id", spec.eot_id));
  VAYU_RETURN_IF_ERROR(read_optional(file, "tokenizer.ggml.eom_token_id", spec.eom_id));
  VAYU_RETURN_IF_ERROR(read_optional(file, "tokenizer.ggml.unknown_token_id", spec.unknown_id));
  VAYU_RETURN_IF_ERROR(read_optional(file, "tokenizer.ggml.add_bos_token", spec.add_bos));
  VAYU_RETURN_IF_ERROR(read_optional(file, "tokenizer.ggml.add_eos_token", spec.add_eos));
  return read_optional(file, "tokenizer.ggml.add_space_prefix", spec.add_space_prefix);
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> make_tokenizer(TokenizerSpec spec) {
  if (spec.model == "gpt2" && spec.pre == "sarvam-moe") return make_escaped_bpe(spec);
  if (spec.model == "gpt2") return make_byte_level_bpe(spec);
  if (spec.model == "llama") return make_sentencepiece_bpe(spec);
  return make_error(ErrorKind::kUnsupported, "tokenizer.ggml.model: unknown tokenizer '{}'", spec.model);
}

Result<std::shared_ptr<const Tokenizer>> load_tokenizer(const loader::GgufFile& file) {
  TokenizerSpec spec;
  VAYU_ASSIGN_OR_RETURN(spec.model, file.get_string("tokenizer.ggml.model"));
  VAYU_RETURN_IF_ERROR(read_strings(file, "tokenizer.ggml.tokens", spec.tokens));
  VAYU_RETURN_IF_ERROR(read_ids_and_flags(file, spec));
  if (file.has("tokenizer.ggml.token_type")) {
    VAYU_ASSIGN_OR_RETURN(spec.token_types, file.get_ints("tokenizer.ggml.token_type"));
  }
  if (spec.model == "gpt2") {
    if (!file.has("tokenizer.ggml.pre")) spdlog::warn("tokenizer.ggml.pre is absent, GPT-2's pattern is assumed");
    VAYU_ASSIGN_OR_RETURN(spec.pre, file.get_string_or("tokenizer.ggml.pre", "default"));
    VAYU_RETURN_IF_ERROR(read_strings(file, "tokenizer.ggml.merges", spec.merges));
  }
  if (spec.model == "llama") {
    VAYU_ASSIGN_OR_RETURN(spec.scores, file.get_floats("tokenizer.ggml.scores"));
  }
  return make_tokenizer(std::move(spec));
}

}  // namespace vayu
