// Sarvam-105B: multi-head latent attention with YaRN, a dense first layer, then experts behind a sigmoid router with a
// selection bias, and one shared expert.
#include <algorithm>
#include <cmath>

#include "model/arch/architectures.h"
#include "model/arch/config_keys.h"
#include "model/arch/expert_tensors.h"
#include "model/blocks/dense_mlp.h"
#include "model/blocks/mla_attention.h"
#include "model/blocks/moe_mlp.h"
#include "model/rope_frequencies.h"

namespace vayu::model {
namespace {

using loader::JsonConfig;

const SlotRow kSafetensors[] = {
    {Slot::kEmbedding,
     Where::kModel,
     {{{"model.embed_tokens.weight|model.word_embeddings.weight", {Dim::kVocab, Dim::kHidden}}}}},
    {Slot::kOutputNorm, Where::kModel, {{{"model.norm.weight", {Dim::kHidden}}}}},
    {Slot::kHead, Where::kModel, {{{"lm_head.weight", {Dim::kVocab, Dim::kHidden}}}}},
    {Slot::kAttentionNorm, Where::kEveryLayer, {{{"model.layers.{L}.input_layernorm.weight", {Dim::kHidden}}}}},
    {Slot::kQkv,
     Where::kEveryLayer,
     {{{"model.layers.{L}.self_attn.q_proj.weight", {Dim::kQuery, Dim::kHidden}},
       {"model.layers.{L}.self_attn.kv_a_proj_with_mqa.weight", {Dim::kLatentKey, Dim::kHidden}}}}},
    {Slot::kLatentNorm, Where::kEveryLayer, {{{"model.layers.{L}.self_attn.kv_a_layernorm.weight", {Dim::kLatent}}}}},
    {Slot::kLatentKv,
     Where::kEveryLayer,
     {{{"model.layers.{L}.self_attn.kv_b_proj.weight", {Dim::kLatentKv, Dim::kLatent}}}}},
    {Slot::kAttentionOutput,
     Where::kEveryLayer,
     {{{"model.layers.{L}.self_attn.o_proj.weight", {Dim::kHidden, Dim::kAttention}}}}},
    {Slot::kMlpNorm, Where::kEveryLayer, {{{"model.layers.{L}.post_attention_layernorm.weight", {Dim::kHidden}}}}},
    {Slot::kGateUp,
     Where::kDenseLayer,
     {{{"model.layers.{L}.mlp.gate_proj.weight", {Dim::kFfn, Dim::kHidden}},
       {"model.layers.{L}.mlp.up_proj.weight", {Dim::kFfn, Dim::kHidden}}}}},
    {Slot::kDown, Where::kDenseLayer, {{{"model.layers.{L}.mlp.down_proj.weight", {Dim::kHidden, Dim::kFfn}}}}},
    {Slot::kRouter, Where::kMoeLayer, {{{"model.layers.{L}.mlp.gate.weight", {Dim::kExperts, Dim::kHidden}}}}},
    {Slot::kRouterBias,
     Where::kMoeLayer,
     {{{"model.layers.{L}.mlp.gate.e_score_correction_bias|model.layers.{L}.mlp.gate.expert_bias|"
        "model.layers.{L}.mlp.e_score_correction_bias",
        {Dim::kExperts}}}}},
    {Slot::kExpertGateUp, Where::kMoeLayer, expert_gate_up_forms()},
    {Slot::kExpertDown, Where::kMoeLayer, expert_down_forms()},
    {Slot::kGateUp, Where::kMoeLayer, shared_gate_up_forms()},
    {Slot::kDown, Where::kMoeLayer, shared_down_forms()},
};

// The published file has these values; the config class puts them in when the file has none.
void set_default_yarn(RopeConfig& rope) {
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 40;
  rope.original_context = 4096;
  rope.mscale = rope.mscale_all_dim = 1;
}

Status read_mla(const JsonConfig& json, ModelConfig& config) {
  MlaConfig& mla = config.mla;
  if (json.has("q_lora_rank")) return json.unsupported("q_lora_rank", "a low-rank query projection is not supported");
  VAYU_ASSIGN_OR_RETURN(mla.latent_dim, json.integer("kv_lora_rank", 1, 4096));
  VAYU_ASSIGN_OR_RETURN(mla.nope_dim, json.integer("qk_nope_head_dim", 1, 4096));
  VAYU_ASSIGN_OR_RETURN(mla.rope_dim, json.integer("qk_rope_head_dim", 2, 4096));
  VAYU_ASSIGN_OR_RETURN(mla.v_dim, json.integer("v_head_dim", 1, 4096));
  if (mla.rope_dim % 2 != 0) return json.corrupt("qk_rope_head_dim", fmt::format("{} is odd", mla.rope_dim));
  config.num_kv_heads = 1;
  config.head_dim = mla.latent_dim + mla.rope_dim;  // of the cache; no head has this size
  config.rope.rotary_dim = mla.rope_dim;
  config.rope.pairing = ops::RopePairing::kInterleaved;
  return {};
}

Status read_scaled_rope(const JsonConfig& json, ModelConfig& config) {
  VAYU_RETURN_IF_ERROR(read_rope(json, config));
  if (!json.has("rope_scaling") && !json.has("rope_parameters")) set_default_yarn(config.rope);
  // The stated length is the one after scaling.
  VAYU_ASSIGN_OR_RETURN(config.max_context, json.integer("max_position_embeddings", 1, 1 << 24));
  const RopeConfig& rope = config.rope;
  const bool sharper = rope.scaling == RopeScaling::kYarn && rope.mscale_all_dim != 0;
  const double m = sharper ? yarn_mscale(rope.factor, rope.mscale_all_dim) : 1.0;
  config.attention_scale =
      static_cast<float>(m * m / std::sqrt(static_cast<double>(config.mla.nope_dim + config.mla.rope_dim)));
  return {};
}

}  // namespace

Result<Recipe> sarvam_mla_recipe(const JsonConfig& json) {
  Recipe recipe;
  ModelConfig& config = recipe.config;
  config.architecture = "sarvam_mla";
  VAYU_RETURN_IF_ERROR(read_common(json, config));
  VAYU_RETURN_IF_ERROR(read_mla(json, config));
  VAYU_RETURN_IF_ERROR(read_scaled_rope(json, config));
  VAYU_RETURN_IF_ERROR(read_experts(json, config));
  VAYU_RETURN_IF_ERROR(read_shared_experts(json, config));
  VAYU_RETURN_IF_ERROR(expect_flag(json, "moe_router_enable_expert_bias", true));
  VAYU_ASSIGN_OR_RETURN(const int32_t dense, json.integer_or("first_k_dense_replace", 1, 0, config.num_layers));
  recipe.slots = kSafetensors;
  recipe.layers.assign(config.num_layers, {mla_attention, moe_mlp, true});
  std::fill_n(recipe.layers.begin(), dense, LayerRecipe{mla_attention, dense_mlp, false});
  return recipe;
}

}  // namespace vayu::model
