// Life cycle: add, cancel, commit, finish. What a step computes is decided in plan.cc.
#include "scheduler/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace vayu {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

OutputToken to_output_token(const SampleResult& result) {
  OutputToken out{.token = result.token, .logprob = result.logprob, .top = {}};
  out.top.assign(result.top.begin(), result.top.begin() + result.num_top);
  return out;
}

std::vector<TokenId> ids_that_end(const SamplingParams& params, const std::vector<TokenId>& end_ids) {
  std::vector<TokenId> ids = params.stop_token_ids;
  if (!params.ignore_eos) ids.insert(ids.end(), end_ids.begin(), end_ids.end());
  std::ranges::sort(ids);
  ids.erase(std::ranges::unique(ids).begin(), ids.end());
  return ids;
}

}  // namespace

// Progress rests on this: every running answer can have one token and one row of logits in a step.
SchedulerConfig Scheduler::normalize(SchedulerConfig config, const ExecutorLimits& limits) {
  config.max_num_batched_tokens = std::clamp(config.max_num_batched_tokens, 1, limits.max_step_tokens);
  config.chunked_prefill_size = std::clamp(config.chunked_prefill_size, 1, config.max_num_batched_tokens);
  config.max_logits_per_step = std::max(config.max_logits_per_step, 1);
  config.max_num_seqs = std::clamp(
      config.max_num_seqs, 1, std::min({limits.max_rows, config.max_num_batched_tokens, config.max_logits_per_step}));
  config.max_long_prefills = std::max(config.max_long_prefills, 1);
  return config;
}

Scheduler::Scheduler(SchedulerConfig config, const ExecutorLimits& limits, const Clock& clock)
    : config_(normalize(std::move(config), limits)),
      limits_(limits),
      clock_(clock),
      max_tokens_(
          static_cast<int32_t>(std::min<int64_t>(limits.max_context, int64_t{limits.num_pages} * limits.page_size))),
      pool_(limits.num_pages, limits.page_size),
      tree_(pool_, config_.tree),
      next_deadline_us_(kNever) {
  waiting_.reserve(config_.max_queued + config_.max_num_seqs);
  running_.reserve(config_.max_num_seqs);
  rows_.reserve(config_.max_num_seqs);
  for (std::vector<StepRow>& step : steps_) step.reserve(config_.max_num_seqs);
  leaving_.reserve(2 * config_.max_num_seqs);
  superseded_.reserve(pool_.num_pages());
  prefills_.reserve(config_.max_num_seqs);
  path_.reserve(pool_.pages_for(max_tokens_));
}

Scheduler::~Scheduler() = default;

Status Scheduler::admit_check(const Request& request) const {
  if (request.prompt.empty()) return field_error("prompt", "the prompt has no tokens");
  if (request.n < 1) return field_error("n", "n is {}; at least 1 answer", request.n);
  if (static_cast<int64_t>(request.prompt.size()) >= max_tokens_) {
    return field_error(
        "prompt",
        "the prompt has {} tokens; at most {} fit, with room for one token of output (context {} tokens, "
        "KV pool {} tokens)",
        request.prompt.size(), max_tokens_ - 1, limits_.max_context, int64_t{limits_.num_pages} * limits_.page_size);
  }
  return {};
}

Status Scheduler::add(Request request) {
  VAYU_RETURN_IF_ERROR(admit_check(request));
  if (static_cast<int64_t>(waiting_.size()) >= config_.max_queued) {
    return make_error(ErrorKind::kResourceExhausted, "{} answers are waiting; the queue holds {}", waiting_.size(),
                      config_.max_queued);
  }
  const RequestId id = request.id;
  auto [it, added] = requests_.try_emplace(id, std::make_unique<RequestState>());
  VAYU_CHECK(added, "request id {} is in use", id);
  RequestState& state = *it->second;
  state.request = std::move(request);
  const SamplingParams& params = state.request.sampling;
  state.space = tree_.open_namespace(state.request.cache_namespace);
  state.num_alive = state.request.n;
  state.banned = ids_that_end(params, config_.end_ids);
  if (params.prompt_logprobs >= 0) {
    state.prompt_scores.reserve(state.prompt_len());
    state.prompt_scores.push_back(
        {.token = state.request.prompt[0], .logprob = std::numeric_limits<float>::quiet_NaN(), .top = {}});
  }
  if (state.request.deadline_us > 0) next_deadline_us_ = std::min(next_deadline_us_, state.request.deadline_us);
  if (!has_work()) work_since_us_ = std::max<int64_t>(clock_.now_us(), 1);
  state.sequences.resize(state.request.n);
  for (int32_t choice = 0; choice < state.request.n; ++choice) {
    Sequence& seq = state.sequences[choice];
    seq.id = next_seq_++;
    seq.request = &state;
    seq.choice = choice;
    insert_ordered(waiting_, &seq);
  }
  return {};
}

