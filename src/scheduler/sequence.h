// Scheduler's own record of a request and its answers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/engine_client.h"
#include "core/request.h"
#include "kv/radix_tree.h"

namespace vayu {

struct RequestState;

// One of the n answers. All that decides its output (tokens, seed, counters) lives here, and nothing of it in KV pages,
// so preemption may drop the pages at any step.
struct Sequence {
  enum class State : uint8_t { kWaiting, kRunning, kDone };

  SeqId id = 0;
  RequestState* request = nullptr;
  int32_t choice = 0;
  State state = State::kWaiting;

  // Prompt, then output; empty until the first start. The last num_pending are kNoToken: steps under way sample them.
  std::vector<TokenId> tokens;
  std::vector<PageId> pages;    // cover num_computed tokens and those planned; the first num_tree_pages are the tree's
  int32_t num_tree_pages = 0;   // locked by this sequence
  int32_t num_computed = 0;     // leading tokens whose K and V are in pages once the steps under way have landed
  int32_t num_landed = 0;       // of these, those whose step has landed
  int32_t num_planned = 0;      // tokens in the step being planned
  int32_t num_samples = 0;      // logit rows in the step being planned
  int32_t num_pending = 0;      // tokens that a step under way samples
  int32_t pending_sample = -1;  // which sample of the step last planned gives the last of them
  int32_t steps_under_way = 0;  // that have a row of this sequence
  bool last_pending = false;    // a pending token reaches the length limit: nothing is planned behind it
  int32_t num_verified = 0;     // leading tree pages marked as verified
  int32_t cached_tokens = 0;    // prefix hit of the first start
  int64_t started_us = 0;       // Clock time of the first start
  int32_t first_own_page = 0;   // pages from here on were computed by this sequence, in this life or one before
  bool prompt_sent = false;     // prompt log-probabilities
  std::optional<FinishReason> cancel;  // asked for while a step runs; done when it has landed

  // Another sequence computes a longer shared prefix right now: wait until it has that many tokens.
  SeqId leader = 0;  // 0: none
  int32_t leader_tokens = 0;
  int64_t leader_since_us = 0;

  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_known() const { return num_tokens() - num_pending; }
  int32_t num_missing() const { return num_tokens() - num_computed; }  // 1: decodes; more: prefills
  bool is_open() const { return !cancel && !last_pending; }            // gets rows in further steps
  std::span<const PageId> tree_path() const { return std::span(pages).first(num_tree_pages); }
};

struct RequestState {
  Request request;
  NamespaceId space = 0;
  bool started = false;                    // some answer had pages once: the deadline no longer applies
  int32_t num_alive = 0;                   // answers not done
  std::vector<Sequence> sequences;         // (n) never resized
  std::vector<TokenId> banned;             // ids that end an answer, held back by min_tokens; sorted
  std::vector<OutputToken> prompt_scores;  // grows while prompt log-probabilities come in; shared by all answers

  int32_t prompt_len() const { return static_cast<int32_t>(request.prompt.size()); }
  // Position p scores token p + 1, so the positions below this one need no logits (again).
  int32_t num_scored() const { return static_cast<int32_t>(prompt_scores.size()) - 1; }
  bool scoring() const { return request.sampling.prompt_logprobs >= 0 && num_scored() < prompt_len() - 1; }
};

// Order of service: priority, then arrival, then submission.
inline bool runs_before(const Sequence& a, const Sequence& b) {
  const Request& x = a.request->request;
  const Request& y = b.request->request;
  if (x.priority != y.priority) return x.priority < y.priority;
  if (x.arrival_us != y.arrival_us) return x.arrival_us < y.arrival_us;
  return a.id < b.id;
}

inline void insert_ordered(std::vector<Sequence*>& list, Sequence* seq) {
  const auto before = [](const Sequence* a, const Sequence* b) { return runs_before(*a, *b); };
  list.insert(std::upper_bound(list.begin(), list.end(), seq, before), seq);
}

}  // namespace vayu
