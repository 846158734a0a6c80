// Names of tensors as flags give them.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace vayu::loader {

// '*' stands for any run of characters, dots too. A pattern that leaves out a trailing ".weight" means that as well:
// "lm_head", "blk.*.attn_q", "model.layers.0.*".
bool matches_name(std::string_view pattern, std::string_view tensor_name);
bool matches_any(std::span<const std::string> patterns, std::string_view tensor_name);

}  // namespace vayu::loader
