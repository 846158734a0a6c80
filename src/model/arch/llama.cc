// Llama and everything that is a Llama in GGUF clothes (SmolLM2, TinyLlama, Mistral 7B v0.3): pre-norm layers of GQA
// and SwiGLU, no biases, tied or separate head. GGUF converters permute the rows of Q and K, so pairs are interleaved
// there; safetensors have half-split pairs.
#include "loader/gguf.h"
#include "model/arch/architectures.h"
#include "model/arch/config_keys.h"
#include "model/arch/decoder_tensors.h"
#include "model/arch/gguf_decoder.h"
#include "model/arch/gguf_keys.h"
#include "model/blocks/dense_mlp.h"
#include "model/blocks/gqa_attention.h"

namespace vayu::model {
namespace {

using loader::GgufFile;

const SlotRow kGguf[] = {
    {Slot::kEmbedding, Where::kModel, {{{"token_embd.weight", {Dim::kVocab, Dim::kHidden}}}}},
    {Slot::kOutputNorm, Where::kModel, {{{"output_norm.weight", {Dim::kHidden}}}}},
    {Slot::kHead, Where::kModel, {{{"output.weight", {Dim::kVocab, Dim::kHidden}}}}},
    {Slot::kRopeFactors, Where::kModel, {{{"rope_freqs.weight", {Dim::kRotaryHalf}}}}, true},
    {Slot::kAttentionNorm, Where::kEveryLayer, {{{"blk.{L}.attn_norm.weight", {Dim::kHidden}}}}},
    {Slot::kQkv,
     Where::kEveryLayer,
     {{{"blk.{L}.attn_q.weight", {Dim::kQuery, Dim::kHidden}},
       {"blk.{L}.attn_k.weight", {Dim::kKeyValue, Dim::kHidden}},
       {"blk.{L}.attn_v.weight", {Dim::kKeyValue, Dim::kHidden}}}}},
    {Slot::kAttentionOutput, Where::kEveryLayer, {{{"blk.{L}.attn_output.weight", {Dim::kHidden, Dim::kAttention}}}}},
    {Slot::kMlpNorm, Where::kEveryLayer, {{{"blk.{L}.ffn_norm.weight", {Dim::kHidden}}}}},
    {Slot::kGateUp,
     Where::kEveryLayer,
     {{{"blk.{L}.ffn_gate.weight", {Dim::kFfn, Dim::kHidden}}, {"blk.{L}.ffn_up.weight", {Dim::kFfn, Dim::kHidden}}}}},
    {Slot::kDown, Where::kEveryLayer, {{{"blk.{L}.ffn_down.weight", {Dim::kHidden, Dim::kFfn}}}}},
};

const std::vector<SlotRow> kSafetensors = decoder_slots({});

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

}  // namespace

Result<Recipe> llama_gguf_recipe(const GgufFile& file) {
  const GgufKeys keys(file, "llama.");
  VAYU_RETURN_IF_ERROR(refuse_other_kinds(keys));
  Recipe recipe;
  ModelConfig& config = recipe.config;
  config.architecture = "llama";
  VAYU_RETURN_IF_ERROR(read_gguf_decoder(keys, config));
  config.rope.pairing = ops::RopePairing::kInterleaved;
  recipe.slots = kGguf;
  recipe.layers.assign(config.num_layers, {gqa_attention, dense_mlp});
  return recipe;
}

Result<Recipe> llama_recipe(const loader::JsonConfig& json) {
  Recipe recipe;
  ModelConfig& config = recipe.config;
  config.architecture = "llama";
  VAYU_RETURN_IF_ERROR(read_common(json, config));
  VAYU_RETURN_IF_ERROR(read_gqa(json, config));
  VAYU_RETURN_IF_ERROR(read_rope(json, config));
  recipe.slots = kSafetensors;
  recipe.layers.assign(config.num_layers, {gqa_attention, dense_mlp});
  return recipe;
}

}  // namespace vayu::model
