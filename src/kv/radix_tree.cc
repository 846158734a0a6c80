#include "kv/radix_tree.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace vayu {
namespace {

uint64_t mix(uint64_t h, uint64_t value) {
  h = (h ^ value) * 0xff51afd7ed558ccd;  // multiplier of MurmurHash3's finaliser
  return h ^ (h >> 32);
}

}  // namespace

RadixTree::RadixTree(PagePool& pool, RadixTreeOptions options)
    : pool_(pool),
      options_(options),
      nodes_(pool.num_pages()),
      tokens_(static_cast<size_t>(pool.num_pages()) * pool.page_size()),
      buckets_(std::bit_ceil(static_cast<size_t>(pool.num_pages()) * 2), kNoPage) {
  VAYU_CHECK(options.hash_bits >= 0 && options.hash_bits <= 64, "hash_bits {}", options.hash_bits);
  scratch_.reserve(pool.num_pages());
}

NamespaceId RadixTree::open_namespace(std::string_view name) {
  auto [it, added] = namespace_ids_.try_emplace(std::string(name), next_namespace_);
  if (added) {
    namespaces_[next_namespace_].name = name;
    ++next_namespace_;
  }
  ++namespaces_[it->second].holders;
  return it->second;
}

void RadixTree::close_namespace(NamespaceId id) {
  auto it = namespaces_.find(id);
  VAYU_CHECK(it != namespaces_.end() && it->second.holders > 0, "namespace {} is not open", id);
  --it->second.holders;
  drop_namespace_if_unused(id);
}

void RadixTree::drop_namespace_if_unused(NamespaceId id) {
  auto it = namespaces_.find(id);
  if (it->second.holders > 0 || it->second.pages > 0) return;
  namespace_ids_.erase(it->second.name);
  namespaces_.erase(it);
}

void RadixTree::match(NamespaceId id, std::span<const TokenId> tokens, int32_t max_pages,
                      std::vector<PageId>& path) const {
  path.clear();
  const size_t page_size = pool_.page_size();
  const size_t limit = std::min<size_t>(std::max(max_pages, 0), tokens.size() / page_size);
  PageId parent = kNoPage;
  for (size_t i = 0; i < limit; ++i) {
    const auto page_tokens = tokens.subspan(i * page_size, page_size);
    parent = find(id, parent, page_tokens, hash_page(id, parent, page_tokens));
    if (parent == kNoPage) return;
    path.push_back(parent);
  }
}

int32_t RadixTree::count_unlocked(std::span<const PageId> path) const {
  // Locks reach up to the root, so the unlocked pages of a path are its tail.
  int32_t count = 0;
  for (size_t i = path.size(); i > 0 && nodes_[path[i - 1]].locks == 0; --i) ++count;
  return count;
}

void RadixTree::lock_one(PageId page) {
  Node& node = nodes_[page];
  VAYU_CHECK(node.in_tree, "lock of page {} outside the tree", page);
  if (node.locks++ == 0) lru_remove(page);
}

void RadixTree::lock(std::span<const PageId> path) {
  for (PageId page : path) lock_one(page);
}

void RadixTree::unlock(std::span<const PageId> path) {
  // Leaf first: in the LRU list a page is always older than its parent, so the oldest page is always a leaf.
  for (size_t i = path.size(); i-- > 0;) {
    Node& node = nodes_[path[i]];
    VAYU_CHECK(node.in_tree && node.locks > 0, "unlock of page {} with {} locks", path[i], node.locks);
    if (--node.locks > 0) continue;
    if (node.detached) {
      free_node(path[i]);
    } else {
      lru_push(path[i]);
    }
  }
}

