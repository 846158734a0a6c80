// What the next step computes. Four passes: admit waiting answers, share the step's tokens among the running ones,
// find pages for them in order of service (evicting, then preempting from the back), write the batch.
//
// With a step under way, its rows count as computed, and a token that it samples as there: a decoding row goes on with
// a token nobody knows yet. Nothing is preempted then, for that would give away pages the step works on: a plan that
// needs it says "nothing now" and is made again when the step has landed.
//
// Progress: the first running answer is offered at least one token, may take every page from those behind it, and fits
// the pool by admit_check; with none running, the first waiting one is admitted because every page is free or
// evictable. With a step under way there may be nothing to do until it lands.
#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace vayu {
namespace {

// How far down the queue admission looks: bounds the cost of a step with thousands waiting.
constexpr size_t kAdmitWindow = 64;    // for an answer that need not wait for a leader
constexpr size_t kOvertakeWindow = 8;  // for a cached prompt
constexpr size_t kNone = static_cast<size_t>(-1);

int32_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  return static_cast<int32_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

bool Scheduler::plan(Batch& batch) {
  VAYU_CHECK(num_steps_ < (config_.overlap ? 2 : 1), "plan before the last step was committed");
  batch.clear();
  rows_.clear();
  must_land_ = false;
  expire_deadlines();
  admit_waiting();
  if (must_land_) return false;
  share_tokens();
  allocate_pages();
  if (must_land_) return false;
  build_batch(batch);
  if (rows_.empty() && !running_.empty()) {  // kPrefillFirst: the prompt waits for pages that decodes hold
    offer_decodes();
    allocate_pages();
    if (must_land_) return false;
    build_batch(batch);
  }
  VAYU_CHECK(!rows_.empty() || num_steps_ > 0 || !has_work(), "{} running and {} waiting, but nothing to compute",
             running_.size(), waiting_.size());
  if (rows_.empty() && num_steps_ > 0) return false;
  counters_.last_batch_tokens = batch.num_tokens();
  counters_.last_batch_rows = batch.num_rows();
  if (rows_.empty()) return false;
  note_step();
  return true;
}

// ---- admission

void Scheduler::admit_waiting() {
  // Each prompt in progress needs a token a step; the plain policies have one at a time.
  const int32_t max_prefills = config_.policy == SchedulerPolicy::kMixed ? config_.chunked_prefill_size : 1;
  int32_t prefills = 0, long_prefills = 0;
  const auto is_hopeless = [this] {  // no slot, and nobody less urgent to take one from
    return waiting_.empty() ||
           (static_cast<int32_t>(running_.size()) == config_.max_num_seqs &&
            running_.back()->request->request.priority <= waiting_.front()->request->request.priority);
  };
  for (const Sequence* seq : running_) {
    prefills += seq->num_missing() > 1;
    long_prefills += seq->num_missing() > config_.chunked_prefill_size;
  }
  while (!is_hopeless() && prefills < max_prefills) {
    const size_t index = next_candidate(long_prefills < config_.max_long_prefills);
    if (index == kNone) return;
    Sequence& seq = *waiting_[index];
    if (!try_admit(seq, index)) return;  // what fits less well does not overtake, or a large prompt might starve
    prefills += seq.num_missing() > 1;
    long_prefills += seq.num_missing() > config_.chunked_prefill_size;
  }
}

// The first waiting answer, or one close behind it whose prompt is mostly cached: that one costs little, and its pages
// may be gone later. The first one is overtaken only while it is young.
size_t Scheduler::next_candidate(bool takes_long) {
  const size_t window = std::min(waiting_.size(), kAdmitWindow);
  const auto must_wait = [&](Sequence& seq) { return waits_for_leader(seq) || (!takes_long && is_long(seq)); };
  size_t head = 0;
  while (head < window && must_wait(*waiting_[head])) ++head;
  if (head == window) return kNone;
  const Request& first = waiting_[head]->request->request;
  if (!config_.prefix_cache || clock_.now_us() - first.arrival_us > config_.max_overtake_us) return head;
  for (size_t i = head; i < std::min(window, head + kOvertakeWindow); ++i) {
    Sequence& seq = *waiting_[i];
    if (seq.request->request.priority != first.priority) break;
    if (i > head && must_wait(seq)) continue;
    const int64_t cached_tokens = int64_t{match_prefix(seq)} * pool_.page_size();
    if (2 * cached_tokens >= static_cast<int64_t>(known_tokens(seq).size())) return i;
  }
  return head;
}

// Computing a prefix twice at the same time wastes a whole prefill: the second answer waits until the first has
// published it. Answers of one request always wait; other requests only for max_share_wait_us.
bool Scheduler::waits_for_leader(Sequence& seq) {
  const RequestState& state = *seq.request;
  const int32_t page_size = pool_.page_size();
  for (const Sequence& sibling : state.sequences) {
    if (sibling.state != Sequence::State::kRunning) continue;
    if (state.scoring()) return true;
    if (config_.prefix_cache && sibling.num_landed < (state.prompt_len() - 1) / page_size * page_size) return true;
  }
  if (!config_.prefix_cache || state.scoring()) return false;
  const int64_t now_us = clock_.now_us();
  if (seq.leader_since_us > 0 && now_us - seq.leader_since_us > config_.max_share_wait_us) return false;
  if (seq.leader != 0) {
    const Sequence* leader = find_running(seq.leader);
    if (leader != nullptr && leader->num_landed < seq.leader_tokens) return true;
    seq.leader = 0;
  }
  const auto tokens = known_tokens(seq);
  int32_t best = 0;
  for (const Sequence* other : running_) {
    if (other->num_known() - other->num_landed <= 1 || other->request->space != state.space) continue;
    const int32_t common = common_prefix(tokens.first(tokens.size() - 1), other->tokens) / page_size * page_size;
    if (common <= std::max(best, other->num_landed)) continue;
    best = common;
    seq.leader = other->id;
  }
  if (best == 0 || best <= match_prefix(seq) * page_size) {
    seq.leader = 0;
    return false;
  }
  seq.leader_tokens = best;
  if (seq.leader_since_us == 0) seq.leader_since_us = std::max<int64_t>(now_us, 1);
  return true;
}

// More prompt than one step takes, the cached part aside.
bool Scheduler::is_long(const Sequence& seq) {
  const int64_t known = static_cast<int64_t>(known_tokens(seq).size());
  if (known <= config_.chunked_prefill_size) return false;
  return known - int64_t{match_prefix(seq)} * pool_.page_size() > config_.chunked_prefill_size;
}

bool Scheduler::try_admit(Sequence& seq, size_t index) {
  const int32_t hit = match_prefix(seq);
  const int32_t total = pool_.pages_for(static_cast<int32_t>(known_tokens(seq).size()) + 1);
  for (;;) {
    // Hit pages that nobody uses yet count as available now and will not once this answer holds them.
    int32_t needed = total - hit + tree_.count_unlocked(path_);
    if (!running_.empty()) needed += pages_wanted_by_running() + headroom_pages(&seq);
    const bool has_slot = static_cast<int32_t>(running_.size()) < config_.max_num_seqs;
    if (has_slot && needed <= pool_.num_free() + tree_.num_evictable()) break;
    // Only a strictly more urgent request pushes others out; they queue behind it, so this cannot go round in circles.
    if (running_.empty() || running_.back()->request->request.priority <= seq.request->request.priority) return false;
    if (!may_preempt()) return false;
    preempt_last();
  }
  start(seq, index);
  return true;
}

// The last known token is always computed (its logits are wanted), and so is every position still to be scored.
int32_t Scheduler::match_prefix(const Sequence& seq) {
  path_.clear();
  if (!config_.prefix_cache) return 0;
  const auto tokens = known_tokens(seq);
  int32_t limit = static_cast<int32_t>(tokens.size()) - 1;
  if (seq.request->scoring()) limit = std::min(limit, seq.request->num_scored());
  tree_.match(seq.request->space, tokens, limit / pool_.page_size(), path_);
  return static_cast<int32_t>(path_.size());
}

void Scheduler::start(Sequence& seq, size_t index) {
  RequestState& state = *seq.request;
  waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(index));
  insert_ordered(running_, &seq);
  seq.state = Sequence::State::kRunning;
  seq.leader = 0;
  tree_.lock(path_);
  seq.num_tree_pages = static_cast<int32_t>(path_.size());
  seq.num_computed = seq.num_landed = seq.num_tree_pages * pool_.page_size();
  if (seq.tokens.empty()) {
    const int64_t capacity =
        std::min<int64_t>(max_tokens_, int64_t{state.prompt_len()} + state.request.sampling.max_tokens);
    seq.tokens.reserve(capacity);
    seq.tokens.assign(state.request.prompt.begin(), state.request.prompt.end());
    seq.pages.reserve(pool_.pages_for(static_cast<int32_t>(capacity)));
    seq.cached_tokens = seq.num_computed;
    seq.first_own_page = seq.num_tree_pages;
    seq.started_us = clock_.now_us();
    counters_.prompt_tokens += state.prompt_len();
    counters_.cached_tokens += seq.cached_tokens;
  }
  seq.first_own_page = std::min(seq.first_own_page, seq.num_tree_pages);
  seq.pages.assign(path_.begin(), path_.end());
  state.started = true;
}

