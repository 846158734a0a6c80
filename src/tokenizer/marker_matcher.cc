#include "tokenizer/marker_matcher.h"

namespace vayu {

MarkerMatcher::MarkerMatcher() : nodes_(1) {}

int32_t MarkerMatcher::child(int32_t node, uint8_t byte) const {
  int32_t i = nodes_[node].first_child;
  while (i >= 0 && nodes_[i].byte != byte) i = nodes_[i].next_sibling;
  return i;
}

void MarkerMatcher::add(std::string_view marker, TokenId id, bool always) {
  if (marker.empty()) return;
  starts_[static_cast<uint8_t>(marker.front())] = true;
  int32_t node = 0;
  for (const char c : marker) {
    const uint8_t byte = static_cast<uint8_t>(c);
    int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({kNoToken, false, byte, -1, nodes_[node].first_child});
      nodes_[node].first_child = next;
    }
    node = next;
  }
  nodes_[node].id = id;
  nodes_[node].always = always;
}

MarkerMatcher::Match MarkerMatcher::longest_at(std::string_view text, size_t pos, const Scope& scope) const {
  Match best;
  bool allowed = true;
  int32_t node = 0;
  for (size_t i = pos; i < text.size(); ++i) {
    allowed = allowed && scope.allows(i);
    node = child(node, static_cast<uint8_t>(text[i]));
    if (node < 0) break;
    if (nodes_[node].id != kNoToken && (allowed || nodes_[node].always)) best = {nodes_[node].id, i + 1 - pos};
  }
  return best;
}

size_t MarkerMatcher::next_candidate(std::string_view text, size_t pos) const {
  while (pos < text.size() && !starts_[static_cast<uint8_t>(text[pos])]) ++pos;
  return pos;
}

TokenId MarkerMatcher::find_whole(std::string_view marker) const {
  int32_t node = 0;
  for (const char c : marker) {
    node = child(node, static_cast<uint8_t>(c));
    if (node < 0) return kNoToken;
  }
  return nodes_[node].id;
}

}  // namespace vayu