PageId RadixTree::insert(NamespaceId id, PageId parent, std::span<const TokenId> tokens, PageId page) {
  VAYU_CHECK(static_cast<int32_t>(tokens.size()) == pool_.page_size(), "only full pages are published");
  const bool detached = parent != kNoPage && nodes_[parent].detached;
  VAYU_CHECK(parent == kNoPage || nodes_[parent].locks > 0, "insert below page {} without a lock", parent);
  const uint64_t hash = hash_page(id, parent, tokens);
  if (!detached) {
    const PageId cached = find(id, parent, tokens, hash);
    if (cached != kNoPage) {
      lock_one(cached);
      return cached;
    }
  }
  pool_.give_to_tree(page);
  nodes_[page] = Node{.space = id, .hash = hash, .locks = 1, .in_tree = true, .detached = detached};
  std::copy(tokens.begin(), tokens.end(), tokens_.begin() + static_cast<size_t>(page) * pool_.page_size());
  add_child(parent, page);
  if (!detached) add_key(page);
  ++num_pages_;
  ++namespaces_.at(id).pages;
  return page;
}

bool RadixTree::evict_one() {
  if (oldest_ == kNoPage) return false;
  const PageId page = oldest_;
  VAYU_CHECK(nodes_[page].first_child == kNoPage, "eviction of page {} with children", page);
  remove_key(page);
  lru_remove(page);
  free_node(page);
  return true;
}

void RadixTree::discard(PageId page) {
  if (nodes_[page].detached) return;
  scratch_.assign(1, page);
  for (size_t i = 0; i < scratch_.size(); ++i) {
    Node& node = nodes_[scratch_[i]];
    for (PageId child = node.first_child; child != kNoPage; child = nodes_[child].next_sibling) {
      if (!nodes_[child].detached) scratch_.push_back(child);
    }
    remove_key(scratch_[i]);
    node.detached = true;
  }
  for (size_t i = scratch_.size(); i-- > 0;) {  // children before parents
    if (nodes_[scratch_[i]].locks > 0) continue;
    lru_remove(scratch_[i]);
    free_node(scratch_[i]);
  }
}

int32_t RadixTree::flush() {
  int32_t count = 0;
  while (evict_one()) ++count;
  return count;
}

void RadixTree::reset() {
  std::fill(nodes_.begin(), nodes_.end(), Node{});
  std::fill(buckets_.begin(), buckets_.end(), kNoPage);
  oldest_ = newest_ = kNoPage;
  num_pages_ = num_evictable_ = 0;
  for (auto it = namespaces_.begin(); it != namespaces_.end();) {
    it->second.pages = 0;
    const NamespaceId id = (it++)->first;
    drop_namespace_if_unused(id);
  }
}

void RadixTree::free_node(PageId page) {
  Node& node = nodes_[page];
  VAYU_CHECK(node.locks == 0 && node.first_child == kNoPage, "page {} freed while in use", page);
  const NamespaceId space = node.space;
  remove_child(page);
  node = Node{};
  pool_.release_by_tree(page);
  --num_pages_;
  --namespaces_.at(space).pages;
  drop_namespace_if_unused(space);
}

uint64_t RadixTree::hash_page(NamespaceId id, PageId parent, std::span<const TokenId> tokens) const {
  uint64_t h = parent == kNoPage ? mix(options_.hash_seed, static_cast<uint64_t>(id)) : nodes_[parent].hash;
  for (TokenId token : tokens) h = mix(h, static_cast<uint32_t>(token));
  return options_.hash_bits == 64 ? h : h & ((uint64_t{1} << options_.hash_bits) - 1);
}

std::span<const TokenId> RadixTree::key(PageId page) const {
  const size_t page_size = pool_.page_size();
  return {tokens_.data() + static_cast<size_t>(page) * page_size, page_size};
}

PageId RadixTree::find(NamespaceId id, PageId parent, std::span<const TokenId> tokens, uint64_t hash) const {
  PageId page = buckets_[hash & (buckets_.size() - 1)];
  for (; page != kNoPage; page = nodes_[page].next_in_bucket) {
    const Node& node = nodes_[page];
    if (node.hash == hash && node.parent == parent && node.space == id && std::ranges::equal(key(page), tokens)) break;
  }
  return page;
}

