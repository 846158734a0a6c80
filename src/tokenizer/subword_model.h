// The step of a tokenizer that turns one word into tokens.
#pragma once

#include <string_view>
#include <vector>

#include "core/types.h"

namespace vayu {

class SubwordModel {
 public:
  virtual ~SubwordModel() = default;
  // Appends the ids of a word, which is not empty; the word may hold invalid UTF-8. Thread-safe.
  virtual void encode(std::string_view word, std::vector<TokenId>& ids) const = 0;
};

}  // namespace vayu