// ---- tokens

void Scheduler::share_tokens() {
  const int32_t budget = config_.max_num_batched_tokens;
  for (Sequence* seq : running_) seq->num_planned = 0;
  if (config_.policy == SchedulerPolicy::kPrefillFirst) {
    const auto it =
        std::ranges::find_if(running_, [](const Sequence* seq) { return seq->is_open() && seq->num_missing() > 1; });
    if (it != running_.end()) {
      int32_t spare_logits = config_.max_logits_per_step - 1;
      (*it)->num_planned = std::min(budget, wanted_tokens(**it, spare_logits));
      return;
    }
  }
  const int32_t decodes = offer_decodes();
  share_prefill_tokens(std::min(config_.chunked_prefill_size, budget - decodes));
}

int32_t Scheduler::offer_decodes() {
  int32_t count = 0;
  for (Sequence* seq : running_) {
    if (!seq->is_open() || seq->num_missing() != 1) continue;
    seq->num_planned = 1;
    ++count;
  }
  return count;
}

// The first prompt in order of service gets half of the budget, the others equal parts of the rest; what a short one
// leaves goes to the longer ones, and at last to the first. So the oldest advances fast and a short one is not held up.
void Scheduler::share_prefill_tokens(int32_t budget) {
  prefills_.clear();
  for (Sequence* seq : running_) {
    if (seq->is_open() && seq->num_missing() > 1) prefills_.push_back(seq);
  }
  if (prefills_.empty()) return;
  std::sort(prefills_.begin() + 1, prefills_.end(), [](const Sequence* a, const Sequence* b) {
    return a->num_missing() != b->num_missing() ? a->num_missing() < b->num_missing() : a->id < b->id;
  });
  int32_t spare_logits = config_.max_logits_per_step - static_cast<int32_t>(running_.size());
  int32_t left = budget;
  for (size_t i = 0; i < prefills_.size(); ++i) {
    Sequence& seq = *prefills_[i];
    const int32_t others = static_cast<int32_t>(prefills_.size() - i - 1);
    const int32_t share = i == 0 && others > 0 ? std::min((left + 1) / 2, left - others) : left / (others + 1);
    seq.num_planned = std::min(share, wanted_tokens(seq, spare_logits));
    left -= seq.num_planned;
  }
  Sequence& first = *prefills_[0];
  if (!first.request->scoring()) first.num_planned += std::min(left, first.num_missing() - first.num_planned);
}

