#include "model/recipe.h"

#include <string>

namespace vayu::model {

bool is_vector(Slot slot) {
  switch (slot) {
    case Slot::kOutputNorm:
    case Slot::kRopeFactors:
    case Slot::kAttentionNorm:
    case Slot::kQNorm:
    case Slot::kKNorm:
    case Slot::kLatentNorm:
    case Slot::kMlpNorm:
    case Slot::kRouter:
    case Slot::kRouterBias:
      return true;
    default:
      return false;
  }
}

int64_t size_of(Dim dim, const ModelConfig& config) {
  switch (dim) {
    case Dim::kHidden:
      return config.hidden;
    case Dim::kVocab:
      return config.vocab_size;
    case Dim::kQuery:
      return config.q_width();
    case Dim::kKeyValue:
      return config.kv_width();
    case Dim::kQkv:
      return config.qkv_width();
    case Dim::kHeadDim:
      return config.head_dim;
    case Dim::kAttention:
      return config.attention_width();
    case Dim::kLatent:
      return config.mla.latent_dim;
    case Dim::kLatentKey:
      return config.mla.latent_dim + config.mla.rope_dim;
    case Dim::kLatentKv:
      return int64_t{config.num_q_heads} * (config.mla.nope_dim + config.mla.v_dim);
    case Dim::kFfn:
      return config.ffn;
    case Dim::kSharedFfn:
      return config.moe.shared_ffn;
    case Dim::kExpertFfn:
      return config.moe.expert_ffn;
    case Dim::kExpertGateUp:
      return int64_t{2} * config.moe.expert_ffn;
    case Dim::kExperts:
      return config.moe.router.num_experts;
    case Dim::kRotaryHalf:
      return config.rope.rotary_dim / 2;
  }
  return 0;
}

std::string tensor_name(std::string_view spelling, int32_t layer, int32_t expert) {
  std::string name(spelling);
  for (const auto& [mark, number] : {std::pair{"{L}", layer}, std::pair{"{E}", expert}}) {
    const size_t at = name.find(mark);
    if (at != std::string::npos) name.replace(at, 3, std::to_string(number));
  }
  return name;
}

std::vector<int32_t> layers_of(const SlotRow& row, const Recipe& recipe) {
  if (row.slot == Slot::kHead && recipe.config.tied_head) return {};
  if (row.where == Where::kModel) return {-1};
  std::vector<int32_t> layers;
  for (int32_t layer = 0; layer < recipe.config.num_layers; ++layer) {
    const bool moe = recipe.layers[layer].moe;
    if (row.where == Where::kEveryLayer || moe == (row.where == Where::kMoeLayer)) layers.push_back(layer);
  }
  return layers;
}

bool is_per_expert(const TensorPattern& pattern) { return pattern.names.find("{E}") != std::string_view::npos; }

}  // namespace vayu::model
