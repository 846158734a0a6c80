#include "model/arch/decoder_tensors.h"

#include "model/arch/expert_tensors.h"

namespace vayu::model {
namespace {

SlotRow vector_row(Slot slot, Where where, std::string_view name, Dim size) {
  return {slot, where, {{{name, {size}}}}};
}
SlotRow matrix_row(Slot slot, Where where, std::string_view name, Dim rows, Dim cols) {
  return {slot, where, {{{name, {rows, cols}}}}};
}

}  // namespace

std::vector<SlotRow> decoder_slots(const DecoderTensors& options) {
  std::vector<SlotRow> rows = {
      matrix_row(Slot::kEmbedding, Where::kModel, "model.embed_tokens.weight", Dim::kVocab, Dim::kHidden),
      vector_row(Slot::kOutputNorm, Where::kModel, "model.norm.weight", Dim::kHidden),
      matrix_row(Slot::kHead, Where::kModel, "lm_head.weight", Dim::kVocab, Dim::kHidden),
      vector_row(Slot::kAttentionNorm, Where::kEveryLayer, "model.layers.{L}.input_layernorm.weight", Dim::kHidden),
      {Slot::kQkv,
       Where::kEveryLayer,
       {{{"model.layers.{L}.self_attn.q_proj.weight", {Dim::kQuery, Dim::kHidden}},
         {"model.layers.{L}.self_attn.k_proj.weight", {Dim::kKeyValue, Dim::kHidden}},
         {"model.layers.{L}.self_attn.v_proj.weight", {Dim::kKeyValue, Dim::kHidden}}}}},
      matrix_row(Slot::kAttentionOutput, Where::kEveryLayer, "model.layers.{L}.self_attn.o_proj.weight", Dim::kHidden,
                 Dim::kAttention),
      vector_row(Slot::kMlpNorm, Where::kEveryLayer, "model.layers.{L}.post_attention_layernorm.weight", Dim::kHidden),
      {Slot::kGateUp,
       Where::kDenseLayer,
       {{{"model.layers.{L}.mlp.gate_proj.weight", {Dim::kFfn, Dim::kHidden}},
         {"model.layers.{L}.mlp.up_proj.weight", {Dim::kFfn, Dim::kHidden}}}}},
      matrix_row(Slot::kDown, Where::kDenseLayer, "model.layers.{L}.mlp.down_proj.weight", Dim::kHidden, Dim::kFfn),
  };
  if (options.qk_norm) {
    rows.push_back(
        vector_row(Slot::kQNorm, Where::kEveryLayer, "model.layers.{L}.self_attn.q_norm.weight", Dim::kHeadDim));
    rows.push_back(
        vector_row(Slot::kKNorm, Where::kEveryLayer, "model.layers.{L}.self_attn.k_norm.weight", Dim::kHeadDim));
  }
  if (options.experts) {
    rows.push_back(
        matrix_row(Slot::kRouter, Where::kMoeLayer, "model.layers.{L}.mlp.gate.weight", Dim::kExperts, Dim::kHidden));
    rows.push_back({Slot::kExpertGateUp, Where::kMoeLayer, expert_gate_up_forms()});
    rows.push_back({Slot::kExpertDown, Where::kMoeLayer, expert_down_forms()});
  }
  return rows;
}

}  // namespace vayu::model
