#include "tokenizer/pipeline/byte_trie.h"

#include <algorithm>
#include <deque>

namespace vayu {

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, TokenId>> pieces) : nodes_(1) {
  std::ranges::stable_sort(pieces, {}, [](const auto& piece) { return piece.first; });
  root_.fill(-1);
  // Breadth first: a node's pieces are a range of the sorted list, and its children split that range by their next
  // byte.
  struct Open {
    int32_t node;
    size_t begin, end, depth;
  };
  std::deque<Open> queue = {{kRoot, 0, pieces.size(), 0}};
  while (!queue.empty()) {
    auto [node, begin, end, depth] = queue.front();
    queue.pop_front();
    for (; begin < end && pieces[begin].first.size() == depth; ++begin) {
      if (depth > 0) nodes_[node].id = pieces[begin].second;
    }
    nodes_[node].first_child = static_cast<int32_t>(nodes_.size());
    while (begin < end) {
      const char byte = pieces[begin].first[depth];
      const size_t start = begin;
      while (begin < end && pieces[begin].first[depth] == byte) ++begin;
      const int32_t next = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({0, 0, kNoToken, static_cast<uint8_t>(byte)});
      if (node == kRoot) root_[static_cast<uint8_t>(byte)] = next;
      queue.push_back({next, start, begin, depth + 1});
    }
    nodes_[node].end_child = static_cast<int32_t>(nodes_.size());
  }
}

int32_t ByteTrie::walk(std::string_view text) const {
  int32_t node = kRoot;
  for (const char c : text) {
    node = child(node, static_cast<uint8_t>(c));
    if (node < 0) return -1;
  }
  return node;
}

}  // namespace vayu
