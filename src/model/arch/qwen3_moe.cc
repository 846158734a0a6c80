// Qwen3-MoE: Qwen3's attention, experts behind a softmax router without bias, no shared expert.
#include <algorithm>

#include "model/arch/architectures.h"
#include "model/arch/config_keys.h"
#include "model/arch/decoder_tensors.h"
#include "model/blocks/dense_mlp.h"
#include "model/blocks/gqa_attention.h"
#include "model/blocks/moe_mlp.h"

namespace vayu::model {
namespace {

const std::vector<SlotRow> kSafetensors = decoder_slots({.qk_norm = true, .experts = true});

}  // namespace

Result<Recipe> qwen3_moe_recipe(const loader::JsonConfig& json) {
  Recipe recipe;
  ModelConfig& config = recipe.config;
  config.architecture = "qwen3_moe";
  VAYU_RETURN_IF_ERROR(read_common(json, config));
  VAYU_RETURN_IF_ERROR(read_gqa(json, config));
  VAYU_RETURN_IF_ERROR(read_rope(json, config));
  VAYU_RETURN_IF_ERROR(read_experts(json, config));
  config.qk_norm = true;
  config.moe.router.score = ops::RouterScore::kSoftmax;
  VAYU_ASSIGN_OR_RETURN(config.moe.router.normalize, json.boolean_or("norm_topk_prob", false));
  VAYU_ASSIGN_OR_RETURN(const int32_t every, json.integer_or("decoder_sparse_step", 1, 1, config.num_layers));
  VAYU_ASSIGN_OR_RETURN(const std::vector<int32_t> dense, json.integers_or_empty("mlp_only_layers"));
  recipe.slots = kSafetensors;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const bool moe = (layer + 1) % every == 0 && std::find(dense.begin(), dense.end(), layer) == dense.end();
    recipe.layers.push_back({gqa_attention, moe ? moe_mlp : dense_mlp, moe});
  }
  return recipe;
}

}  // namespace vayu::model
