// Token texts by id, and ids by text.
#pragma once

#include <bit>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.h"

namespace vayu {

class PieceTable {
 public:
  PieceTable() : offsets_(1) {}

  void reserve(size_t num_pieces) { offsets_.reserve(num_pieces + 1); }
  void add(std::string_view piece) {  // its id is size()
    arena_ += piece;
    offsets_.push_back(arena_.size());
    max_bytes_ = std::max(max_bytes_, piece.size());
  }

  int32_t size() const { return static_cast<int32_t>(offsets_.size() - 1); }
  bool contains(TokenId id) const { return id >= 0 && id < size(); }
  // id in range
  std::string_view operator[](TokenId id) const {
    return std::string_view(arena_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
  }
  size_t max_bytes() const { return max_bytes_; }  // of the longest piece

  // Makes find() know the pieces that are not empty and for which `included` says so; of equal pieces the lowest id.
  template <class Predicate>
  void index(Predicate included) {
    index_.assign(std::bit_ceil(2 * offsets_.size()), kNoToken);
    for (TokenId id = 0; id < size(); ++id) {
      if ((*this)[id].empty() || !included(id)) continue;
      const size_t slot = slot_of((*this)[id]);
      if (index_[slot] == kNoToken) index_[slot] = id;
    }
  }
  // kNoToken: no such piece, or not indexed.
  TokenId find(std::string_view piece) const { return index_.empty() ? kNoToken : index_[slot_of(piece)]; }

 private:
  size_t slot_of(std::string_view piece) const {
    const size_t mask = index_.size() - 1;
    size_t i = std::hash<std::string_view>()(piece) & mask;
    while (index_[i] != kNoToken && (*this)[index_[i]] != piece) i = (i + 1) & mask;
    return i;
  }

  std::string arena_;            // all pieces, one after another
  std::vector<size_t> offsets_;  // (size + 1)
  std::vector<TokenId> index_;   // open addressing; kNoToken is free; a power of two, at most half full
  size_t max_bytes_ = 0;
};

}  // namespace vayu
