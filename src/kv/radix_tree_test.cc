#include "kv/radix_tree.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace vayu {
namespace {

using Tokens = std::vector<TokenId>;
using Path = std::vector<PageId>;

class RadixTreeTest : public ::testing::Test {
 protected:
  // Publishes all full pages of `tokens` as a sequence would, and returns the locked path.
  Path publish(NamespaceId space, const Tokens& tokens) {
    Path path;
    for (size_t i = 0; i + 4 <= tokens.size(); i += 4) {
      const PageId page = pool.allocate();
      EXPECT_NE(page, kNoPage);
      path.push_back(tree.insert(space, path.empty() ? kNoPage : path.back(), std::span(tokens).subspan(i, 4), page));
      if (path.back() != page) pool.release(page);
    }
    return path;
  }
  Path match(NamespaceId space, const Tokens& tokens) {
    Path path;
    tree.match(space, tokens, 1000, path);
    return path;
  }
  void expect_sound() {
    const Status status = tree.audit();
    EXPECT_TRUE(status.ok()) << status.error().message;
    EXPECT_EQ(pool.num_free() + tree.num_pages() + pool.count(PagePool::Owner::kSequence), pool.num_pages());
  }

  PagePool pool{8, 4};
  RadixTree tree{pool};
  NamespaceId space = tree.open_namespace("a");
};

TEST_F(RadixTreeTest, FindsTheLongestPrefixOfFullPages) {
  const Path path = publish(space, {1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(match(space, {1, 2, 3, 4, 5, 6, 7, 8, 9}), path);
  EXPECT_EQ(match(space, {1, 2, 3, 4, 5, 6, 7}), Path{path[0]});
  EXPECT_EQ(match(space, {1, 2, 3, 4, 5, 6, 7, 9}), Path{path[0]});
  EXPECT_EQ(match(space, {2, 2, 3, 4}), Path{});
  EXPECT_EQ(match(space, {5, 6, 7, 8}), Path{});  // same tokens at another depth
  Path one;
  tree.match(space, Tokens{1, 2, 3, 4, 5, 6, 7, 8}, 1, one);
  EXPECT_EQ(one, Path{path[0]});
  expect_sound();
}

TEST_F(RadixTreeTest, SamePageTwiceFreesTheCopy) {
  const Path first = publish(space, {1, 2, 3, 4});
  const Path second = publish(space, {1, 2, 3, 4});
  EXPECT_EQ(first, second);
  EXPECT_EQ(tree.lock_count(first[0]), 2);
  EXPECT_EQ(pool.num_free(), 7);
  expect_sound();
}

TEST_F(RadixTreeTest, NamespacesShareNothing) {
  const NamespaceId other = tree.open_namespace("b");
  publish(space, {1, 2, 3, 4});
  EXPECT_TRUE(match(other, {1, 2, 3, 4}).empty());
  EXPECT_EQ(publish(other, {1, 2, 3, 4}).size(), 1u);
  EXPECT_EQ(pool.num_free(), 6);
  expect_sound();
}

TEST_F(RadixTreeTest, NamespaceEndsWithItsLastPageAndHolder) {
  const Path path = publish(space, {1, 2, 3, 4});
  tree.unlock(path);
  tree.close_namespace(space);
  EXPECT_EQ(tree.num_namespaces(), 1u);  // its page is still cached
  EXPECT_EQ(tree.open_namespace("a"), space);
  tree.close_namespace(space);
  EXPECT_EQ(tree.flush(), 1);
  EXPECT_EQ(tree.num_namespaces(), 0u);
  EXPECT_NE(tree.open_namespace("a"), space);
}

TEST_F(RadixTreeTest, EvictsLeastRecentlyUsedLeafFirst) {
  const Path a = publish(space, {1, 2, 3, 4, 5, 6, 7, 8});
  const Path b = publish(space, {9, 9, 9, 9});
  tree.unlock(a);
  tree.unlock(b);
  tree.lock(a);  // used again: now b is the oldest
  tree.unlock(a);
  EXPECT_TRUE(tree.evict_one());
  EXPECT_TRUE(match(space, {9, 9, 9, 9}).empty());
  EXPECT_TRUE(tree.evict_one());
  EXPECT_EQ(match(space, {1, 2, 3, 4, 5, 6, 7, 8}), Path{a[0]});
  expect_sound();
  EXPECT_TRUE(tree.evict_one());
  EXPECT_FALSE(tree.evict_one());
  EXPECT_EQ(pool.num_free(), 8);
}

TEST_F(RadixTreeTest, LockedPagesStay) {
  const Path path = publish(space, {1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_FALSE(tree.evict_one());
  tree.lock(std::span(path).first(1));
  tree.unlock(path);
  EXPECT_EQ(tree.num_evictable(), 1);
  EXPECT_EQ(tree.count_unlocked(path), 1);
  EXPECT_EQ(tree.flush(), 1);
  EXPECT_EQ(match(space, {1, 2, 3, 4, 5, 6, 7, 8}), Path{path[0]});
  tree.unlock(std::span(path).first(1));
  EXPECT_EQ(tree.flush(), 1);
  EXPECT_EQ(pool.num_free(), 8);
}

TEST_F(RadixTreeTest, DiscardHidesLockedAndFreesUnlocked) {
  const Path held = publish(space, {1, 2, 3, 4, 5, 6, 7, 8});
  const Path idle = publish(space, {1, 2, 3, 4, 6, 6, 6, 6});
  tree.unlock(idle);
  tree.discard(held[0]);
  EXPECT_TRUE(match(space, {1, 2, 3, 4}).empty());
  EXPECT_EQ(pool.num_free(), 6);  // the idle leaf went at once
  expect_sound();
  // A holder may go on publishing below a discarded page; nobody finds it.
  const Tokens more{7, 7, 7, 7};
  const PageId page = tree.insert(space, held[1], more, pool.allocate());
  EXPECT_TRUE(match(space, {1, 2, 3, 4, 5, 6, 7, 8, 7, 7, 7, 7}).empty());
  tree.discard(held[0]);  // again: nothing left to do
  tree.unlock(Path{held[0], held[1], page});
  EXPECT_EQ(pool.num_free(), 8);
  expect_sound();
}

TEST(RadixTree, EqualHashesAreToldApartByTokens) {
  PagePool pool(64, 2);
  RadixTree tree(pool, {.hash_bits = 0});
  const NamespaceId a = tree.open_namespace("a");
  const NamespaceId b = tree.open_namespace("b");
  Path path;
  for (TokenId token = 0; token < 8; ++token) {
    for (NamespaceId space : {a, b}) {
      const PageId parent = tree.insert(space, kNoPage, Tokens{token, token}, pool.allocate());
      const PageId child = tree.insert(space, parent, Tokens{token, 0}, pool.allocate());
      tree.match(space, Tokens{token, token, token, 0}, 9, path);
      EXPECT_EQ(path, (Path{parent, child}));
    }
  }
  EXPECT_EQ(tree.num_pages(), 32);
  tree.match(a, Tokens{3, 3, 4, 0}, 9, path);
  EXPECT_EQ(path.size(), 1u);
  EXPECT_TRUE(tree.audit().ok());
}

TEST(RadixTree, RandomTrafficStaysSound) {
  PagePool pool(40, 2);
  RadixTree tree(pool);
  std::mt19937 random(7);
  const NamespaceId spaces[] = {tree.open_namespace(""), tree.open_namespace("x")};
  std::vector<Path> held;
  for (int step = 0; step < 20000; ++step) {
    const NamespaceId space = spaces[random() % 2];
    Tokens tokens(2 * (1 + random() % 6));
    for (TokenId& token : tokens) token = random() % 2;
    Path path;
    tree.match(space, tokens, 100, path);
    tree.lock(path);
    while (path.size() < tokens.size() / 2) {
      if (pool.num_free() == 0 && !tree.evict_one()) break;
      const PageId page = pool.allocate();
      path.push_back(tree.insert(space, path.empty() ? kNoPage : path.back(),
                                 std::span(tokens).subspan(path.size() * 2, 2), page));
      if (path.back() != page) pool.release(page);
    }
    held.push_back(path);
    if (random() % 8 == 0 && !path.empty()) tree.discard(path[random() % path.size()]);
    while (held.size() > random() % 8) {
      std::swap(held[random() % held.size()], held.back());
      tree.unlock(held.back());
      held.pop_back();
    }
    const Status status = tree.audit();
    ASSERT_TRUE(status.ok()) << status.error().message << " at step " << step;
    ASSERT_EQ(pool.num_free() + tree.num_pages(), pool.num_pages());
  }
  for (const Path& path : held) tree.unlock(path);
  tree.flush();
  EXPECT_EQ(pool.num_free(), 40);
}

}  // namespace
}  // namespace vayu