void Scheduler::cancel(RequestId id, int32_t choice, FinishReason reason) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  for (Sequence& seq : it->second->sequences) {
    if (choice < 0 || seq.choice == choice) cancel_sequence(seq, reason);
  }
  bury_dead();
}

void Scheduler::cancel_sequence(Sequence& seq, FinishReason reason) {
  if (seq.state == Sequence::State::kDone) return;
  if (seq.state == Sequence::State::kRunning && num_steps_ > 0) {
    if (!seq.cancel) seq.cancel = reason;
  } else {
    finish(seq, reason);
  }
}

void Scheduler::expire_deadlines() {
  const int64_t now_us = clock_.now_us();
  if (now_us <= next_deadline_us_) return;
  next_deadline_us_ = kNever;
  for (size_t i = 0; i < waiting_.size();) {
    Sequence& seq = *waiting_[i];
    const int64_t deadline_us = seq.request->request.deadline_us;
    if (deadline_us <= 0 || seq.request->started) {
      ++i;
    } else if (now_us > deadline_us) {
      finish(seq, FinishReason::kError,
             make_error(ErrorKind::kUnavailable, "the deadline passed {} us ago, before the request could start",
                        now_us - deadline_us));
    } else {
      next_deadline_us_ = std::min(next_deadline_us_, deadline_us);
      ++i;
    }
  }
  bury_dead();
}

void Scheduler::commit(const StepOutput& output) {
  VAYU_CHECK(num_steps_ > 0, "commit without a planned step");
  std::vector<StepRow>& rows = steps_[oldest_];
  oldest_ ^= 1;
  --num_steps_;
  free_superseded();
  counters_.last_step_end_us = clock_.now_us();
  ++counters_.steps;
  size_t next = 0;
  for (const StepRow& row : rows) {
    VAYU_CHECK(next + row.num_samples <= output.results.size(), "{} results", output.results.size());
    const auto results = std::span(output.results).subspan(next, row.num_samples);
    next += results.size();
    commit_row(row, results);
  }
  VAYU_CHECK(next == output.results.size(), "{} results for {} samples", output.results.size(), next);
  rows.clear();
  for (size_t i = 0; i < running_.size();) {  // cancelled during the step without a row in it
    Sequence& seq = *running_[i];
    seq.cancel ? finish(seq, *seq.cancel) : void(++i);
  }
  bury_dead();
  work_since_us_ = has_work() ? std::max<int64_t>(counters_.last_step_end_us, 1) : 0;
}

void Scheduler::abandon(const Error& error) {
  for (std::vector<StepRow>& step : steps_) {
    for (const StepRow& row : step) row.seq->steps_under_way = 0;
    step.clear();
  }
  num_steps_ = 0;
  free_superseded();
  for (Sequence* seq : leaving_) let_go(*seq);
  leaving_.clear();
  while (!running_.empty()) finish(*running_.back(), FinishReason::kError, error);
  while (!waiting_.empty()) finish(*waiting_.back(), FinishReason::kError, error);
  bury_dead();
}

void Scheduler::commit_row(const StepRow& row, std::span<const SampleResult> results) {
  Sequence& seq = *row.seq;
  --seq.steps_under_way;
  if (seq.state == Sequence::State::kDone) {  // ended by the step before: this row was planned in vain
    if (seq.steps_under_way > 0) return;
    std::erase(leaving_, &seq);
    return let_go(seq);
  }
  seq.num_landed += row.num_tokens;
  if (seq.cancel) return finish(seq, *seq.cancel);
  if (!std::ranges::all_of(results, &SampleResult::finite)) return fail_non_finite(seq);
  publish_pages(seq);
  if (!results.empty()) mark_verified(seq);
  for (const SampleResult& score : results.first(results.size() - row.samples_token)) {
    seq.request->prompt_scores.push_back(to_output_token(score));
  }
  if (row.samples_token) commit_token(seq, results.back());
}

