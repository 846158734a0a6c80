#include "model/weight_plan.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "base/check.h"
#include "loader/gguf.h"
#include "loader/name_pattern.h"

namespace vayu::model {
namespace {

using loader::Checkpoint;
using loader::CheckpointTensor;

std::vector<std::string_view> spellings(std::string_view names) {
  std::vector<std::string_view> out;
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find('|', at), names.size());
    out.push_back(names.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

class Planner {
 public:
  Planner(const Checkpoint& checkpoint, const Recipe& recipe) : checkpoint_(checkpoint), recipe_(recipe) {}

  Result<std::vector<Fill>> plan() {
    for (const SlotRow& row : recipe_.slots) {
      for (const int32_t layer : layers_of(row, recipe_)) VAYU_RETURN_IF_ERROR(plan_row(row, layer));
    }
    VAYU_RETURN_IF_ERROR(check_nothing_is_left());
    return std::move(fills_);
  }

 private:
  // Null when no spelling is there.
  Result<const CheckpointTensor*> find(const TensorPattern& pattern, int32_t layer, int32_t expert) const {
    const CheckpointTensor* found = nullptr;
    for (const std::string_view spelling : spellings(pattern.names)) {
      const CheckpointTensor* tensor = checkpoint_.find_tensor(tensor_name(spelling, layer, expert));
      if (tensor && found) {
        return make_error(ErrorKind::kCorrupt, "{}: tensors '{}' and '{}' are two spellings of one", checkpoint_.path(),
                          loader::printable(found->name), loader::printable(tensor->name));
      }
      if (tensor) found = tensor;
    }
    return found;
  }

  // The form whose first tensor is there. A checkpoint that has none is measured against the published one, so that the
  // error names the spelling people know.
  Result<const Form*> choose_form(const SlotRow& row, int32_t layer) const {
    for (const Form& form : row.forms) {
      for (const TensorPattern& pattern : form) {
        VAYU_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, find(pattern, layer, 0));
        if (tensor) return &form;
      }
    }
    return row.optional ? nullptr : &row.forms.front();
  }

  Status plan_row(const SlotRow& row, int32_t layer) {
    VAYU_ASSIGN_OR_RETURN(const Form* form, choose_form(row, layer));
    if (!form) return {};
    Fill fill{row.slot, layer, LatentPart::kNone, {}};
    const bool expert_slot = row.slot == Slot::kExpertGateUp || row.slot == Slot::kExpertDown;
    const int32_t experts = expert_slot ? recipe_.config.moe.router.num_experts : 1;
    std::vector<const CheckpointTensor*> stacks(form->size(), nullptr);  // the tensors that hold all experts
    for (int32_t expert = 0; expert < experts; ++expert) {
      for (size_t i = 0; i < form->size(); ++i) {
        const TensorPattern& pattern = (*form)[i];
        if (!expert_slot || is_per_expert(pattern)) {
          VAYU_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, take(pattern, layer, expert));
          fill.parts.push_back({tensor, 0, tensor->rows()});
          continue;
        }
        if (!stacks[i]) {
          VAYU_ASSIGN_OR_RETURN(stacks[i], take(pattern, layer, 0));
        }
        const int64_t rows = stacks[i]->rows() / experts;
        fill.parts.push_back({stacks[i], expert * rows, rows});
      }
    }
    if (row.slot == Slot::kLatentKv) return split_latent(fill);
    fills_.push_back(std::move(fill));
    return {};
  }