void RadixTree::add_key(PageId page) {
  PageId& head = bucket(nodes_[page].hash);
  nodes_[page].next_in_bucket = head;
  head = page;
}

void RadixTree::remove_key(PageId page) {
  PageId* link = &bucket(nodes_[page].hash);
  while (*link != page) {
    VAYU_CHECK(*link != kNoPage, "page {} has no key", page);
    link = &nodes_[*link].next_in_bucket;
  }
  *link = nodes_[page].next_in_bucket;
  nodes_[page].next_in_bucket = kNoPage;
}

void RadixTree::add_child(PageId parent, PageId page) {
  Node& node = nodes_[page];
  node.parent = parent;
  if (parent == kNoPage) return;
  node.next_sibling = nodes_[parent].first_child;
  if (node.next_sibling != kNoPage) nodes_[node.next_sibling].prev_sibling = page;
  nodes_[parent].first_child = page;
}

void RadixTree::remove_child(PageId page) {
  Node& node = nodes_[page];
  if (node.parent == kNoPage) return;
  if (node.prev_sibling != kNoPage) {
    nodes_[node.prev_sibling].next_sibling = node.next_sibling;
  } else {
    nodes_[node.parent].first_child = node.next_sibling;
  }
  if (node.next_sibling != kNoPage) nodes_[node.next_sibling].prev_sibling = node.prev_sibling;
}

void RadixTree::lru_push(PageId page) {
  Node& node = nodes_[page];
  node.older = newest_;
  node.newer = kNoPage;
  (newest_ == kNoPage ? oldest_ : nodes_[newest_].newer) = page;
  newest_ = page;
  ++num_evictable_;
}

void RadixTree::lru_remove(PageId page) {
  Node& node = nodes_[page];
  (node.older == kNoPage ? oldest_ : nodes_[node.older].newer) = node.newer;
  (node.newer == kNoPage ? newest_ : nodes_[node.newer].older) = node.older;
  node.older = node.newer = kNoPage;
  --num_evictable_;
}

Status RadixTree::audit_node(PageId page) const {
  const Node& node = nodes_[page];
  const auto fault = [page](std::string_view what) {
    return make_error(ErrorKind::kInternal, "KV page {}: {}", page, what);
  };
  if (pool_.owner(page) != PagePool::Owner::kTree) return fault("in the tree, but the pool says otherwise");
  if (node.detached && node.locks == 0) return fault("discarded, locked by nobody, yet not free");
  if (!node.detached && find(node.space, node.parent, key(page), node.hash) != page) return fault("key not found");
  if (node.parent == kNoPage) return {};
  const Node& parent = nodes_[node.parent];
  if (!parent.in_tree || parent.space != node.space) return fault("parent is not in the tree");
  if (parent.locks < node.locks) return fault("locked more often than its parent");
  if (parent.detached && !node.detached) return fault("reachable below a discarded page");
  return {};
}

Status RadixTree::audit() const {
  int32_t in_tree = 0, unlocked = 0;
  for (PageId page = 0; page < pool_.num_pages(); ++page) {
    if (!nodes_[page].in_tree) continue;
    ++in_tree;
    unlocked += nodes_[page].locks == 0;
    VAYU_RETURN_IF_ERROR(audit_node(page));
  }
  int32_t listed = 0;
  for (PageId page = oldest_; page != kNoPage && listed <= in_tree; page = nodes_[page].newer) ++listed;
  if (in_tree != num_pages_ || unlocked != num_evictable_ || listed != unlocked ||
      in_tree != pool_.count(PagePool::Owner::kTree)) {
    return make_error(ErrorKind::kInternal,
                      "radix tree: {} pages, counted {}, pool says {}; evictable {}, counted {}, "
                      "listed {}",
                      num_pages_, in_tree, pool_.count(PagePool::Owner::kTree), num_evictable_, unlocked, listed);
  }
  return {};
}

}  // namespace vayu