// One row of logits is always there for a running answer; a prompt being scored wants one a token.
int32_t Scheduler::wanted_tokens(const Sequence& seq, int32_t& spare_logits) const {
  if (!seq.request->scoring()) return seq.num_missing();
  const int32_t without_logits = std::max(0, seq.request->num_scored() - seq.num_computed);
  const int32_t wanted = std::min(seq.num_missing(), without_logits + 1 + spare_logits);
  spare_logits -= std::max(0, wanted - without_logits - 1);
  return wanted;
}

// ---- pages

void Scheduler::allocate_pages() {
  for (size_t i = 0; i < running_.size(); ++i) {  // shrinks from the back as answers are preempted
    Sequence& seq = *running_[i];
    if (seq.num_planned == 0 || ensure_pages(seq, seq.num_computed + seq.num_planned)) continue;
    if (must_land_) return;
    const int32_t room = static_cast<int32_t>(seq.pages.size()) * pool_.page_size() - seq.num_computed;
    seq.num_planned = std::min(seq.num_planned, room);
  }
}

// False: all others behind are preempted, and those before keep the rest. The answer stalls with what it has.
bool Scheduler::ensure_pages(Sequence& seq, int32_t num_tokens) {
  while (static_cast<int32_t>(seq.pages.size()) < pool_.pages_for(num_tokens)) {
    const PageId page = pool_.allocate();
    if (page != kNoPage) {
      seq.pages.push_back(page);
    } else if (!tree_.evict_one()) {
      if (running_.back() == &seq || !may_preempt()) return false;
      preempt_last();
    }
  }
  return true;
}

