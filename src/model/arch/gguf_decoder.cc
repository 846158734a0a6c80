#include "model/arch/gguf_decoder.h"

#include <algorithm>
#include <cmath>

#include "model/rope_frequencies.h"

namespace vayu::model {
namespace {

using loader::GgufFile;

Result<int32_t> vocabulary(const GgufFile& file, const GgufKeys& keys) {
  constexpr std::string_view kEmbedding = "token_embd.weight";
  const loader::CheckpointTensor* embedding = file.find_tensor(kEmbedding);
  if (!embedding || embedding->shape.size() != 2 || embedding->shape[0] > kMaxVocab) {
    return make_error(ErrorKind::kCorrupt, "{}: tensor '{}' is missing or no (vocabulary, hidden) matrix", file.path(),
                      kEmbedding);
  }
  const int64_t rows = embedding->shape[0];
  VAYU_ASSIGN_OR_RETURN(const int64_t stated, keys.integer_or("vocab_size", rows, 1, kMaxVocab));
  if (stated != rows) return keys.corrupt("vocab_size", fmt::format("{}, but the embedding has {} rows", stated, rows));
  return static_cast<int32_t>(rows);
}

Status read_shape(const GgufKeys& keys, ModelConfig& config) {
  VAYU_ASSIGN_OR_RETURN(config.num_layers, keys.integer("block_count", 1, 1024));
  VAYU_ASSIGN_OR_RETURN(config.hidden, keys.integer("embedding_length", 1, 1 << 16));
  VAYU_ASSIGN_OR_RETURN(config.ffn, keys.integer("feed_forward_length", 1, 1 << 20));
  VAYU_ASSIGN_OR_RETURN(config.num_q_heads, keys.integer("attention.head_count", 1, 1024));
  VAYU_ASSIGN_OR_RETURN(config.num_kv_heads, keys.integer_or("attention.head_count_kv", config.num_q_heads, 1, 1024));
  if (config.num_q_heads % config.num_kv_heads != 0) {
    return keys.corrupt("attention.head_count", fmt::format("{} query heads do not divide among {} KV heads",
                                                            config.num_q_heads, config.num_kv_heads));
  }
  if (!keys.has("attention.key_length") && config.hidden % config.num_q_heads != 0) {
    return keys.corrupt("embedding_length",
                        fmt::format("{} does not divide among {} heads", config.hidden, config.num_q_heads));
  }
  VAYU_ASSIGN_OR_RETURN(config.head_dim,
                        keys.integer_or("attention.key_length", config.hidden / config.num_q_heads, 2, 512));
  VAYU_ASSIGN_OR_RETURN(const int32_t value_dim, keys.integer_or("attention.value_length", config.head_dim, 1, 512));
  if (value_dim != config.head_dim) {
    return keys.unsupported("attention.value_length", "value heads of another size than key heads are not supported");
  }
  VAYU_ASSIGN_OR_RETURN(const double eps, keys.number("attention.layer_norm_rms_epsilon"));
  if (!(eps > 0 && eps < 1)) return keys.corrupt("attention.layer_norm_rms_epsilon", fmt::format("{}", eps));
  config.norm_eps = static_cast<float>(eps);
  config.attention_scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  return {};
}

Status read_rope(const GgufKeys& keys, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  VAYU_ASSIGN_OR_RETURN(rope.rotary_dim, keys.integer_or("rope.dimension_count", config.head_dim, 2, config.head_dim));
  if (rope.rotary_dim % 2 != 0) return keys.corrupt("rope.dimension_count", fmt::format("{} is odd", rope.rotary_dim));
  VAYU_ASSIGN_OR_RETURN(const int64_t context, keys.integer("context_length", 1, kMaxContext));
  VAYU_RETURN_IF_ERROR(read_rope_scaling(keys, static_cast<int32_t>(context), rope));
  config.max_context = static_cast<int32_t>(std::min<int64_t>(scaled_context(rope, context), kMaxContext));
  return {};
}

}  // namespace

Status read_gguf_decoder(const GgufKeys& keys, ModelConfig& config) {
  VAYU_ASSIGN_OR_RETURN(config.name, keys.file().get_string_or("general.name", ""));
  VAYU_RETURN_IF_ERROR(read_shape(keys, config));
  VAYU_RETURN_IF_ERROR(read_rope(keys, config));
  VAYU_ASSIGN_OR_RETURN(config.vocab_size, vocabulary(keys.file(), keys));
  config.tied_head = keys.file().find_tensor("output.weight") == nullptr;
  return {};
}

}  // namespace vayu::model
