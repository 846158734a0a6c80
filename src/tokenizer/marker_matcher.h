// Finds whole special tokens in text: a byte trie walked from each position where one can start.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/types.h"

namespace vayu {

class MarkerMatcher {
 public:
  struct Match {
    TokenId id = kNoToken;  // kNoToken: none
    size_t length = 0;      // bytes
  };

  MarkerMatcher();
  // `always`: recognised in any text; else only where `scope` allows. An empty marker is ignored.
  void add(std::string_view marker, TokenId id, bool always);

  // Which bytes of a text may form the markers that are not `always` ones.
  struct Scope {
    bool all = false;
    std::span<const uint8_t> trusted;  // with all false: a byte that is there and not 0 may
    bool allows(size_t pos) const { return all || (pos < trusted.size() && trusted[pos] != 0); }
  };

  // Longest allowed marker that starts at text[pos].
  Match longest_at(std::string_view text, size_t pos, const Scope& scope) const;
  // First position at or after pos where a marker may start, or text.size(); one byte a look-up.
  size_t next_candidate(std::string_view text, size_t pos) const;
  TokenId find_whole(std::string_view marker) const;
  bool empty() const { return nodes_.size() == 1; }

 private:
  // Children are a list: vocabularies have few markers, and a 256-way table a node would be megabytes.
  struct Node {
    TokenId id = kNoToken;
    bool always = false;
    uint8_t byte = 0;
    int32_t first_child = -1, next_sibling = -1;
  };
  int32_t child(int32_t node, uint8_t byte) const;

  std::vector<Node> nodes_;  // [0] is the root
  std::array<bool, 256> starts_{};
};

}  // namespace vayu
