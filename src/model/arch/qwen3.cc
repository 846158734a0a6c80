// Qwen3: GQA with QK-norm and a head size of its own, SwiGLU, tied or separate head.
#include "model/arch/architectures.h"
#include "model/arch/config_keys.h"
#include "model/arch/decoder_tensors.h"
#include "model/blocks/dense_mlp.h"
#include "model/blocks/gqa_attention.h"

namespace vayu::model {
namespace {

const std::vector<SlotRow> kSafetensors = decoder_slots({.qk_norm = true});

}  // namespace

Result<Recipe> qwen3_recipe(const loader::JsonConfig& json) {
  Recipe recipe;
  ModelConfig& config = recipe.config;
  config.architecture = "qwen3";
  VAYU_RETURN_IF_ERROR(read_common(json, config));
  VAYU_RETURN_IF_ERROR(read_gqa(json, config));
  VAYU_RETURN_IF_ERROR(read_rope(json, config));
  config.qk_norm = true;
  recipe.slots = kSafetensors;
  recipe.layers.assign(config.num_layers, {gqa_attention, dense_mlp});
  return recipe;
}

}  // namespace vayu::model
