// Which tokens end a turn or a text.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "core/types.h"

namespace vayu {

// The declared ends and every marker whose text is one of the well-known ends (</s>, <|im_end|>, <|end_of_turn|>, ...;
// list in end_markers.cc), sorted. Files often declare only one of theirs, and a model that answers with another would
// never stop.
std::vector<TokenId> union_of_ends(std::vector<TokenId> declared,
                                   const std::vector<std::pair<TokenId, std::string_view>>& markers);

}  // namespace vayu