bool Scheduler::may_preempt() {
  must_land_ = num_steps_ > 0;
  return !must_land_;
}

void Scheduler::preempt_last() {
  Sequence& seq = *running_.back();
  running_.pop_back();
  if (!seq.pages.empty()) ++counters_.preemptions;
  release_pages(seq);
  seq.state = Sequence::State::kWaiting;
  insert_ordered(waiting_, &seq);
}

int32_t Scheduler::pages_wanted_by_running() const {
  int32_t wanted = 0;
  for (const Sequence* seq : running_) {
    wanted += std::max(0, pool_.pages_for(seq->num_tokens() + 1) - static_cast<int32_t>(seq->pages.size()));
  }
  return wanted;
}

// Pages the answers may need soon beyond their known tokens: without them admission would be undone a few steps later.
int32_t Scheduler::headroom_pages(const Sequence* candidate) const {
  const auto growth = [this](const Sequence& seq) {
    const SamplingParams& params = seq.request->request.sampling;
    const auto known = static_cast<int32_t>(known_tokens(seq).size());
    const int32_t remaining = params.max_tokens - (known - seq.request->prompt_len()) - 1;
    const int32_t more = std::clamp(remaining, 0, config_.admit_headroom_tokens);
    return pool_.pages_for(known + 1 + more) - pool_.pages_for(known + 1);
  };
  int32_t pages = growth(*candidate);
  for (const Sequence* seq : running_) pages += growth(*seq);
  return pages;
}

// ---- batch

void Scheduler::build_batch(Batch& batch) {
  rows_.clear();
  for (Sequence* seq : running_) {
    if (seq->num_planned > 0 && seq->num_missing() == 1) rows_.push_back(seq);
  }
  for (Sequence* seq : running_) {
    if (seq->num_planned > 0 && seq->num_missing() > 1) rows_.push_back(seq);
  }
  for (Sequence* seq : rows_) add_row(*seq, batch);
  if (std::ranges::none_of(rows_, [](const Sequence* seq) { return seq->num_pending > 0; })) batch.prev_samples.clear();
}

// From here on the step's tokens count as computed and those it samples as there, if not by name.
void Scheduler::note_step() {
  std::vector<StepRow>& step = steps_[(oldest_ + num_steps_++) % 2];
  int32_t num_samples = 0;
  for (Sequence* seq : rows_) {
    num_samples += seq->num_samples;
    seq->num_computed += seq->num_planned;
    ++seq->steps_under_way;
    const bool samples_token = seq->num_missing() == 0;
    step.push_back({seq, seq->num_planned, seq->num_samples, samples_token});
    if (!samples_token) continue;
    seq->tokens.push_back(kNoToken);
    ++seq->num_pending;
    seq->pending_sample = num_samples - 1;
    const RequestState& state = *seq->request;
    seq->last_pending =
        seq->num_tokens() - state.prompt_len() >= state.request.sampling.max_tokens || seq->num_tokens() >= max_tokens_;
  }
}

