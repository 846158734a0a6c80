// Prefix cache: a tree of full KV pages over token ids, one node a page.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "core/types.h"
#include "kv/page_pool.h"

namespace vayu {

using NamespaceId = int64_t;  // never reused, so a key of a closed namespace cannot match a later one

struct RadixTreeOptions {
  // Should be random in a server, or a client could choose tokens that collide and make look-ups slow (never wrong).
  uint64_t hash_seed = 0x9e3779b97f4a7c15;
  int32_t hash_bits = 64;  // fewer force collisions, for tests; a hit never rests on the hash
};

// Engine thread only. A node is found by a hash of (namespace, path, tokens) and confirmed by comparing namespace,
// parent and every token. A sequence locks each page of its path, so a locked page's ancestors are locked too; pages
// nobody locks are evictable, least recently used first. All storage is sized at construction: nothing but a new
// namespace allocates.
class RadixTree {
 public:
  explicit RadixTree(PagePool& pool, RadixTreeOptions options = {});
  RadixTree(const RadixTree&) = delete;
  RadixTree& operator=(const RadixTree&) = delete;

  // Each open needs one close. A namespace lives while somebody holds it or a page of it is cached.
  NamespaceId open_namespace(std::string_view name);
  void close_namespace(NamespaceId id);

  // Pages of the longest cached prefix of `tokens`, at most max_pages, into `path` (replaced). Takes no lock.
  void match(NamespaceId id, std::span<const TokenId> tokens, int32_t max_pages, std::vector<PageId>& path) const;
  int32_t count_unlocked(std::span<const PageId> path) const;

  void lock(std::span<const PageId> path);  // a path from the root downwards
  void unlock(std::span<const PageId> path);

  // Publishes a sequence's full page below `parent` (kNoPage: at the root), which the caller has locked. Returns the
  // page that holds these tokens from now on, locked once for the caller: `page`, or the one already cached, in which
  // case `page` is still the caller's.
  PageId insert(NamespaceId id, PageId parent, std::span<const TokenId> tokens, PageId page);

  // A page whose content led to finite logits. A sequence that fails takes unverified pages down with it.
  void mark_verified(PageId page) { nodes_[page].verified = true; }
  bool verified(PageId page) const { return nodes_[page].verified; }

  // Frees the least recently used page, its key gone first. False: every page is locked.
  bool evict_one();
  // Takes the page and all below it out of the cache: no later match finds them. Locked ones are freed with their last
  // lock. Pages later inserted below them are not found either.
  void discard(PageId page);
  // Evicts everything evictable; returns how many pages that freed.
  int32_t flush();
  // Forgets all pages without touching the pool (rebuild after a failed audit); namespaces held stay open.
  void reset();

  int32_t num_pages() const { return num_pages_; }          // nodes in the tree, locked or not
  int32_t num_evictable() const { return num_evictable_; }  // of these, locked by nobody
  int32_t lock_count(PageId page) const { return nodes_[page].locks; }
  size_t num_namespaces() const { return namespaces_.size(); }

  // Walks everything; the message names the first thing that does not add up.
  Status audit() const;

 private:
  struct Node {
    NamespaceId space = 0;
    uint64_t hash = 0;
    PageId parent = kNoPage;
    PageId first_child = kNoPage, prev_sibling = kNoPage, next_sibling = kNoPage;  // unordered; not kept for the root
    PageId next_in_bucket = kNoPage;
    PageId older = kNoPage, newer = kNoPage;  // neighbours in the LRU list, when unlocked
    int32_t locks = 0;
    bool in_tree = false;
    bool detached = false;  // has no key: discarded while locked
    bool verified = false;
  };
  struct Namespace {
    std::string name;
    int32_t holders = 0;
    int32_t pages = 0;
  };

  uint64_t hash_page(NamespaceId id, PageId parent, std::span<const TokenId> tokens) const;
  PageId find(NamespaceId id, PageId parent, std::span<const TokenId> tokens, uint64_t hash) const;
  std::span<const TokenId> key(PageId page) const;
  PageId& bucket(uint64_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }
  void add_key(PageId page);
  void remove_key(PageId page);
  void add_child(PageId parent, PageId page);
  void remove_child(PageId page);
  void lru_push(PageId page);
  void lru_remove(PageId page);
  void lock_one(PageId page);
  void free_node(PageId page);
  void drop_namespace_if_unused(NamespaceId id);
  Status audit_node(PageId page) const;

  PagePool& pool_;
  RadixTreeOptions options_;
  std::vector<Node> nodes_;      // (num_pages) indexed by page
  std::vector<TokenId> tokens_;  // (num_pages, page_size)
  std::vector<PageId> buckets_;  // hash table of chains through next_in_bucket; a power of two
  std::vector<PageId> scratch_;  // subtree walk of discard
  PageId oldest_ = kNoPage, newest_ = kNoPage;
  int32_t num_pages_ = 0;
  int32_t num_evictable_ = 0;
  NamespaceId next_namespace_ = 1;
  std::unordered_map<std::string, NamespaceId> namespace_ids_;
  std::unordered_map<NamespaceId, Namespace> namespaces_;
};

}  // namespace vayu
