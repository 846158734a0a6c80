// Sarvam-30B: GQA with QK-norm, a dense first layer, then experts behind a sigmoid router with a selection bias, and
// one shared expert. From safetensors under all published names, and from GGUF, where llama.cpp calls the family
// bailingmoe2.
#include <algorithm>
#include <string>

#include "loader/gguf_writer.h"
#include "model/arch/architectures.h"
#include "model/arch/config_keys.h"
#include "model/arch/expert_tensors.h"
#include "model/arch/gguf_decoder.h"
#include "model/arch/gguf_keys.h"
#include "model/blocks/dense_mlp.h"
#include "model/blocks/gqa_attention.h"
#include "model/blocks/moe_mlp.h"

namespace vayu::model {
namespace {

using loader::GgufFile;
using loader::JsonConfig;

const SlotRow kSafetensors[] = {
    {Slot::kEmbedding,
     Where::kModel,
     {{{"model.word_embeddings.weight|model.embed_tokens.weight", {Dim::kVocab, Dim::kHidden}}}}},
    {Slot::kOutputNorm, Where::kModel, {{{"model.norm.weight", {Dim::kHidden}}}}},
    {Slot::kHead, Where::kModel, {{{"lm_head.weight", {Dim::kVocab, Dim::kHidden}}}}},
    {Slot::kAttentionNorm, Where::kEveryLayer, {{{"model.layers.{L}.input_layernorm.weight", {Dim::kHidden}}}}},
    {Slot::kQkv,
     Where::kEveryLayer,
     {{{"model.layers.{L}.attention.query_key_value.weight|model.layers.{L}.self_attn.c_attn.weight",
        {Dim::kQkv, Dim::kHidden}}},
      {{"model.layers.{L}.self_attn.q_proj.weight", {Dim::kQuery, Dim::kHidden}},
       {"model.layers.{L}.self_attn.k_proj.weight", {Dim::kKeyValue, Dim::kHidden}},
       {"model.layers.{L}.self_attn.v_proj.weight", {Dim::kKeyValue, Dim::kHidden}}}}},
    {Slot::kQNorm,
     Where::kEveryLayer,
     {{{"model.layers.{L}.attention.query_layernorm.weight|model.layers.{L}.self_attn.q_norm.weight",
        {Dim::kHeadDim}}}}},
    {Slot::kKNorm,
     Where::kEveryLayer,
     {{{"model.layers.{L}.attention.key_layernorm.weight|model.layers.{L}.self_attn.k_norm.weight", {Dim::kHeadDim}}}}},
    {Slot::kAttentionOutput,
     Where::kEveryLayer,
     {{{"model.layers.{L}.attention.dense.weight|model.layers.{L}.self_attn.o_proj.weight",
        {Dim::kHidden, Dim::kAttention}}}}},
    {Slot::kMlpNorm, Where::kEveryLayer, {{{"model.layers.{L}.post_attention_layernorm.weight", {Dim::kHidden}}}}},
    {Slot::kGateUp,
     Where::kDenseLayer,
     {{{"model.layers.{L}.mlp.gate_proj.weight", {Dim::kFfn, Dim::kHidden}},
       {"model.layers.{L}.mlp.up_proj.weight", {Dim::kFfn, Dim::kHidden}}}}},
    {Slot::kDown, Where::kDenseLayer, {{{"model.layers.{L}.mlp.down_proj.weight", {Dim::kHidden, Dim::kFfn}}}}},
    {Slot::kRouter, Where::kMoeLayer, {{{"model.layers.{L}.mlp.gate.weight", {Dim::kExperts, Dim::kHidden}}}}},
    {Slot::kRouterBias, Where::kMoeLayer, router_bias_forms()},
    {Slot::kExpertGateUp, Where::kMoeLayer, expert_gate_up_forms()},
    {Slot::kExpertDown, Where::kMoeLayer, expert_down_forms()},
    {Slot::kGateUp, Where::kMoeLayer, shared_gate_up_forms()},
    {Slot::kDown, Where::kMoeLayer, shared_down_forms()},
};

// Q and K rows are not permuted in these files; the converter subtracts the mean of the bias, which changes no choice.
const SlotRow kGguf[] = {
    {Slot::kEmbedding, Where::kModel, {{{"token_embd.weight", {Dim::kVocab, Dim::kHidden}}}}},
    {Slot::kOutputNorm, Where::kModel, {{{"output_norm.weight", {Dim::kHidden}}}}},
    {Slot::kHead, Where::kModel, {{{"output.weight", {Dim::kVocab, Dim::kHidden}}}}},
    {Slot::kAttentionNorm, Where::kEveryLayer, {{{"blk.{L}.attn_norm.weight", {Dim::kHidden}}}}},
    {Slot::kQkv,
     Where::kEveryLayer,
     {{{"blk.{L}.attn_qkv.weight", {Dim::kQkv, Dim::kHidden}}},
      {{"blk.{L}.attn_q.weight", {Dim::kQuery, Dim::kHidden}},
       {"blk.{L}.attn_k.weight", {Dim::kKeyValue, Dim::kHidden}},
       {"blk.{L}.attn_v.weight", {Dim::kKeyValue, Dim::kHidden}}}}},
    {Slot::kQNorm, Where::kEveryLayer, {{{"blk.{L}.attn_q_norm.weight", {Dim::kHeadDim}}}}},
    {Slot::kKNorm, Where::kEveryLayer, {{{"blk.{L}.attn_k_norm.weight", {Dim::kHeadDim}}}}},
    {Slot::kAttentionOutput, Where::kEveryLayer, {{{"blk.{L}.attn_output.weight", {Dim::kHidden, Dim::kAttention}}}}},
    {Slot::kMlpNorm, Where::kEveryLayer, {{{"blk.{L}.ffn_norm.weight", {Dim::kHidden}}}}},
    {Slot::kGateUp,
     Where::kDenseLayer,
     {{{"blk.{L}.ffn_gate.weight", {Dim::kFfn, Dim::kHidden}}, {"blk.{L}.ffn_up.weight", {Dim::kFfn, Dim::kHidden}}}}},
    {Slot::kDown, Where::kDenseLayer, {{{"blk.{L}.ffn_down.weight", {Dim::kHidden, Dim::kFfn}}}}},
    {Slot::kRouter, Where::kMoeLayer, {{{"blk.{L}.ffn_gate_inp.weight", {Dim::kExperts, Dim::kHidden}}}}},
    {Slot::kRouterBias, Where::kMoeLayer, {{{"blk.{L}.exp_probs_b.bias|blk.{L}.exp_probs_b", {Dim::kExperts}}}}},
    {Slot::kExpertGateUp,
     Where::kMoeLayer,
     {{{"blk.{L}.ffn_gate_exps.weight", {Dim::kExperts, Dim::kExpertFfn, Dim::kHidden}},
       {"blk.{L}.ffn_up_exps.weight", {Dim::kExperts, Dim::kExpertFfn, Dim::kHidden}}}}},
    {Slot::kExpertDown,
     Where::kMoeLayer,
     {{{"blk.{L}.ffn_down_exps.weight", {Dim::kExperts, Dim::kHidden, Dim::kExpertFfn}}}}},
    {Slot::kGateUp,
     Where::kMoeLayer,
     {{{"blk.{L}.ffn_gate_shexp.weight", {Dim::kSharedFfn, Dim::kHidden}},
       {"blk.{L}.ffn_up_shexp.weight", {Dim::kSharedFfn, Dim::kHidden}}}}},
    {Slot::kDown, Where::kMoeLayer, {{{"blk.{L}.ffn_down_shexp.weight", {Dim::kHidden, Dim::kSharedFfn}}}}},
};

constexpr int32_t kSigmoidGating = 2;  // expert_gating_func

void write_gguf_keys(const Recipe& recipe, loader::GgufWriter& writer) {
  const ModelConfig& config = recipe.config;
  const ops::RouterShape& router = config.moe.router;
  const auto dense = std::count_if(recipe.layers.begin(), recipe.layers.end(), [](const auto& l) { return !l.moe; });
  const std::pair<const char*, int64_t> integers[] = {
      {"block_count", config.num_layers},
      {"context_length", config.max_context},
      {"embedding_length", config.hidden},
      {"feed_forward_length", config.ffn},
      {"attention.head_count", config.num_q_heads},
      {"attention.head_count_kv", config.num_kv_heads},
      {"attention.key_length", config.head_dim},
      {"attention.value_length", config.head_dim},
      {"rope.dimension_count", config.rope.rotary_dim},
      {"vocab_size", config.vocab_size},
      {"leading_dense_block_count", dense},
      {"expert_count", router.num_experts},
      {"expert_used_count", router.top_k},
      {"expert_feed_forward_length", config.moe.expert_ffn},
      {"expert_shared_feed_forward_length", config.moe.shared_ffn},
      {"expert_shared_count", 1},
      {"expert_gating_func", kSigmoidGating},
      {"expert_group_count", router.num_groups},
      {"expert_group_used_count", router.groups_kept},
  };
  const auto key = [](const char* name) { return std::string("bailingmoe2.") + name; };
  for (const auto& [name, value] : integers) writer.add_u32(key(name), static_cast<uint32_t>(value));
  writer.add_f32(key("attention.layer_norm_rms_epsilon"), config.norm_eps);
  writer.add_f32(key("rope.freq_base"), static_cast<float>(config.rope.base));
  writer.add_f32(key("expert_weights_scale"), router.scale);
  writer.add_bool(key("expert_weights_norm"), router.normalize);
}

const GgufExport kGgufExport = {"bailingmoe2", kGguf, write_gguf_keys};

std::vector<LayerRecipe> layers_with_experts(int32_t num_layers, int32_t num_dense) {
  std::vector<LayerRecipe> layers(num_layers, {gqa_attention, moe_mlp, true});
  std::fill_n(layers.begin(), std::min(num_dense, num_layers), LayerRecipe{gqa_attention, dense_mlp, false});
  return layers;
}

Status read_gguf_shape(const GgufKeys& keys, ModelConfig& config) {
  VAYU_RETURN_IF_ERROR(read_gguf_decoder(keys, config));
  config.qk_norm = true;
  ops::RouterShape& router = config.moe.router;
  router.hidden = config.hidden;
  VAYU_ASSIGN_OR_RETURN(router.num_experts, keys.integer("expert_count", 1, 65536));
  VAYU_ASSIGN_OR_RETURN(router.top_k, keys.integer("expert_used_count", 1, router.num_experts));
  VAYU_ASSIGN_OR_RETURN(config.moe.expert_ffn, keys.integer("expert_feed_forward_length", 1, 1 << 20));
  VAYU_ASSIGN_OR_RETURN(const int32_t shared, keys.integer_or("expert_shared_count", 1, 1, 64));
  VAYU_ASSIGN_OR_RETURN(const int32_t shared_width,
                        keys.integer_or("expert_shared_feed_forward_length", config.moe.expert_ffn, 1, 1 << 20));
  config.moe.shared_ffn = shared * shared_width;
  VAYU_ASSIGN_OR_RETURN(router.num_groups, keys.integer_or("expert_group_count", 1, 1, router.num_experts));
  VAYU_ASSIGN_OR_RETURN(router.groups_kept,
                        keys.integer_or("expert_group_used_count", router.num_groups, 1, router.num_groups));
  VAYU_ASSIGN_OR_RETURN(const double scale, keys.number_or("expert_weights_scale", 1.0));
  router.scale = static_cast<float>(scale);
  VAYU_ASSIGN_OR_RETURN(router.normalize, keys.boolean_or("expert_weights_norm", true));
  VAYU_ASSIGN_OR_RETURN(const int32_t gating, keys.integer_or("expert_gating_func", kSigmoidGating, 0, 255));
  if (gating != kSigmoidGating) return keys.unsupported("expert_gating_func", fmt::format("{}, not sigmoid", gating));
  const Status usable = check_router(router);
  return usable.ok() ? usable : make_error(usable.error().kind, "{}: {}", keys.file().path(), usable.error().message);
}

}  // namespace

Result<Recipe> sarvam_moe_recipe(const JsonConfig& json) {
  Recipe recipe;
  ModelConfig& config = recipe.config;
  config.architecture = "sarvam_moe";
  VAYU_RETURN_IF_ERROR(read_common(json, config));
  VAYU_RETURN_IF_ERROR(read_gqa(json, config));
  VAYU_RETURN_IF_ERROR(read_rope(json, config));
  VAYU_RETURN_IF_ERROR(read_experts(json, config));
  VAYU_RETURN_IF_ERROR(read_shared_experts(json, config));
  VAYU_RETURN_IF_ERROR(expect_flag(json, "use_qk_norm", true));
  VAYU_RETURN_IF_ERROR(expect_text(json, "score_function", "sigmoid"));
  VAYU_RETURN_IF_ERROR(expect_flag(json, "moe_router_enable_expert_bias", true));
  config.qk_norm = true;
  VAYU_ASSIGN_OR_RETURN(const int32_t dense, json.integer_or("first_k_dense_replace", 1, 0, config.num_layers));
  recipe.slots = kSafetensors;
  recipe.gguf = &kGgufExport;
  recipe.layers = layers_with_experts(config.num_layers, dense);
  return recipe;
}

Result<Recipe> sarvam_moe_gguf_recipe(const GgufFile& file) {
  VAYU_ASSIGN_OR_RETURN(const std::string prefix, file.get_string("general.architecture"));
  const GgufKeys keys(file, prefix + ".");
  Recipe recipe;
  ModelConfig& config = recipe.config;
  config.architecture = "sarvam_moe";
  VAYU_RETURN_IF_ERROR(read_gguf_shape(keys, config));
  VAYU_ASSIGN_OR_RETURN(const int32_t more, keys.integer_or("nextn_predict_layers", 0, 0, 1024));
  if (more != 0) return keys.unsupported("nextn_predict_layers", "extra prediction layers are not supported");
  VAYU_ASSIGN_OR_RETURN(const int32_t dense, keys.integer_or("leading_dense_block_count", 1, 0, config.num_layers));
  recipe.slots = kGguf;
  recipe.layers = layers_with_experts(config.num_layers, dense);
  return recipe;
}

}  // namespace vayu::model
