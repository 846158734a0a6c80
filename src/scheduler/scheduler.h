// Decides what each step computes: admission, chunked prefill, mixed batches, preemption, prefix cache.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "core/batch.h"
#include "core/engine_client.h"
#include "core/executor.h"
#include "core/request.h"
#include "kv/page_pool.h"
#include "kv/radix_tree.h"
#include "scheduler/sequence.h"

namespace vayu {

enum class SchedulerPolicy {
  kPrefillFirst,  // prompts one after another, each as whole as the step allows; decodes wait meanwhile
  kFixedChunk,    // decodes, and one chunk of the oldest prompt
  kMixed,         // decodes, and chunks of several prompts
};

struct SchedulerConfig {
  SchedulerPolicy policy = SchedulerPolicy::kMixed;
  std::vector<TokenId> end_ids;          // union of all ids the model declares as ends
  int32_t max_num_batched_tokens = 512;  // tokens in one step
  int32_t chunked_prefill_size = 512;    // of these, prompt tokens
  int32_t max_num_seqs = 64;             // answers with pages
  int32_t max_queued = 1024;             // answers without; the queue refuses requests when it holds that many
  int32_t max_long_prefills = 4;         // prompts in progress at once that do not fit one step (kMixed)
  int32_t max_logits_per_step = 256;     // rows of logits: sampled tokens and scored prompt tokens together
  // An answer is admitted when its prompt fits beside what the running ones will write in their next this many tokens.
  int32_t admit_headroom_tokens = 32;
  int64_t max_overtake_us = 50'000;       // how long the head of the queue may be overtaken by cached prompts
  int64_t max_share_wait_us = 2'000'000;  // how long a prompt waits for another request that computes its prefix
  bool prefix_cache = true;
  bool overlap = false;  // the executor overlaps: a step may be planned while one is under way
  RadixTreeOptions tree;
};

// Engine thread only; no lock, no thread, no clock but the one passed in. Knows pages by number alone.
//
// plan() and commit() alternate: a plan that returned true must be committed before the next plan. With `overlap`, one
// more step may be planned before that commit: its decoding rows take tokens that are sampled meanwhile
// (Batch::prev_samples). Commits come in the order of the plans. Between plan and commit, add() and cancel() are
// allowed; pages that a step under way may read or write are freed by its commit, not before. Batches point into the
// scheduler's own state (params, tokens), which stays put until their commit.
class Scheduler {
 public:
  Scheduler(SchedulerConfig config, const ExecutorLimits& limits, const Clock& clock);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // kInvalidArgument when the request can never run, with both numbers. Reads only configuration: any thread.
  Status admit_check(const Request& request) const;
  // Takes a checked request with a new id. kResourceExhausted: the queue is full, nothing was taken.
  Status add(Request request);
  // Ends the answer (choice < 0: all answers) with `reason`. Unknown and finished ones are ignored.
  void cancel(RequestId id, int32_t choice, FinishReason reason);

  // Fills `batch` with the next step. False: nothing to compute now (deltas may still be there). While has_work() and
  // no step is under way, a plan always finds something.
  bool plan(Batch& batch);
  // Results of the oldest step under way, one for each of its samples.
  void commit(const StepOutput& output);
  // The executor has failed: every answer ends with `error`; planned steps are forgotten.
  void abandon(const Error& error);

  bool has_work() const { return !running_.empty() || !waiting_.empty(); }
  bool step_in_flight() const { return num_steps_ > 0; }
  // Moves out the news since the last call; `deltas` is replaced.
  void take_deltas(std::vector<SequenceDelta>& deltas);

  EngineStats stats() const;
  const SchedulerConfig& config() const { return config_; }
  int32_t max_tokens_per_sequence() const { return max_tokens_; }  // prompt and output; bounded by context and pool
  // Gives a batch the capacity of the largest step, so that planning never allocates.
  void reserve(Batch& batch) const;

