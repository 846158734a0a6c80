// Random traffic against the scheduler on virtual time. VAYU_SIM_STEPS and VAYU_SIM_SEED set length and seed; a failure
// prints the seed of its episode, and VAYU_SIM_SEED with that value runs that episode first.
//
// Checked in each step: page accounting, the batch contract (in the executor), pages of cancelled requests, progress of
// the oldest answer. At the end of an answer: it ended once and equals the one computed alone. At the end of an
// episode: idle, every page back.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "scheduler/sim_harness.h"
#include "traffic.h"

namespace vayu {
namespace {

uint64_t from_env(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

struct Totals {
  uint64_t steps = 0, overlapped = 0, requests = 0, refused = 0, preemptions = 0, cached_tokens = 0, failed_rows = 0;
  std::map<FinishReason, uint64_t> ends;
};

class EpisodeRun {
 public:
  EpisodeRun(uint64_t seed, Totals& totals)
      : traffic_(seed),
        episode_(traffic_.make_episode()),
        sim_(episode_.config, episode_.model, episode_.limits),
        totals_(totals) {}

  void run() {
    for (int32_t step = 0; step < episode_.arrivals_until_step || sim_.scheduler.has_work(); ++step) {
      if (step < episode_.arrivals_until_step) arrive();
      one_step();
      if (traffic_.chance(0.002)) sim_.scheduler.flush_cache();
      if (traffic_.chance(0.0005)) {
        sim_.drain();
        sim_.scheduler.rebuild_cache();
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
    sim_.drain();
    finish();
  }

 private:
  using Answer = std::pair<RequestId, int32_t>;

  void arrive() {
    for (int32_t count = traffic_.arrivals(episode_); count > 0; --count) {
      Request request = traffic_.make_request(episode_, next_id_, sim_.clock.now_us());
      const Status status = sim_.add(request);
      if (!status.ok()) {
        ++totals_.refused;
        const bool fits = static_cast<int32_t>(request.prompt.size()) < sim_.scheduler.max_tokens_per_sequence();
        ASSERT_EQ(status.error().kind, fits ? ErrorKind::kResourceExhausted : ErrorKind::kInvalidArgument);
        continue;
      }
      ++totals_.requests;
      live_.emplace(next_id_++, std::move(request));
    }
  }

  // A random live answer or request, or one that is not there.
  void cancel_some() {
    if (live_.empty() || !traffic_.chance(episode_.cancels_per_step)) return;
    auto it = live_.begin();
    std::advance(it, traffic_.uniform(0, static_cast<int32_t>(live_.size()) - 1));
    const int32_t choice = traffic_.chance(0.5) ? -1 : traffic_.uniform(0, it->second.n);
    const FinishReason reason = traffic_.chance(0.5) ? FinishReason::kCancelled : FinishReason::kStop;
    sim_.cancel(it->first, choice, reason);
    sim_.cancel(it->first + 1000, -1, reason);
    for (int32_t i = 0; i < it->second.n; ++i) {
      if (choice < 0 || choice == i) cancelled_.insert({it->first, i});
    }
  }

  void one_step() {
    cancel_some();
    const uint64_t before = sim_.executor.tokens_computed();
    const bool had_work = sim_.scheduler.has_work();
    const bool worked = sim_.step([this] { cancel_some(); });
    totals_.steps += sim_.committed;
    totals_.overlapped += sim_.scheduler.step_in_flight();
    // Work left after deadlines and cancels is always worked on.
    ASSERT_TRUE(worked || !sim_.scheduler.has_work()) << "work waits without progress";
    ASSERT_TRUE(!worked || had_work || sim_.committed);
    ASSERT_EQ(sim_.committed, sim_.executor.tokens_computed() > before);
    if (!worked) sim_.clock.advance_us(1000);
    ASSERT_TRUE(sim_.faults.empty()) << sim_.faults[0];
    if (sim_.committed || !sim_.scheduler.step_in_flight()) {
      for (const Answer& answer : cancelled_) {
        const auto it = sim_.answers.find(answer);  // gone: ended in the turn before, checked there
        ASSERT_TRUE(it == sim_.answers.end() || it->second.finish) << "cancelled, but not ended within the step";
      }
      cancelled_.clear();
    }
    check_ended();
    check_oldest();
  }

  void check_ended() {
    for (auto it = live_.begin(); it != live_.end();) {
      const Request& request = it->second;
      int32_t ended = 0;
      for (int32_t choice = 0; choice < request.n; ++choice)
        ended += sim_.answer(request.id, choice).finish.has_value();
      if (ended < request.n) {
        ++it;
        continue;
      }
      for (int32_t choice = 0; choice < request.n; ++choice) check_answer(request, choice);
      it = live_.erase(it);
    }
  }

  void check_answer(const Request& request, int32_t choice) {
    const SimAnswer& answer = sim_.answer(request.id, choice);
    ++totals_.ends[*answer.finish];
    ASSERT_GE(answer.cached_tokens, 0);
    ASSERT_LT(answer.cached_tokens, static_cast<int32_t>(request.prompt.size()));
    ASSERT_EQ(answer.cached_tokens % episode_.limits.page_size, 0);
    if (answer.error && answer.error->kind == ErrorKind::kUnavailable) {
      ASSERT_TRUE(request.deadline_us > 0 && sim_.clock.now_us() > request.deadline_us);
      ASSERT_TRUE(answer.tokens.empty());
    } else {
      const std::string difference = sim_.difference(request, choice);
      ASSERT_EQ(difference, "") << "request " << request.id << " choice " << choice;
    }
    sim_.answers.erase({request.id, choice});
  }

  // No starvation: where all have one priority, the oldest request ends within a number of steps that does not depend
  // on how much traffic comes behind it. (Prefill-first starves decodes on purpose.)
  void check_oldest() {
    const RequestId oldest = live_.empty() ? 0 : live_.begin()->first;
    if (oldest != oldest_) oldest_steps_ = 0;
    oldest_ = oldest;
    oldest_steps_ += sim_.committed;
    if (episode_.priorities || episode_.config.policy == SchedulerPolicy::kPrefillFirst || oldest == 0) return;
    const int64_t longest = sim_.scheduler.max_tokens_per_sequence();
    const int64_t overtake_steps = episode_.config.max_overtake_us / 1000;  // a step takes at least 1 ms
    ASSERT_LT(oldest_steps_, longest * (3 + live_.begin()->second.n) + overtake_steps) << "the oldest request starves";
  }

  void finish() {
    check_ended();  // in the last drain
    ASSERT_TRUE(live_.empty());
    const EngineStats stats = sim_.scheduler.stats();
    EXPECT_EQ(stats.running + stats.waiting, 0);
    EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.total_pages);
    EXPECT_EQ(sim_.scheduler.flush_cache(), stats.cached_pages);
    EXPECT_EQ(sim_.scheduler.stats().free_pages, stats.total_pages);
    EXPECT_TRUE(sim_.answers.empty());
    totals_.preemptions += stats.preemptions;
    totals_.cached_tokens += stats.cached_tokens;
    totals_.failed_rows += stats.non_finite_rows;
  }

  Traffic traffic_;
  const Episode episode_;
  SimHarness sim_;
  Totals& totals_;
  std::map<RequestId, Request> live_;
  std::set<Answer> cancelled_;
  RequestId next_id_ = 1;
  RequestId oldest_ = 0;
  int64_t oldest_steps_ = 0;
};

TEST(Simulator, RandomTraffic) {
  const uint64_t steps = from_env("VAYU_SIM_STEPS", 50'000);
  const uint64_t first_seed = from_env("VAYU_SIM_SEED", std::random_device{}());
  std::printf("VAYU_SIM_STEPS=%lu VAYU_SIM_SEED=%lu\n", steps, first_seed);
  std::fflush(stdout);  // a failed CHECK ends the process; the seed must be out by then
  Totals totals;
  uint64_t episodes = 0;
  for (uint64_t seed = first_seed; totals.steps < steps; ++seed, ++episodes) {
    SCOPED_TRACE("VAYU_SIM_SEED=" + std::to_string(seed));
    EpisodeRun(seed, totals).run();
    if (HasFailure()) return;
  }
  std::printf(
      "%lu steps (%lu with the next one under way) in %lu episodes: %lu requests, %lu refused, %lu preemptions, %lu "
      "cached tokens, %lu NaN rows; "
      "answers: %lu stop, %lu length, %lu cancelled, %lu error\n",
      totals.steps, totals.overlapped, episodes, totals.requests, totals.refused, totals.preemptions,
      totals.cached_tokens, totals.failed_rows, totals.ends[FinishReason::kStop], totals.ends[FinishReason::kLength],
      totals.ends[FinishReason::kCancelled], totals.ends[FinishReason::kError]);
  // The traffic reaches what it is meant to reach.
  if (steps >= 50'000) {
    EXPECT_GT(totals.preemptions, 10u);
    EXPECT_GT(totals.cached_tokens, 10'000u);
    EXPECT_GT(totals.failed_rows, 5u);
    EXPECT_GT(totals.overlapped, 5'000u);
    EXPECT_GT(totals.ends[FinishReason::kCancelled], 50u);
  }
}

}  // namespace
}  // namespace vayu