void Scheduler::commit_token(Sequence& seq, const SampleResult& result) {
  RequestState& state = *seq.request;
  const SamplingParams& params = state.request.sampling;
  seq.tokens[seq.num_known()] = result.token;
  --seq.num_pending;
  const int32_t num_output = seq.num_known() - state.prompt_len();
  ++counters_.generated_tokens;

  SequenceDelta& delta = new_delta(seq);
  delta.tokens.push_back(to_output_token(result));
  if (params.prompt_logprobs >= 0 && !std::exchange(seq.prompt_sent, true)) delta.prompt = state.prompt_scores;
  // Below min_tokens the sampler cannot choose these ids; only the forcing hook can, and then they do not end it
  // either.
  if (num_output > params.min_tokens && std::ranges::binary_search(state.banned, result.token)) {
    delta.finish = FinishReason::kStop;
    delta.stop_token = result.token;
  } else if (num_output >= params.max_tokens || seq.num_known() >= max_tokens_) {
    delta.finish = FinishReason::kLength;
  }
  if (delta.finish) retire(seq);
}

void Scheduler::fail_non_finite(Sequence& seq) {
  ++counters_.non_finite_rows;
  // What it computed, in this life or before, and what nobody has shown to be sound leaves the cache.
  tree_.match(seq.request->space, std::span(seq.tokens).first(seq.num_known()), pool_.num_pages(), path_);
  for (size_t i = 0; i < path_.size(); ++i) {
    if (static_cast<int32_t>(i) < seq.first_own_page && tree_.verified(path_[i])) continue;
    tree_.discard(path_[i]);
    break;
  }
  finish(seq, FinishReason::kError,
         make_error(ErrorKind::kInternal, "the model's output for this answer is not finite (token {} of the output)",
                    seq.num_known() - seq.request->prompt_len()));
}

void Scheduler::publish_pages(Sequence& seq) {
  if (!config_.prefix_cache) return;
  const int32_t page_size = pool_.page_size();
  while ((seq.num_tree_pages + 1) * page_size <= seq.num_landed) {
    const int32_t i = seq.num_tree_pages++;
    const PageId own = seq.pages[i];
    seq.pages[i] = tree_.insert(seq.request->space, i == 0 ? kNoPage : seq.pages[i - 1],
                                std::span(seq.tokens).subspan(i * page_size, page_size), own);
    if (seq.pages[i] != own) free_later(own);
  }
}

void Scheduler::mark_verified(Sequence& seq) {
  for (; seq.num_verified < seq.num_tree_pages; ++seq.num_verified) tree_.mark_verified(seq.pages[seq.num_verified]);
}

void Scheduler::release_pages(Sequence& seq) {
  tree_.unlock(seq.tree_path());
  for (size_t i = seq.num_tree_pages; i < seq.pages.size(); ++i) pool_.release(seq.pages[i]);
  seq.pages.clear();
  seq.num_tree_pages = seq.num_computed = seq.num_landed = seq.num_verified = 0;
}

// A page the sequence has left for a copy of it: a step under way was planned with the old one.
void Scheduler::free_later(PageId page) { num_steps_ > 0 ? superseded_.push_back(page) : pool_.release(page); }

void Scheduler::free_superseded() {
  for (const PageId page : superseded_) pool_.release(page);
  superseded_.clear();
}

SequenceDelta& Scheduler::new_delta(const Sequence& seq) {
  SequenceDelta& delta = deltas_.emplace_back();
  delta.request_id = seq.request->request.id;
  delta.choice = seq.choice;
  delta.cached_tokens = seq.cached_tokens;
  delta.scheduled_us = seq.started_us;
  delta.time_us = clock_.now_us();
  return delta;
}

void Scheduler::finish(Sequence& seq, FinishReason reason, std::optional<Error> error) {
  SequenceDelta& delta = new_delta(seq);
  delta.finish = reason;
  delta.error = std::move(error);
  if (reason == FinishReason::kError && !delta.error) delta.error = make_error(ErrorKind::kCancelled, "cancelled");
  retire(seq);
}

