// Pair merges of BPE: which two neighbours join, in which order, into what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace vayu {

struct Merge {
  uint32_t rank;   // lower joins first
  int32_t result;  // symbol made
};

// Map from a pair of symbols to its merge: open addressing, filled once, then read by any thread.
class MergeTable {
 public:
  void reserve(size_t num_merges);
  // Symbols are not negative. Of two merges of one pair the lower rank stays.
  void insert(int32_t left, int32_t right, Merge merge);
  // Null when the pair does not merge; negative symbols never do.
  const Merge* find(int32_t left, int32_t right) const;
  size_t size() const { return size_; }

 private:
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  void grow(size_t num_slots);
  Slot& slot_of(uint64_t key);

  std::vector<Slot> slots_;  // a power of two, at most half full
  size_t size_ = 0;
  int shift_ = 64;
};

// Joins neighbours in symbols[0, count) until no pair merges: always the lowest rank, leftmost first. Works in place
// and returns the new count, at most `count`. count < 2^31. Time O(count log count); beside short words (no allocation)
// it needs 16 to 24 bytes a symbol.
size_t apply_merges(const MergeTable& table, int32_t* symbols, size_t count);

}  // namespace vayu
