// Finds the pieces that a text starts with.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "core/types.h"

namespace vayu {

class ByteTrie {
 public:
  // Pieces need not be sorted; empty ones are ignored, of equal ones the last stays. Built once.
  explicit ByteTrie(std::vector<std::pair<std::string_view, TokenId>> pieces);

  static constexpr int32_t kRoot = 0;
  int32_t child(int32_t node, uint8_t byte) const {  // negative: none
    if (node == kRoot) return root_[byte];
    for (int32_t i = nodes_[node].first_child; i < nodes_[node].end_child; ++i) {
      if (nodes_[i].byte == byte) return i;
    }
    return -1;
  }
  TokenId id(int32_t node) const { return nodes_[node].id; }  // kNoToken: no piece ends here
  // Node after `text`, negative if no piece starts with it.
  int32_t walk(std::string_view text) const;

 private:
  struct Node {
    int32_t first_child = 0, end_child = 0;  // children lie side by side, in the order of their bytes
    TokenId id = kNoToken;
    uint8_t byte = 0;
  };
  std::vector<Node> nodes_;
  std::array<int32_t, 256> root_;
};

}  // namespace vayu
