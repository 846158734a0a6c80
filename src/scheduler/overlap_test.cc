// Steps planned while another is under way, on the simulated executor. Random traffic: tests/sim/.
#include <gtest/gtest.h>

#include "scheduler/scheduler_test_util.h"

namespace vayu {
namespace {

SchedulerConfig overlapped() {
  SchedulerConfig config = vayu::config();
  config.overlap = true;
  return config;
}

StepOutput output_of(std::initializer_list<TokenId> tokens) {
  StepOutput output;
  for (const TokenId token : tokens) output.results.push_back({.token = token});
  return output;
}

TEST(Overlap, NextStepTakesATokenThatIsNotKnownYet) {
  ManualClock clock;
  Scheduler scheduler(overlapped(), limits(), clock);
  ASSERT_TRUE(scheduler.add(make_request(1, 5, 10)).ok());
  Batch first, second, third;
  ASSERT_TRUE(scheduler.plan(first));
  EXPECT_TRUE(first.prev_samples.empty());
  Request late = make_request(2, 3, 10);
  ASSERT_TRUE(scheduler.add(late).ok());
  ASSERT_TRUE(scheduler.plan(second));
  EXPECT_EQ(second.token_ids, (std::vector<TokenId>{kNoToken, late.prompt[0], late.prompt[1], late.prompt[2]}));
  EXPECT_EQ(second.prev_samples, (std::vector<int32_t>{0, -1, -1, -1}));
  EXPECT_EQ(second.positions, (std::vector<int32_t>{5, 0, 1, 2}));
  EXPECT_EQ(second.samples[0].prev_sample, 0);
  EXPECT_EQ(second.samples[0].tokens.size(), 5u);
  EXPECT_EQ(second.samples[0].output_index, 1);
  EXPECT_EQ(second.samples[1].prev_sample, -1);
  scheduler.commit(output_of({70}));
  ASSERT_TRUE(scheduler.plan(third));
  EXPECT_EQ(third.prev_samples, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(third.samples[0].tokens.back(), 70);
  EXPECT_EQ(third.samples[0].tokens.size(), 6u);
  EXPECT_EQ(third.samples[0].output_index, 2);
}

TEST(Overlap, NothingIsPlannedPastTheLengthLimit) {
  for (int32_t max_tokens : {1, 2, 7}) {
    SimHarness sim(overlapped(), model(), limits());
    const Request request = make_request(1, 40, max_tokens);
    ASSERT_TRUE(sim.add(request).ok());
    sim.run();
    expect_reference(sim, request);
    EXPECT_EQ(sim.executor.tokens_computed(), 40u + max_tokens - 1);
    expect_idle(sim);
  }
}

TEST(Overlap, EndIdDiscardsTheRowPlannedBehindIt) {
  ManualClock clock;
  Scheduler scheduler(overlapped(), limits(), clock);
  Request request = make_request(1, 5, 50);
  request.sampling.ignore_eos = false;
  ASSERT_TRUE(scheduler.add(request).ok());
  Batch first, second, third;
  std::vector<SequenceDelta> deltas;
  ASSERT_TRUE(scheduler.plan(first));
  ASSERT_TRUE(scheduler.plan(second));
  scheduler.commit(output_of({kEnd}));
  scheduler.take_deltas(deltas);
  ASSERT_EQ(deltas.size(), 1u);
  EXPECT_EQ(deltas[0].finish, FinishReason::kStop);
  EXPECT_FALSE(scheduler.has_work());
  EXPECT_TRUE(scheduler.step_in_flight());
  EXPECT_EQ(scheduler.stats().free_pages, 63);  // still its own
  EXPECT_FALSE(scheduler.plan(third));
  scheduler.cancel(1, -1, FinishReason::kCancelled);  // too late
  EXPECT_TRUE(scheduler.audit().ok());
  scheduler.commit(output_of({9}));
  scheduler.take_deltas(deltas);
  EXPECT_TRUE(deltas.empty());
  EXPECT_EQ(scheduler.stats().free_pages, 64);
  EXPECT_EQ(scheduler.stats().generated_tokens, 1u);
}

TEST(Overlap, CancelEndsWithTheNextCommitAndPlansNoMore) {
  SimHarness sim(overlapped(), model(), limits());
  for (RequestId id = 1; id <= 3; ++id) ASSERT_TRUE(sim.add(make_request(id, 40, 1000, id)).ok());
  for (int i = 0; i < 4; ++i) sim.step();
  sim.cancel(2, -1, FinishReason::kCancelled);
  const uint64_t before = sim.executor.tokens_computed();
  sim.step();
  EXPECT_EQ(sim.answer(2).finish, FinishReason::kCancelled);
  sim.step();
  EXPECT_EQ(sim.executor.tokens_computed(), before + 3 + 2);  // the step under way at the cancel, then without it
  for (RequestId id : {1, 3}) sim.cancel(id, -1, FinishReason::kCancelled);
  sim.run();
  expect_idle(sim);
  EXPECT_EQ(sim.faults, std::vector<std::string>{});
}

TEST(Overlap, NonFiniteRowFailsAlone) {
  SimHarness sim(overlapped(), model(), limits());
  std::vector<Request> requests;
  for (RequestId id = 1; id <= 8; ++id) requests.push_back(make_request(id, 40, 20, id));
  requests[4].fail_at_token = 3;
  requests[6].fail_at_token = 0;
  for (const Request& request : requests) ASSERT_TRUE(sim.add(request).ok());
  sim.run();
  for (const Request& request : requests) expect_reference(sim, request);
  EXPECT_EQ(sim.answer(5).tokens.size(), 3u);
  EXPECT_EQ(sim.scheduler.stats().non_finite_rows, 2u);
  expect_idle(sim);
}

// Penalties, seeds, log-probabilities, scored prompts and several answers, with pages for a fraction of them: the
// answers are those of a run without overlap, which are those of a run alone.
TEST(Overlap, PreemptionSamplingAndScoresAreUnchanged) {
  SchedulerConfig tight = overlapped();
  tight.admit_headroom_tokens = 0;
  tight.max_share_wait_us = 0;  // prefixes are computed twice and published once
  SimHarness sim(tight, model(), limits(200, 4));
  std::vector<Request> requests;
  for (RequestId id = 1; id <= 20; ++id) {
    Request request = make_request(id, 50, 300, id / 4);
    if (id % 2) request.sampling.temperature = 0.8f;
    if (id % 3 == 0) request.sampling.repetition_penalty = 1.1f;
    if (id % 4 == 0) request.sampling.logprobs = 3;
    if (id % 5 == 0) request.sampling.prompt_logprobs = 1;
    request.sampling.min_tokens = static_cast<int32_t>(id) * 3;
    request.sampling.ignore_eos = id % 7 == 0;
    request.sampling.stop_token_ids = {static_cast<TokenId>(10 + id)};
    request.sampling.seed = 100 * id;
    request.n = id % 6 == 0 ? 2 : 1;
    requests.push_back(request);
    ASSERT_TRUE(sim.add(request).ok());
  }
  sim.run();
  for (const Request& request : requests) expect_reference(sim, request);
  EXPECT_GE(sim.scheduler.stats().preemptions, 20u);
  expect_idle(sim);
}

TEST(Overlap, AbandonFreesWhatStepsUnderWayHold) {
  SimHarness sim(overlapped(), model(), limits());
  Request ends = make_request(1, 20, 100);
  ends.sampling.ignore_eos = false;
  ends.forced_output = {kEnd};
  ASSERT_TRUE(sim.add(ends).ok());
  ASSERT_TRUE(sim.add(make_request(2, 20, 100, 2)).ok());
  sim.step();
  sim.step();
  EXPECT_EQ(sim.answer(1).finish, FinishReason::kStop);
  sim.scheduler.abandon(make_error(ErrorKind::kUnavailable, "no device"));
  EXPECT_FALSE(sim.scheduler.step_in_flight());
  EXPECT_TRUE(sim.scheduler.audit().ok());
  std::vector<SequenceDelta> deltas;
  sim.scheduler.take_deltas(deltas);
  ASSERT_EQ(deltas.size(), 1u);
  EXPECT_EQ(deltas[0].request_id, 2u);
  const EngineStats stats = sim.scheduler.stats();
  EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.total_pages);
}

TEST(OverlapDeathTest, AThirdStepIsAProgrammingError) {
  SimHarness sim(overlapped(), model(), limits());
  ASSERT_TRUE(sim.add(make_request(1, 5, 50)).ok());
  ASSERT_TRUE(sim.scheduler.plan(sim.batch));
  Batch second, third;
  ASSERT_TRUE(sim.scheduler.plan(second));
  EXPECT_DEATH(sim.scheduler.plan(third), "before the last step");
}

}  // namespace
}  // namespace vayu
