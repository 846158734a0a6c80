#include "tokenizer/merge_table.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

#include "base/check.h"

namespace vayu {
namespace {

constexpr uint64_t kEmptyKey = ~uint64_t{0};
constexpr size_t kMinSlots = 16;
constexpr int32_t kDead = std::numeric_limits<int32_t>::min();

// Up to here a scan over all pairs beats the heap: words of prose have 4 to 12 bytes.
constexpr size_t kShortWord = 40;

uint64_t key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

size_t merge_short(const MergeTable& table, int32_t* symbols, size_t count) {
  const Merge* pairs[kShortWord];  // pairs[i]: merge of symbols i and i + 1, or null
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = table.find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = count;
    uint32_t best_rank = std::numeric_limits<uint32_t>::max();
    for (size_t i = 0; i + 1 < count; ++i) {
      if (pairs[i] != nullptr && (best == count || pairs[i]->rank < best_rank)) {
        best = i;
        best_rank = pairs[i]->rank;
      }
    }
    if (best == count) break;
    symbols[best] = pairs[best]->result;
    std::copy(symbols + best + 2, symbols + count, symbols + best + 1);
    if (best + 2 < count) std::copy(pairs + best + 2, pairs + count - 1, pairs + best + 1);
    --count;
    if (best > 0) pairs[best - 1] = table.find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) pairs[best] = table.find(symbols[best], symbols[best + 1]);
  }
  return count;
}

// Symbols as a linked list over the array, candidate pairs in a heap of (rank, position) packed in 64 bits. A heap
// entry is stale when the pair now at its position has another rank; it is then dropped.
class LongWord {
 public:
  LongWord(const MergeTable& table, int32_t* symbols, size_t count)
      : table_(table), symbols_(symbols), count_(static_cast<int32_t>(count)), next_(count), prev_(count) {
    heap_.reserve(count);
    for (int32_t i = 0; i < count_; ++i) {
      next_[i] = i + 1;
      prev_[i] = i - 1;
      if (i + 1 == count_) break;
      if (const Merge* merge = table_.find(symbols_[i], symbols_[i + 1])) heap_.push_back(entry(*merge, i));
    }
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  size_t run() {
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      const uint64_t top = heap_.back();
      heap_.pop_back();
      join(static_cast<int32_t>(top & 0xFFFFFFFFu), static_cast<uint32_t>(top >> 32));
    }
    return static_cast<size_t>(std::remove(symbols_, symbols_ + count_, kDead) - symbols_);
  }

 private:
  static uint64_t entry(const Merge& merge, int32_t pos) {
    return static_cast<uint64_t>(merge.rank) << 32 | static_cast<uint32_t>(pos);
  }

  void join(int32_t left, uint32_t rank) {
    const int32_t right = next_[left];
    if (symbols_[left] == kDead || right == count_) return;
    const Merge* merge = table_.find(symbols_[left], symbols_[right]);
    if (merge == nullptr || merge->rank != rank) return;
    symbols_[left] = merge->result;
    symbols_[right] = kDead;
    next_[left] = next_[right];
    if (next_[left] != count_) prev_[next_[left]] = left;
    if (prev_[left] >= 0) push(prev_[left]);
    push(left);
  }

  void push(int32_t left) {
    if (next_[left] == count_) return;
    const Merge* merge = table_.find(symbols_[left], symbols_[next_[left]]);
    if (merge == nullptr) return;
    heap_.push_back(entry(*merge, left));
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  const MergeTable& table_;
  int32_t* symbols_;
  const int32_t count_;
  std::vector<int32_t> next_, prev_;  // (count); count_ and -1 at the ends
  std::vector<uint64_t> heap_;
};

}  // namespace

void MergeTable::reserve(size_t num_merges) {
  const size_t num_slots = std::bit_ceil(std::max(kMinSlots, 2 * num_merges));
  if (num_slots > slots_.size()) grow(num_slots);
}

void MergeTable::grow(size_t num_slots) {
  std::vector<Slot> old(num_slots, Slot{kEmptyKey, {0, 0}});
  old.swap(slots_);
  shift_ = 64 - std::countr_zero(num_slots);
  for (const Slot& slot : old) {
    if (slot.key != kEmptyKey) slot_of(slot.key) = slot;
  }
}

MergeTable::Slot& MergeTable::slot_of(uint64_t key) {
  size_t i = key * 0x9E3779B97F4A7C15u >> shift_;  // Fibonacci hashing: the top bits are the well mixed ones
  while (slots_[i].key != key && slots_[i].key != kEmptyKey) i = (i + 1) & (slots_.size() - 1);
  return slots_[i];
}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  VAYU_CHECK(left >= 0 && right >= 0, "merge of symbols {} and {}", left, right);
  reserve(size_ + 1);
  Slot& slot = slot_of(key_of(left, right));
  if (slot.key == kEmptyKey) {
    slot = Slot{key_of(left, right), merge};
    ++size_;
  } else if (merge.rank < slot.merge.rank) {
    slot.merge = merge;
  }
}

const Merge* MergeTable::find(int32_t left, int32_t right) const {
  if ((left | right) < 0 || slots_.empty()) return nullptr;
  const Slot& slot = const_cast<MergeTable*>(this)->slot_of(key_of(left, right));
  return slot.key == kEmptyKey ? nullptr : &slot.merge;
}

size_t apply_merges(const MergeTable& table, int32_t* symbols, size_t count) {
  if (count < 2) return count;
  if (count <= kShortWord) return merge_short(table, symbols, count);
  VAYU_CHECK(count < size_t{1} << 31, "word of {} symbols", count);
  return LongWord(table, symbols, count).run();
}

}  // namespace vayu