  // kv_b_proj by head: nope_dim rows that give K, then v_dim rows that give V. The absorbed form multiplies queries by
  // U_K from the other side. Where both forms are in use, the expanded one has one product for the keys and then the
  // values of all heads.
  Status split_latent(const Fill& whole) {
    const MlaConfig& mla = recipe_.config.mla;
    Fill to_k{whole.slot, whole.layer, LatentPart::kToK, {}};
    Fill to_v{whole.slot, whole.layer, mla.expands_prompts ? LatentPart::kToKv : LatentPart::kToV, {}};
    const CheckpointTensor* tensor = whole.parts.front().tensor;
    for (int64_t head = 0; head < recipe_.config.num_q_heads; ++head) {
      const int64_t first = head * (mla.nope_dim + mla.v_dim);
      to_k.parts.push_back({tensor, first, mla.nope_dim, mla.expands_prompts || mla.form != MlaForm::kExpanded});
      to_v.parts.push_back({tensor, first + mla.nope_dim, mla.v_dim});
    }
    if (mla.expands_prompts) {
      to_v.parts.insert(to_v.parts.begin(), to_k.parts.begin(), to_k.parts.end());
      for (size_t head = 0; head < to_k.parts.size(); ++head) to_v.parts[head].transposed = false;
    }
    fills_.push_back(std::move(to_k));
    fills_.push_back(std::move(to_v));
    return {};
  }

  // The tensor of a pattern, checked and marked as used.
  Result<const CheckpointTensor*> take(const TensorPattern& pattern, int32_t layer, int32_t expert) {
    VAYU_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, find(pattern, layer, expert));
    if (!tensor) {
      return make_error(ErrorKind::kCorrupt, "{}: tensor '{}' is missing", checkpoint_.path(),
                        tensor_name(spellings(pattern.names).front(), layer, expert));
    }
    std::vector<int64_t> expected;
    for (const Dim dim : pattern.shape) expected.push_back(size_of(dim, recipe_.config));
    if (tensor->shape != expected) {
      return make_error(ErrorKind::kCorrupt, "{}: tensor '{}' has shape ({}), expected ({})", checkpoint_.path(),
                        tensor->name, fmt::join(tensor->shape, ", "), fmt::join(expected, ", "));
    }
    const bool first_use = used_.insert(tensor).second;
    VAYU_CHECK(first_use, "a table names tensor '{}' twice", tensor->name);
    return tensor;
  }

  Status check_nothing_is_left() const {
    for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
      if (used_.contains(&tensor)) continue;
      if (std::find(recipe_.ignored.begin(), recipe_.ignored.end(), tensor.name) != recipe_.ignored.end()) continue;
      return make_error(ErrorKind::kUnsupported,
                        "{}: tensor '{}' is not part of architecture {} ({} tensors known, {} in the checkpoint)",
                        checkpoint_.path(), loader::printable(tensor.name), recipe_.config.architecture, used_.size(),
                        checkpoint_.tensors().size());
    }
    return {};
  }

  const Checkpoint& checkpoint_;
  const Recipe& recipe_;
  std::unordered_set<const CheckpointTensor*> used_;
  std::vector<Fill> fills_;
};

}  // namespace

int32_t gate_up_ffn(const Fill& fill, const ModelConfig& config) {
  if (fill.slot == Slot::kExpertGateUp) return config.moe.expert_ffn;
  if (fill.slot != Slot::kGateUp) return 0;
  int64_t rows = 0;
  for (const TensorRows& part : fill.parts) rows += part.out_rows();
  return static_cast<int32_t>(rows / 2);
}

Result<std::vector<Fill>> plan_weights(const Checkpoint& checkpoint, const Recipe& recipe) {
  return Planner(checkpoint, recipe).plan();
}

Status check_patterns(std::span<const std::string> patterns, const Checkpoint& checkpoint, const Recipe& recipe) {
  if (patterns.empty()) return {};
  VAYU_ASSIGN_OR_RETURN(const std::vector<Fill> fills, plan_weights(checkpoint, recipe));
  const auto matches = [&](const std::string& pattern) {
    for (const Fill& fill : fills) {
      if (is_vector(fill.slot)) continue;
      for (const TensorRows& part : fill.parts) {
        if (loader::matches_name(pattern, part.tensor->name)) return true;
      }
    }
    return false;
  };
  for (const std::string& pattern : patterns) {
    if (matches(pattern)) continue;
    return make_error(ErrorKind::kInvalidArgument, "'{}' matches no weight matrix of {}", loader::printable(pattern),
                      checkpoint.path());
  }
  return {};
}

}  // namespace vayu::model
