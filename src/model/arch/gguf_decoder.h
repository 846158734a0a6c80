// What the GGUF metadata of every decoder with grouped-query attention shares.
#pragma once

#include "model/arch/gguf_keys.h"
#include "model/config.h"

namespace vayu::model {

// Name, sizes, RoPE with its scaling, context, vocabulary, and whether the head is tied (no output.weight). Leaves the
// pairing of RoPE to the architecture. Errors name the file and the key.
Status read_gguf_decoder(const GgufKeys& keys, ModelConfig& config);

}  // namespace vayu::model
