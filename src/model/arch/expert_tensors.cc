#include "model/arch/expert_tensors.h"

namespace vayu::model {

std::vector<Form> expert_gate_up_forms() {
  const std::vector<Dim> one = {Dim::kExpertFfn, Dim::kHidden};
  const std::vector<Dim> stack = {Dim::kExperts, Dim::kExpertFfn, Dim::kHidden};
  return {
      {{"model.layers.{L}.mlp.experts.{E}.gate_proj.weight", one},
       {"model.layers.{L}.mlp.experts.{E}.up_proj.weight", one}},
      {{"model.layers.{L}.mlp.experts.gate_up_proj|model.layers.{L}.mlp.experts.gate_up_proj.weight",
        {Dim::kExperts, Dim::kExpertGateUp, Dim::kHidden}}},
      {{"model.layers.{L}.mlp.experts.gate_proj.weight|model.layers.{L}.mlp.switch_mlp.gate_proj.weight|"
        "model.layers.{L}.mlp.experts.gate_proj",
        stack},
       {"model.layers.{L}.mlp.experts.up_proj.weight|model.layers.{L}.mlp.switch_mlp.up_proj.weight|"
        "model.layers.{L}.mlp.experts.up_proj",
        stack}},
  };
}

std::vector<Form> expert_down_forms() {
  return {
      {{"model.layers.{L}.mlp.experts.{E}.down_proj.weight", {Dim::kHidden, Dim::kExpertFfn}}},
      {{"model.layers.{L}.mlp.experts.down_proj|model.layers.{L}.mlp.experts.down_proj.weight|"
        "model.layers.{L}.mlp.switch_mlp.down_proj.weight",
        {Dim::kExperts, Dim::kHidden, Dim::kExpertFfn}}},
  };
}

std::vector<Form> router_bias_forms() {
  return {
      {{"model.layers.{L}.mlp.gate.expert_bias|model.layers.{L}.mlp.gate.e_score_correction_bias|"
        "model.layers.{L}.mlp.e_score_correction_bias",
        {Dim::kExperts}}}};
}

std::vector<Form> shared_gate_up_forms() {
  return {{{"model.layers.{L}.mlp.shared_experts.gate_proj.weight|model.layers.{L}.mlp.shared_expert.gate_proj.weight",
            {Dim::kSharedFfn, Dim::kHidden}},
           {"model.layers.{L}.mlp.shared_experts.up_proj.weight|model.layers.{L}.mlp.shared_expert.up_proj.weight",
            {Dim::kSharedFfn, Dim::kHidden}}}};
}

std::vector<Form> shared_down_forms() {
  return {{{"model.layers.{L}.mlp.shared_experts.down_proj.weight|model.layers.{L}.mlp.shared_expert.down_proj.weight",
            {Dim::kHidden, Dim::kSharedFfn}}}};
}

}  // namespace vayu::model
