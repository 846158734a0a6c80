// The tensor table that Llama-shaped decoders share on the Hugging Face hub.
#pragma once

#include <vector>

#include "model/recipe.h"

namespace vayu::model {

struct DecoderTensors {
  bool qk_norm = false;
  bool experts = false;  // some layers have routed experts in place of the dense MLP
};

// The head is optional: absent when the checkpoint ties it to the embedding.
std::vector<SlotRow> decoder_slots(const DecoderTensors& options);

}  // namespace vayu::model
