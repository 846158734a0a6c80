// Life of a request on the simulated executor. Random traffic: tests/sim/.
#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include "scheduler/scheduler_test_util.h"

namespace vayu {
namespace {

TEST(Scheduler, OneRequestFromPromptToLength) {
  SimHarness sim(config(), model(), limits());
  const Request request = make_request(1, 40, 10);
  ASSERT_TRUE(sim.add(request).ok());
  sim.run();
  EXPECT_EQ(sim.answer(1).finish, FinishReason::kLength);
  EXPECT_EQ(sim.scheduler.stats().steps, 10u);
  expect_reference(sim, request);
  expect_idle(sim);
}

TEST(Scheduler, EndIdsStopTokensAndMinTokens) {
  SimHarness sim(config(), model(), limits());
  Request stops = make_request(1, 5, 50);
  stops.sampling.ignore_eos = false;
  stops.forced_output = {7, kEnd};
  Request ignores = make_request(2, 5, 5);
  ignores.forced_output = {7, kEnd};
  Request own = make_request(3, 5, 50);
  own.forced_output = {7, 8, 9};
  own.sampling.stop_token_ids = {9};
  Request held = make_request(4, 5, 50);
  held.forced_output = {kEnd, kEnd, 7, kEnd};
  held.sampling.min_tokens = 2;
  held.sampling.ignore_eos = false;
  for (const Request& request : {stops, ignores, own, held}) ASSERT_TRUE(sim.add(request).ok());
  sim.run();
  EXPECT_EQ(sim.answer(1).tokens.size(), 2u);
  EXPECT_EQ(sim.answer(1).finish, FinishReason::kStop);
  EXPECT_EQ(sim.answer(1).stop_token, kEnd);
  EXPECT_EQ(sim.answer(2).tokens.size(), 5u);
  EXPECT_EQ(sim.answer(2).finish, FinishReason::kLength);
  EXPECT_EQ(sim.answer(3).stop_token, 9);
  EXPECT_EQ(sim.answer(4).tokens.size(), 4u);
  expect_idle(sim);
}

TEST(Scheduler, MinTokensBansEveryIdThatEnds) {
  SimModel always_ends = model();
  always_ends.end_one_in = 1;
  SimHarness sim(config(), always_ends, limits());
  Request request = make_request(1, 5, 50);
  request.sampling.min_tokens = 3;
  request.sampling.ignore_eos = false;
  request.sampling.stop_token_ids = {11, 12};
  ASSERT_TRUE(sim.add(request).ok());
  Batch batch;
  ASSERT_TRUE(sim.scheduler.plan(batch));
  EXPECT_EQ(std::vector<TokenId>(batch.samples[0].banned.begin(), batch.samples[0].banned.end()),
            (std::vector<TokenId>{kEnd, 11, 12}));
}

// F14: one poisoned row fails alone, and its pages leave the cache.
TEST(Scheduler, NonFiniteRowFailsAlone) {
  SimHarness sim(config(), model(), limits());
  std::vector<Request> requests;
  for (RequestId id = 1; id <= 8; ++id) requests.push_back(make_request(id, 40, 20, id));
  requests[4].fail_at_token = 3;
  for (const Request& request : requests) ASSERT_TRUE(sim.add(request).ok());
  sim.run();
  for (const Request& request : requests) expect_reference(sim, request);
  EXPECT_EQ(sim.answer(5).finish, FinishReason::kError);
  ASSERT_TRUE(sim.answer(5).error.has_value());
  EXPECT_EQ(sim.answer(5).error->kind, ErrorKind::kInternal);
  EXPECT_EQ(sim.answer(5).tokens.size(), 3u);
  EXPECT_EQ(sim.scheduler.stats().non_finite_rows, 1u);
  Request again = make_request(9, 40, 5, 5);
  ASSERT_TRUE(sim.add(again).ok());
  sim.run();
  EXPECT_EQ(sim.answer(9).cached_tokens, 0);
  expect_reference(sim, again);
  expect_idle(sim);
}

TEST(Scheduler, NonFiniteRowKeepsWhatOthersComputed) {
  SimHarness sim(config(), model(), limits());
  Request sound = make_request(1, 40, 2, 5);
  ASSERT_TRUE(sim.add(sound).ok());
  sim.run();
  Request broken = make_request(2, 100, 20, 5);  // its first 40 tokens are those of request 1
  broken.fail_at_token = 0;
  ASSERT_TRUE(sim.add(broken).ok());
  sim.run();
  EXPECT_EQ(sim.answer(2).cached_tokens, 32);
  Request third = make_request(3, 100, 2, 5);
  ASSERT_TRUE(sim.add(third).ok());
  sim.run();
  EXPECT_EQ(sim.answer(3).cached_tokens, 32);
  expect_idle(sim);
}

// F23: scores are the same cold, warm and in any chunk; the request itself takes no prefix hit.
TEST(Scheduler, PromptScores) {
  for (int32_t chunk : {16, 17, 512}) {
    for (int32_t len : {1, 2, 47, 48, 49, 200}) {
      SchedulerConfig variant = config();
      variant.chunked_prefill_size = chunk;
      variant.max_logits_per_step = 20;
      SimHarness sim(variant, model(), limits());
      ASSERT_TRUE(sim.add(make_request(1, 120, 10)).ok());
      sim.run();
      Request request = make_request(2, len, 4);
      request.sampling.prompt_logprobs = 2;
      request.sampling.logprobs = 1;
      request.n = 2;
      ASSERT_TRUE(sim.add(make_request(3, 90, 50, 1)).ok());
      ASSERT_TRUE(sim.add(request).ok());
      while (sim.scheduler.has_work()) {
        sim.step();
        EXPECT_LE(sim.batch.num_logits(), 20);
      }
      expect_reference(sim, request);
      EXPECT_EQ(sim.answer(2).prompt.size(), static_cast<size_t>(len));
      EXPECT_EQ(sim.answer(2).cached_tokens, 0);
      expect_idle(sim);
    }
  }
}

// F03: cancelled while waiting, in prefill, in decode, with a step in flight and without: pages are free right after.
TEST(Scheduler, CancelAtEveryStage) {
  for (bool in_flight : {false, true}) {
    SchedulerConfig few = config();
    few.max_num_seqs = 2;
    few.chunked_prefill_size = 16;
    SimHarness sim(few, model(), limits());
    ASSERT_TRUE(sim.add(make_request(1, 10, 4000, 1)).ok());
    ASSERT_TRUE(sim.add(make_request(2, 400, 4000, 2)).ok());
    ASSERT_TRUE(sim.add(make_request(3, 10, 4000, 3)).ok());
    for (int i = 0; i < 5; ++i) sim.step();
    EXPECT_GT(sim.answer(1).tokens.size(), 1u);  // decodes
    EXPECT_EQ(sim.answer(2).tokens.size(), 0u);  // prefills
    EXPECT_EQ(sim.scheduler.stats().waiting, 1);
    const auto cancel_all = [&] {
      for (RequestId id = 0; id <= 4; ++id) sim.cancel(id, -1, FinishReason::kCancelled);
      sim.cancel(1, 0, FinishReason::kStop);  // too late, the first reason stays
    };
    if (in_flight) {
      sim.step(cancel_all);
    } else {
      cancel_all();
    }
    expect_idle(sim);
    for (RequestId id = 1; id <= 3; ++id) EXPECT_EQ(sim.answer(id).finish, FinishReason::kCancelled);
    EXPECT_EQ(sim.faults, std::vector<std::string>{});
  }
}

TEST(Scheduler, CancelOneOfSeveralAnswersWithStop) {
  SimHarness sim(config(), model(), limits());
  Request request = make_request(1, 20, 10);
  request.n = 3;
  ASSERT_TRUE(sim.add(request).ok());
  for (int i = 0; i < 3; ++i) sim.step();
  sim.cancel(1, 1, FinishReason::kStop);
  sim.run();
  EXPECT_EQ(sim.answer(1, 1).finish, FinishReason::kStop);
  expect_reference(sim, request);
  expect_idle(sim);
}

TEST(Scheduler, DeadlineFailsOnlyWhatHasNotStarted) {
  SchedulerConfig one = config();
  one.max_num_seqs = 1;
  SimHarness sim(one, model(), limits());
  Request runs = make_request(1, 20, 100, 1);
  Request waits = make_request(2, 20, 10, 2);
  runs.deadline_us = waits.deadline_us = 10'000;
  ASSERT_TRUE(sim.add(runs).ok());
  ASSERT_TRUE(sim.add(waits).ok());
  sim.run();
  expect_reference(sim, runs);
  EXPECT_EQ(sim.answer(2).finish, FinishReason::kError);
  EXPECT_EQ(sim.answer(2).error->kind, ErrorKind::kUnavailable);
  expect_idle(sim);
}

TEST(Scheduler, QueueRefusesWhenFull) {
  SchedulerConfig small = config();
  small.max_queued = 2;
  SimHarness sim(small, model(), limits());
  EXPECT_TRUE(sim.add(make_request(1, 5, 5)).ok());
  EXPECT_TRUE(sim.add(make_request(2, 5, 5)).ok());
  const Status refused = sim.add(make_request(3, 5, 5));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kResourceExhausted);
  sim.run();
  EXPECT_TRUE(sim.add(make_request(3, 5, 5)).ok());
}

TEST(Scheduler, RefusesEmptyPromptAndNoAnswers) {
  SimHarness sim(config(), model(), limits());
  EXPECT_EQ(sim.add(make_request(1, 0, 5)).error().field, "prompt");
  Request none = make_request(1, 5, 5);
  none.n = 0;
  EXPECT_EQ(sim.add(none).error().field, "n");
  EXPECT_TRUE(sim.add(make_request(1, 1, 1)).ok());
}

TEST(Scheduler, AbandonEndsEveryAnswerOnce) {
  SchedulerConfig few = config();
  few.max_num_seqs = 3;
  SimHarness sim(few, model(), limits());
  for (RequestId id = 1; id <= 3; ++id) {
    Request request = make_request(id, 20, 100, id);
    request.n = 2;
    ASSERT_TRUE(sim.add(request).ok());
  }
  for (int i = 0; i < 3; ++i) sim.step();
  const Error error = make_error(ErrorKind::kUnavailable, "no device");
  ASSERT_TRUE(sim.scheduler.plan(sim.batch));
  sim.scheduler.abandon(error);
  EXPECT_FALSE(sim.scheduler.step_in_flight());
  expect_idle(sim);
  for (RequestId id = 1; id <= 3; ++id) {
    for (int32_t choice : {0, 1}) {
      EXPECT_EQ(sim.answer(id, choice).finish, FinishReason::kError);
      ASSERT_TRUE(sim.answer(id, choice).error.has_value());
      EXPECT_EQ(sim.answer(id, choice).error->message, "no device");
    }
  }
  EXPECT_EQ(sim.faults, std::vector<std::string>{});
}

// F21: after a fault in the accounting everything is recomputed and answers stay right.
TEST(Scheduler, RebuildKeepsRunningAnswers) {
  SimHarness sim(config(), model(), limits());
  std::vector<Request> requests;
  for (RequestId id = 1; id <= 5; ++id) requests.push_back(make_request(id, 50, 30, id % 2));
  for (const Request& request : requests) ASSERT_TRUE(sim.add(request).ok());
  for (int i = 0; i < 12; ++i) sim.step();
  sim.scheduler.rebuild_cache();
  EXPECT_EQ(sim.scheduler.stats().free_pages, 64);
  sim.run();
  for (const Request& request : requests) expect_reference(sim, request);
  expect_idle(sim);
}

}  // namespace
}  // namespace vayu