void Scheduler::retire(Sequence& seq) {
  const bool was_running = seq.state == Sequence::State::kRunning;
  std::erase(was_running ? running_ : waiting_, &seq);
  seq.state = Sequence::State::kDone;
  seq.steps_under_way > 0 ? leaving_.push_back(&seq) : let_go(seq);
  if (!has_work()) work_since_us_ = 0;
}

// No step has a row of the ended sequence any more.
void Scheduler::let_go(Sequence& seq) {
  release_pages(seq);
  if (--seq.request->num_alive == 0) dead_.push_back(seq.request->request.id);
}

void Scheduler::bury_dead() {
  for (RequestId id : dead_) {
    const auto it = requests_.find(id);
    tree_.close_namespace(it->second->space);
    requests_.erase(it);
  }
  dead_.clear();
}

void Scheduler::take_deltas(std::vector<SequenceDelta>& deltas) {
  deltas.clear();
  std::swap(deltas, deltas_);
}

EngineStats Scheduler::stats() const {
  EngineStats stats = counters_;
  stats.running = static_cast<int32_t>(running_.size());
  stats.waiting = static_cast<int32_t>(waiting_.size());
  stats.total_pages = pool_.num_pages();
  stats.free_pages = pool_.num_free();
  stats.cached_pages = tree_.num_evictable();
  stats.page_size = pool_.page_size();
  stats.step_running_since_us = work_since_us_;
  return stats;
}

Status Scheduler::audit() const {
  VAYU_RETURN_IF_ERROR(tree_.audit());
  std::vector<int32_t> locks(pool_.num_pages(), 0);
  int32_t in_use = 0;
  const auto fault = [](const Sequence& seq, PageId page, std::string_view what) {
    return make_error(ErrorKind::kInternal, "answer {} of request {}, KV page {}: {}", seq.choice,
                      seq.request->request.id, page, what);
  };
  for (const std::vector<Sequence*>* list : {&running_, &leaving_}) {
    for (const Sequence* seq : *list) {
      for (size_t i = 0; i < seq->pages.size(); ++i) {
        const PageId page = seq->pages[i];
        const bool in_tree = static_cast<int32_t>(i) < seq->num_tree_pages;
        if (pool_.owner(page) != (in_tree ? PagePool::Owner::kTree : PagePool::Owner::kSequence)) {
          return fault(*seq, page, "wrong owner");
        }
        if (++locks[page] > 1 && !in_tree) return fault(*seq, page, "used twice");
        in_use += !in_tree;
      }
    }
  }
  for (const PageId page : superseded_) {
    if (pool_.owner(page) != PagePool::Owner::kSequence || ++locks[page] > 1) {
      return make_error(ErrorKind::kInternal, "KV page {}: superseded, but in use", page);
    }
    ++in_use;
  }
  for (PageId page = 0; page < pool_.num_pages(); ++page) {
    if (pool_.owner(page) == PagePool::Owner::kTree && tree_.lock_count(page) != locks[page]) {
      return make_error(ErrorKind::kInternal, "KV page {}: {} locks, {} users", page, tree_.lock_count(page),
                        locks[page]);
    }
  }
  for (const Sequence* seq : waiting_) {
    if (!seq->pages.empty()) return fault(*seq, seq->pages[0], "held while waiting");
  }
  if (pool_.num_free() != pool_.count(PagePool::Owner::kFree) ||
      pool_.num_free() + tree_.num_pages() + in_use != pool_.num_pages()) {
    return make_error(ErrorKind::kInternal, "KV pages: {} free + {} in the tree + {} in use is not {}",
                      pool_.num_free(), tree_.num_pages(), in_use, pool_.num_pages());
  }
  return {};
}

void Scheduler::rebuild_cache() {
  VAYU_CHECK(num_steps_ == 0, "rebuild during a step");
  for (Sequence* seq : running_) {
    seq->pages.clear();
    seq->num_tree_pages = seq->num_computed = seq->num_landed = seq->num_verified = 0;
    seq->state = Sequence::State::kWaiting;
    insert_ordered(waiting_, seq);
  }
  running_.clear();
  tree_.reset();
  pool_.reset();
}

}  // namespace vayu
