#include "tokenizer/end_markers.h"

#include <algorithm>

namespace vayu {
namespace {

constexpr std::string_view kWellKnownEnds[] = {
    "</s>",
    "<eos>",
    "[EOS]",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|return|>",
    "<|call|>",
    "<|EOT|>",
    "<|end_of_turn|>",
    "<|eot|>",
    "<EOT>",
    "<|user_end|>",
    "[|endofturn|]",
    "<turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
};

}  // namespace

std::vector<TokenId> union_of_ends(std::vector<TokenId> declared,
                                   const std::vector<std::pair<TokenId, std::string_view>>& markers) {
  // In formats with <|return|>, <|end|> closes a message inside an answer, not the answer, unless the file says so.
  const bool has_return =
      std::ranges::any_of(markers, [](const auto& marker) { return marker.second == "<|return|>"; });
  for (const auto& [id, text] : markers) {
    if (has_return && text == "<|end|>") continue;
    if (std::ranges::find(kWellKnownEnds, text) != std::end(kWellKnownEnds)) declared.push_back(id);
  }
  std::ranges::sort(declared);
  declared.erase(std::unique(declared.begin(), declared.end()), declared.end());
  return declared;
}

}  // namespace vayu
