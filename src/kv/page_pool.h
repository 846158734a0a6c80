// Which KV pages are free. A page is only a number here; its memory belongs to the executor.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace vayu {

constexpr PageId kNoPage = -1;

// Engine thread only. Every page has exactly one owner at any time: the free list, one sequence, or the radix tree.
// A transition from any other owner than the stated one is an impossible state and ends the process.
class PagePool {
 public:
  enum class Owner : uint8_t { kFree, kSequence, kTree };

  PagePool(int32_t num_pages, int32_t page_size);

  int32_t num_pages() const { return static_cast<int32_t>(owners_.size()); }
  int32_t page_size() const { return page_size_; }  // tokens
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t pages_for(int32_t num_tokens) const { return (num_tokens + page_size_ - 1) / page_size_; }
  Owner owner(PageId page) const { return owners_[page]; }

  PageId allocate();                  // free -> sequence; kNoPage when none is free
  void release(PageId page);          // sequence -> free
  void give_to_tree(PageId page);     // sequence -> tree
  void release_by_tree(PageId page);  // tree -> free

  void reset();  // all pages free, whoever held them
  // Counts the pages of one owner by walking the table: for audits, not for the step path.
  int32_t count(Owner owner) const;

 private:
  void move(PageId page, Owner from, Owner to);

  int32_t page_size_;
  std::vector<Owner> owners_;  // (num_pages)
  std::vector<PageId> free_;   // stack
};

}  // namespace vayu