  // Frees every page that no answer uses; returns how many.
  int32_t flush_cache() { return tree_.flush(); }
  // Every page has one owner and each tree page as many locks as answers that use it. O(pages).
  Status audit() const;
  // After a failed audit: all pages become free, running answers recompute. Not while a step is in flight.
  void rebuild_cache();

 private:
  // What one sequence has in a step.
  struct StepRow {
    Sequence* seq;
    int32_t num_tokens;
    int32_t num_samples;
    bool samples_token;  // the last sample is the sequence's next token
  };

  // Life cycle (scheduler.cc).
  static SchedulerConfig normalize(SchedulerConfig config, const ExecutorLimits& limits);
  void expire_deadlines();
  void commit_row(const StepRow& row, std::span<const SampleResult> results);
  void commit_token(Sequence& seq, const SampleResult& result);
  void fail_non_finite(Sequence& seq);
  void publish_pages(Sequence& seq);
  void mark_verified(Sequence& seq);
  void release_pages(Sequence& seq);
  void finish(Sequence& seq, FinishReason reason, std::optional<Error> error = {});
  void retire(Sequence& seq);
  void let_go(Sequence& seq);
  void free_later(PageId page);
  void free_superseded();
  void bury_dead();
  SequenceDelta& new_delta(const Sequence& seq);
  void cancel_sequence(Sequence& seq, FinishReason reason);

  // Planning (plan.cc).
  void admit_waiting();
  size_t next_candidate(bool takes_long);
  bool waits_for_leader(Sequence& seq);
  bool try_admit(Sequence& seq, size_t index);
  bool is_long(const Sequence& seq);
  int32_t match_prefix(const Sequence& seq);  // into path_
  void start(Sequence& seq, size_t index);
  void share_tokens();
  int32_t offer_decodes();
  void share_prefill_tokens(int32_t budget);
  int32_t wanted_tokens(const Sequence& seq, int32_t& spare_logits) const;
  void allocate_pages();
  bool ensure_pages(Sequence& seq, int32_t num_tokens);
  bool may_preempt();
  void preempt_last();
  void build_batch(Batch& batch);
  void add_row(Sequence& seq, Batch& batch);
  void add_samples(Sequence& seq, int32_t first_token, Batch& batch);
  void note_step();

  int32_t pages_wanted_by_running() const;
  int32_t headroom_pages(const Sequence* candidate) const;
  std::span<const TokenId> known_tokens(const Sequence& seq) const;
  Sequence* find_running(SeqId id) const;

  const SchedulerConfig config_;
  const ExecutorLimits limits_;
  const Clock& clock_;
  const int32_t max_tokens_;
  PagePool pool_;
  RadixTree tree_;

  std::unordered_map<RequestId, std::unique_ptr<RequestState>> requests_;
  std::vector<Sequence*> waiting_;  // in order of service; hold no pages
  std::vector<Sequence*> running_;  // in order of service
  std::vector<Sequence*> rows_;     // of the step being planned
  std::vector<StepRow> steps_[2];   // under way: num_steps_ from oldest_ on, in turn
  int32_t oldest_ = 0;
  int32_t num_steps_ = 0;
  std::vector<Sequence*> leaving_;   // ended, but a step under way has a row of theirs
  std::vector<PageId> superseded_;   // pages a step under way may read for the last time
  bool must_land_ = false;           // this plan needs what only a preemption can give: not with a step under way
  std::vector<RequestId> dead_;      // requests whose record goes once nobody walks over it any more
  std::vector<PageId> path_;         // scratch of match_prefix
  std::vector<Sequence*> prefills_;  // scratch of share_prefill_tokens
  std::vector<SequenceDelta> deltas_;
  SeqId next_seq_ = 1;
  int64_t next_deadline_us_ = 0;  // no waiting answer expires before
  int64_t work_since_us_ = 0;     // 0: idle
  EngineStats counters_;          // the running totals; stats() fills in the rest
};

}  // namespace vayu
