#include "kv/page_pool.h"

#include <algorithm>

#include "base/check.h"

namespace vayu {

PagePool::PagePool(int32_t num_pages, int32_t page_size) : page_size_(page_size), owners_(num_pages) {
  VAYU_CHECK(num_pages > 0 && page_size > 0, "{} pages of {} tokens", num_pages, page_size);
  free_.reserve(num_pages);
  reset();
}

void PagePool::reset() {
  std::fill(owners_.begin(), owners_.end(), Owner::kFree);
  free_.clear();
  for (PageId page = num_pages() - 1; page >= 0; --page) free_.push_back(page);
}

PageId PagePool::allocate() {
  if (free_.empty()) return kNoPage;
  const PageId page = free_.back();
  free_.pop_back();
  move(page, Owner::kFree, Owner::kSequence);
  return page;
}

void PagePool::release(PageId page) {
  move(page, Owner::kSequence, Owner::kFree);
  free_.push_back(page);
}

void PagePool::give_to_tree(PageId page) { move(page, Owner::kSequence, Owner::kTree); }

void PagePool::release_by_tree(PageId page) {
  move(page, Owner::kTree, Owner::kFree);
  free_.push_back(page);
}

int32_t PagePool::count(Owner owner) const {
  return static_cast<int32_t>(std::count(owners_.begin(), owners_.end(), owner));
}

void PagePool::move(PageId page, Owner from, Owner to) {
  VAYU_CHECK(page >= 0 && page < num_pages(), "page {} of {}", page, num_pages());
  VAYU_CHECK(owners_[page] == from, "page {} has owner {}, not {}", page, static_cast<int>(owners_[page]),
             static_cast<int>(from));
  owners_[page] = to;
}

}  // namespace vayu
