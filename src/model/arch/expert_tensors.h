// How checkpoints store routed experts, the shared expert and the selection bias: the same in every family that has
// them.
#pragma once

#include <vector>

#include "model/recipe.h"

namespace vayu::model {

// One tensor an expert; stacks of all experts, apart or gate over up in one.
std::vector<Form> expert_gate_up_forms();
std::vector<Form> expert_down_forms();
std::vector<Form> router_bias_forms();
std::vector<Form> shared_gate_up_forms();
std::vector<Form> shared_down_forms();

}  // namespace vayu::model
