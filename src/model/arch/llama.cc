// Llama and everything that is a Llama in GGUF clothes (SmolLM2, TinyLlama, Mistral 7B v0.3): pre-norm layers of GQA
// and SwiGLU, no biases, tied or separate head. GGUF converters permute the rows of Q and K, so pairs are interleaved.
#include <algorithm>
#include <cmath>

#include "loader/gguf.h"
#include "model/arch/architectures.h"
#include "model/arch/gguf_keys.h"
#include "model/blocks/dense_mlp.h"
#include "model/blocks/gqa_attention.h"

namespace vayu::model {
namespace {

using loader::GgufFile;

const TensorRow kTensors[] = {
    {Slot::kEmbedding, "token_embd.weight", {Dim::kVocab, Dim::kHidden}},
    {Slot::kOutputNorm, "output_norm.weight", {Dim::kHidden}},
    {Slot::kHead, "output.weight", {Dim::kVocab, Dim::kHidden}, true},
    {Slot::kRopeFactors, "rope_freqs.weight", {Dim::kRotaryHalf}, true},
    {Slot::kAttentionNorm, "blk.{}.attn_norm.weight", {Dim::kHidden}},
    {Slot::kQkv, "blk.{}.attn_q.weight", {Dim::kQuery, Dim::kHidden}},
    {Slot::kQkv, "blk.{}.attn_k.weight", {Dim::kKeyValue, Dim::kHidden}},
    {Slot::kQkv, "blk.{}.attn_v.weight", {Dim::kKeyValue, Dim::kHidden}},
    {Slot::kAttentionOutput, "blk.{}.attn_output.weight", {Dim::kHidden, Dim::kQuery}},
    {Slot::kMlpNorm, "blk.{}.ffn_norm.weight", {Dim::kHidden}},
    {Slot::kGateUp, "blk.{}.ffn_gate.weight", {Dim::kFfn, Dim::kHidden}},
    {Slot::kGateUp, "blk.{}.ffn_up.weight", {Dim::kFfn, Dim::kHidden}},
    {Slot::kDown, "blk.{}.ffn_down.weight", {Dim::kHidden, Dim::kFfn}},
};

// Keys under "llama." that this file reads, or that may stand there with the value that changes nothing.
constexpr std::string_view kKnownKeys[] = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.causal",
    "expert_count",
    "expert_used_count",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.attn_factor",
    "rope.scaling.low_freq_factor",
    "rope.scaling.high_freq_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
};

Status refuse_other_kinds(const GgufKeys& keys) {
  VAYU_RETURN_IF_ERROR(keys.refuse_unknown(kKnownKeys));
  for (const std::string_view key : {"expert_count", "expert_used_count"}) {
    VAYU_ASSIGN_OR_RETURN(const int64_t experts, keys.integer_or(key, 0, 0, INT32_MAX));
    if (experts != 0) return keys.unsupported(key, "Mixture-of-Experts Llama is not supported");
  }
  VAYU_ASSIGN_OR_RETURN(const bool causal, keys.boolean_or("attention.causal", true));
  if (!causal) return keys.unsupported("attention.causal", "attention that is not causal is not supported");
  return {};
}

Result<int32_t> vocabulary(const GgufFile& file, const GgufKeys& keys) {
  const loader::GgufTensor* embedding = file.find_tensor(kTensors[0].name);
  if (!embedding || embedding->shape.size() != 2 || embedding->shape[0] > kMaxVocab) {
    return make_error(ErrorKind::kCorrupt, "{}: tensor '{}' is missing or no (vocabulary, hidden) matrix", file.path(),
                      kTensors[0].name);
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
  rope.pairing = ops::RopePairing::kInterleaved;
  VAYU_ASSIGN_OR_RETURN(rope.rotary_dim, keys.integer_or("rope.dimension_count", config.head_dim, 2, config.head_dim));
  if (rope.rotary_dim % 2 != 0) return keys.corrupt("rope.dimension_count", fmt::format("{} is odd", rope.rotary_dim));
  VAYU_ASSIGN_OR_RETURN(const int64_t context, keys.integer("context_length", 1, kMaxContext));
  VAYU_RETURN_IF_ERROR(read_rope_scaling(keys, static_cast<int32_t>(context), rope));
  config.max_context = static_cast<int32_t>(std::min<int64_t>(scaled_context(rope, context), kMaxContext));
  return {};
}

}  // namespace

Result<Recipe> llama_recipe(const GgufFile& file) {
  const GgufKeys keys(file, "llama.");
  VAYU_RETURN_IF_ERROR(refuse_other_kinds(keys));
  Recipe recipe;
  ModelConfig& config = recipe.config;
  config.architecture = "llama";
  VAYU_ASSIGN_OR_RETURN(config.name, file.get_string_or("general.name", ""));
  VAYU_RETURN_IF_ERROR(read_shape(keys, config));
  VAYU_RETURN_IF_ERROR(read_rope(keys, config));
  VAYU_ASSIGN_OR_RETURN(config.vocab_size, vocabulary(file, keys));
  config.tied_head = file.find_tensor("output.weight") == nullptr;
  recipe.tensors = kTensors;
  recipe.layers.assign(config.num_layers, LayerRecipe{gqa_attention, dense_mlp});
  return recipe;
}

}  // namespace vayu::model
