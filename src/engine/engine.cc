#include "engine/engine.h"

#include "telemetry/nvtx_range.h"

namespace vayu {
namespace {

EngineConfig with_overlap(EngineConfig config, bool overlaps) {
  config.scheduler.overlap = overlaps;
  return config;
}

}  // namespace

Engine::Engine(EngineConfig config, std::unique_ptr<Executor> executor, const Clock& clock)
    : config_(with_overlap(std::move(config), executor->overlaps())),
      clock_(clock),
      executor_(std::move(executor)),
      scheduler_(config_.scheduler, executor_->limits(), clock) {
  const ExecutorLimits& limits = executor_->limits();
  info_ = {.model_name = config_.model_name,
           .vocab_size = limits.vocab_size,
           .max_context = scheduler_.max_tokens_per_sequence(),
           .max_request_pages = limits.num_pages,
           .page_size = limits.page_size};
  for (Batch& batch : batches_) scheduler_.reserve(batch);
  publish_stats();
  thread_ = std::thread([this] { loop(); });
}

Engine::~Engine() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  inbox_ready_.notify_one();
  thread_.join();
}

Result<RequestId> Engine::submit(Request request, DeltaSink sink) {
  if (request.id == 0) request.id = next_id_.fetch_add(1, std::memory_order_relaxed);
  if (request.arrival_us == 0) request.arrival_us = clock_.now_us();
  VAYU_RETURN_IF_ERROR(scheduler_.admit_check(request));  // reads the configuration only
  const RequestId id = request.id;
  {
    std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    if (stopping_ || draining_) return make_error(ErrorKind::kUnavailable, "the server is shutting down");
    if (open_requests_.load(std::memory_order_relaxed) >= config_.max_open_requests) {
      return make_error(ErrorKind::kResourceExhausted, "{} requests are running or waiting already, the limit",
                        config_.max_open_requests);
    }
    open_requests_.fetch_add(1, std::memory_order_relaxed);
    submissions_.push_back({std::move(request), std::move(sink)});
  }
  inbox_ready_.notify_one();
  return id;
}

void Engine::cancel(RequestId id, int32_t choice, FinishReason reason) {
  {
    std::lock_guard lock(mutex_);
    cancellations_.push_back({id, choice, reason});
  }
  inbox_ready_.notify_one();
}

EngineStats Engine::stats() const {
  std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.step_running_since_us = busy_since_us_.load(std::memory_order_relaxed);
  return stats;
}

void Engine::drain(int64_t deadline_us) {
  {
    std::lock_guard lock(mutex_);
    draining_ = true;
    drain_deadline_us_ = deadline_us;
  }
  inbox_ready_.notify_one();
}

void Engine::loop() {
  auto patience = std::chrono::microseconds::max();  // how long to wait for news before the next plan
  while (wait_for_work(patience)) {
    take_inbox();
    if (scheduler_.has_work() && busy_since_us_.load(std::memory_order_relaxed) == 0) busy_since_us_ = clock_.now_us();
    const bool planned = start_step();
    if (steps_under_way_ == (config_.scheduler.overlap ? 2 : 1) || (!planned && steps_under_way_ > 0)) end_step();
    const bool busy = scheduler_.has_work();
    busy_since_us_ = busy ? clock_.now_us() : 0;
    publish_stats();  // before the news goes out: who has an answer finds it counted
    dispatch();
    // With no step under way the scheduler always finds one while it has work; should it not, do not spin.
    patience = planned || steps_under_way_ > 0
                   ? std::chrono::microseconds(0)
                   : (busy ? std::chrono::microseconds(500) : std::chrono::microseconds::max());
  }
  while (steps_under_way_ > 0) end_step();  // nobody wants its results, but it works on the executor's memory
}

// Waits while there is nothing to do. A stop first ends every open answer.
bool Engine::wait_for_work(std::chrono::microseconds patience) {
  std::unique_lock lock(mutex_);
  const auto news = [&] { return stopping_ || !submissions_.empty() || !cancellations_.empty(); };
  if (patience == std::chrono::microseconds::max()) {
    inbox_ready_.wait(lock, news);
  } else if (patience.count() > 0) {
    inbox_ready_.wait_for(lock, patience, news);
  }
  const bool cancel_all = stopping_ || (draining_ && clock_.now_us() >= drain_deadline_us_);
  if (cancel_all) {
    for (const auto& [id, request] : open_) cancellations_.push_back({id, -1, FinishReason::kCancelled});
    for (const Submission& s : submissions_) cancellations_.push_back({s.request.id, -1, FinishReason::kCancelled});
  }
  return !(stopping_ && open_.empty() && submissions_.empty());
}

void Engine::take_inbox() {
  {
    std::lock_guard lock(mutex_);
    std::swap(submissions_, taken_submissions_);
    std::swap(cancellations_, taken_cancellations_);
  }
  for (Submission& s : taken_submissions_) {
    if (s.request.stall_ms > 0) {
      if (busy_since_us_.load() == 0) busy_since_us_ = clock_.now_us();
      std::this_thread::sleep_for(std::chrono::milliseconds(s.request.stall_ms));
    }
    open_.emplace(s.request.id, OpenRequest{std::move(s.sink), s.request.n});
    const RequestId id = s.request.id;
    const int32_t n = s.request.n;
    if (Status added = failure_ ? Status(*failure_) : scheduler_.add(std::move(s.request)); !added.ok()) {
      OpenRequest& request = open_.at(id);
      for (int32_t choice = 0; choice < n; ++choice) {
        SequenceDelta delta{.request_id = id, .choice = choice};
        delta.finish = FinishReason::kError;
        delta.error = added.error();
        delta.time_us = clock_.now_us();
        request.sink(std::move(delta));
      }
      open_.erase(id);
      open_requests_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  for (const Cancellation& c : taken_cancellations_) scheduler_.cancel(c.id, c.choice, c.reason);
  taken_submissions_.clear();
  taken_cancellations_.clear();
}

bool Engine::start_step() {
  Batch& batch = batches_[turn_];
  {
    const NvtxRange range("plan");
    if (!scheduler_.plan(batch)) return false;
  }
  const NvtxRange range("launch");
  executor_->launch(batch);
  turn_ ^= 1;
  ++steps_under_way_;
  return true;
}

void Engine::end_step() {
  --steps_under_way_;
  output_.failure.reset();
  {
    const NvtxRange range("wait");
    executor_->wait(output_);
  }
  if (output_.failure) return fail(*output_.failure);
  const NvtxRange range("commit");
  scheduler_.commit(output_);
}

void Engine::fail(const Error& reason) {
  {
    std::lock_guard lock(mutex_);
    failure_ = make_error(ErrorKind::kUnavailable, "the engine has failed: {}", reason.message);
  }
  steps_under_way_ = 0;
  scheduler_.abandon(*failure_);
}

void Engine::dispatch() {
  scheduler_.take_deltas(deltas_);
  for (SequenceDelta& delta : deltas_) {
    const auto found = open_.find(delta.request_id);
    VAYU_CHECK(found != open_.end(), "delta of request {} after its end", delta.request_id);
    const bool last = delta.finish.has_value() && --found->second.unfinished == 0;
    found->second.sink(std::move(delta));
    if (last) {
      open_.erase(found);
      open_requests_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
}

void Engine::publish_stats() {
  EngineStats stats = scheduler_.stats();
  if (failure_) stats.failed = failure_->message;
  std::lock_guard lock(mutex_);
  stats_ = std::move(stats);
}

}  // namespace vayu