void Scheduler::add_row(Sequence& seq, Batch& batch) {
  const int32_t page_size = pool_.page_size();
  const int32_t first_token = batch.num_tokens();
  const int32_t kv_len = seq.num_computed + seq.num_planned;
  for (int32_t position = seq.num_computed; position < kv_len; ++position) {
    batch.token_ids.push_back(seq.tokens[position]);
    batch.prev_samples.push_back(position < seq.num_known() ? -1 : seq.pending_sample);
    batch.positions.push_back(position);
    batch.slot_mapping.push_back(seq.pages[position / page_size] * page_size + position % page_size);
  }
  batch.qo_indptr.push_back(batch.num_tokens());
  batch.page_table.insert(batch.page_table.end(), seq.pages.begin(), seq.pages.begin() + pool_.pages_for(kv_len));
  batch.kv_indptr.push_back(static_cast<int32_t>(batch.page_table.size()));
  batch.kv_lens.push_back(kv_len);
  const size_t before = batch.samples.size();
  add_samples(seq, first_token, batch);
  seq.num_samples = static_cast<int32_t>(batch.samples.size() - before);
}

void Scheduler::add_samples(Sequence& seq, int32_t first_token, Batch& batch) {
  const RequestState& state = *seq.request;
  const Request& request = state.request;
  const auto add = [&](int32_t position) -> SampleTask& {
    batch.logit_rows.push_back(first_token + position - seq.num_computed);
    SampleTask& task = batch.samples.emplace_back();
    task.logit_row = batch.num_logits() - 1;
    task.seq = seq.id;
    task.params = &request.sampling;
    task.tokens = std::span(seq.tokens).first(std::min(position + 1, seq.num_known()));
    task.prompt_len = state.prompt_len();
    task.seed = request.sampling.seed + static_cast<uint64_t>(seq.choice);
    return task;
  };
  const int32_t end = seq.num_computed + seq.num_planned;
  if (state.scoring()) {
    const int32_t last = std::min(end, state.prompt_len() - 1);
    for (int32_t p = std::max(seq.num_computed, state.num_scored()); p < last; ++p)
      add(p).target = request.prompt[p + 1];
  }
  if (end < seq.num_tokens()) return;
  SampleTask& task = add(end - 1);
  if (seq.num_pending > 0) task.prev_sample = seq.pending_sample;
  task.output_index = seq.num_tokens() - state.prompt_len();
  if (task.output_index < static_cast<int32_t>(request.forced_output.size())) {
    task.forced = request.forced_output[task.output_index];
  }
  task.poison = task.output_index == request.fail_at_token;
  if (task.output_index < request.sampling.min_tokens) task.banned = state.banned;
}

void Scheduler::reserve(Batch& batch) const {
  const size_t tokens = config_.max_num_batched_tokens, rows = config_.max_num_seqs;
  batch.token_ids.reserve(tokens);
  batch.prev_samples.reserve(tokens);
  batch.positions.reserve(tokens);
  batch.slot_mapping.reserve(tokens);
  batch.qo_indptr.reserve(rows + 1);
  batch.kv_indptr.reserve(rows + 1);
  batch.page_table.reserve(rows * pool_.pages_for(max_tokens_));  // shared pages count once a row
  batch.kv_lens.reserve(rows);
  batch.logit_rows.reserve(config_.max_logits_per_step);
  batch.samples.reserve(config_.max_logits_per_step);
}

std::span<const TokenId> Scheduler::known_tokens(const Sequence& seq) const {
  return seq.tokens.empty() ? std::span<const TokenId>(seq.request->request.prompt) : seq.tokens;
}

Sequence* Scheduler::find_running(SeqId id) const {
  const auto it = std::ranges::find(running_, id, &Sequence::id);
  return it == running_.end() ? nullptr : *it;
}

}  // namespace vayu
