#include "kv/page_pool.h"

#include <gtest/gtest.h>

#include <set>

namespace vayu {
namespace {

TEST(PagePool, HandsOutEachPageOnce) {
  PagePool pool(5, 16);
  std::set<PageId> pages;
  for (int i = 0; i < 5; ++i) pages.insert(pool.allocate());
  EXPECT_EQ(pages, (std::set<PageId>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.allocate(), kNoPage);
  EXPECT_EQ(pool.num_free(), 0);
  pool.release(3);
  EXPECT_EQ(pool.allocate(), 3);
}

TEST(PagePool, TracksTheOwner) {
  PagePool pool(2, 16);
  const PageId page = pool.allocate();
  EXPECT_EQ(pool.owner(page), PagePool::Owner::kSequence);
  pool.give_to_tree(page);
  EXPECT_EQ(pool.count(PagePool::Owner::kTree), 1);
  pool.release_by_tree(page);
  EXPECT_EQ(pool.count(PagePool::Owner::kFree), 2);
}

TEST(PagePool, RoundsPagesUp) {
  PagePool pool(2, 16);
  EXPECT_EQ(pool.pages_for(0), 0);
  EXPECT_EQ(pool.pages_for(1), 1);
  EXPECT_EQ(pool.pages_for(16), 1);
  EXPECT_EQ(pool.pages_for(17), 2);
}

TEST(PagePoolDeathTest, DoubleFreeIsImpossible) {
  PagePool pool(2, 16);
  const PageId page = pool.allocate();
  pool.release(page);
  EXPECT_DEATH(pool.release(page), "has owner");
}

}  // namespace
}  // namespace vayu
