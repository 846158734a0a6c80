// Life cycle and planning on the simulated executor. Random traffic: tests/sim/.
#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ranges>

#include "scheduler/sim_harness.h"

namespace vayu {
namespace {

constexpr TokenId kEnd = 2;

ExecutorLimits limits(int32_t num_pages = 64, int32_t page_size = 16, int32_t max_context = 4096) {
  return {.vocab_size = 500, .page_size = page_size, .num_pages = num_pages, .max_step_tokens = 512, .max_rows = 64,
          .max_context = max_context};
}

SchedulerConfig config() {
  SchedulerConfig config;
  config.end_ids = {kEnd};
  return config;
}

SimModel model() { return {.seed = 9, .end_ids = {kEnd}}; }

// A prompt of `len` tokens; `kind` sets what they are.
Request make_request(RequestId id, int32_t len, int32_t max_tokens, uint64_t kind = 0) {
  Request request;
  request.id = id;
  uint64_t h = kind;
  for (int32_t i = 0; i < len; ++i) {
    h = sim_extend(h, i, i);
    request.prompt.push_back(static_cast<TokenId>(3 + h % 400));
  }
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.arrival_us = static_cast<int64_t>(id);
  return request;
}

void expect_reference(const SimHarness& sim, const Request& request) {
  for (int32_t choice = 0; choice < request.n; ++choice) EXPECT_EQ(sim.difference(request, choice), "");
  EXPECT_EQ(sim.faults, std::vector<std::string>{});
}

void expect_idle(SimHarness& sim) {
  EXPECT_FALSE(sim.scheduler.has_work());
  EXPECT_FALSE(sim.step());
  const EngineStats stats = sim.scheduler.stats();
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.total_pages);
  EXPECT_EQ(stats.step_running_since_us, 0);
  EXPECT_EQ(sim.scheduler.flush_cache(), stats.cached_pages);
  EXPECT_EQ(sim.scheduler.stats().free_pages, stats.total_pages);
}

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

// F18: what can never fit is refused with both numbers; what outgrows the pool ends with "length"; others run.
TEST(Scheduler, PoolSmallerThanContext) {
  SimHarness sim(config(), model(), limits(125, 16, 8000));  // 2,000 tokens
  const Status refused = sim.add(make_request(1, 3000, 10));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("3000"), std::string::npos);
  EXPECT_NE(refused.error().message.find("1999"), std::string::npos);
  std::vector<Request> requests;
  for (RequestId id = 2; id < 22; ++id) requests.push_back(make_request(id, 30, 10, id));
  requests.push_back(make_request(22, 1000, 5000, 22));
  for (RequestId id = 23; id < 28; ++id) requests.push_back(make_request(id, 700, 300, id));
  for (const Request& request : requests) ASSERT_TRUE(sim.add(request).ok());
  sim.run();
  for (const Request& request : requests) expect_reference(sim, request);
  EXPECT_EQ(sim.answer(22).finish, FinishReason::kLength);
  EXPECT_EQ(sim.answer(22).tokens.size(), 1000u);
  expect_idle(sim);
}

// F20: 16 answers of 500 tokens in a pool that holds one and a half of them; penalties, seeds, logprobs, n = 2, streaming.
TEST(Scheduler, PreemptionChangesNothing) {
  SchedulerConfig tight = config();
  tight.admit_headroom_tokens = 0;
  SimHarness sim(tight, model(), limits(200, 4));
  std::vector<Request> requests;
  for (RequestId id = 1; id <= 14; ++id) {
    Request request = make_request(id, 20, 500, id);
    if (id % 2) request.sampling.temperature = 0.8f;
    if (id % 3 == 0) request.sampling.repetition_penalty = 1.1f;
    if (id % 4 == 0) request.sampling.logprobs = 3;
    request.sampling.seed = 100 * id;
    request.n = id > 12 ? 2 : 1;
    requests.push_back(request);
    ASSERT_TRUE(sim.add(request).ok());
  }
  sim.run();
  for (const Request& request : requests) expect_reference(sim, request);
  const EngineStats stats = sim.scheduler.stats();
  EXPECT_GE(stats.preemptions, 50u);
  EXPECT_LE(stats.preemptions, 1000u);
  EXPECT_EQ(stats.generated_tokens, 16u * 500u);  // each token counted once
  EXPECT_EQ(stats.prompt_tokens, 16u * 20u);
  expect_idle(sim);
}

// F22: A, then B larger than the rest of the pool, then A again, with the cache on; the reference has none.
TEST(Scheduler, EvictedPrefixesComeBackRight) {
  SimHarness sim(config(), model(), limits(20, 16));
  for (RequestId id = 1; id <= 200; ++id) {
    const int32_t len = static_cast<int32_t>(20 + sim_extend(5, 1, static_cast<int32_t>(id)) % 280);
    const Request request = make_request(id, len, 5, id % 2);
    const uint64_t before = sim.executor.tokens_computed();
    ASSERT_TRUE(sim.add(request).ok());
    sim.run();
    expect_reference(sim, request);
    // The count of cached tokens is true: the rest was computed.
    EXPECT_EQ(sim.executor.tokens_computed() - before, len + 4 - sim.answer(id).cached_tokens);
  }
  EXPECT_GT(sim.scheduler.stats().cached_tokens, 0u);
  expect_idle(sim);
}

TEST(Scheduler, FullPrefixHitStillComputesTheLastToken) {
  SimHarness sim(config(), model(), limits());
  for (RequestId id = 1; id <= 2; ++id) {
    const Request request = make_request(id, 64, 3);
    ASSERT_TRUE(sim.add(request).ok());
    sim.run();
    expect_reference(sim, request);
  }
  EXPECT_EQ(sim.answer(2).cached_tokens, 48);
}

// Same greedy answer alone, in a batch of 16, chunked, with and without prefix hit.
TEST(Scheduler, InvariantToChunksBatchAndCache) {
  const Request probe = make_request(100, 333, 40, 77);
  for (SchedulerPolicy policy : {SchedulerPolicy::kMixed, SchedulerPolicy::kFixedChunk, SchedulerPolicy::kPrefillFirst}) {
    for (int32_t chunk : {16, 17, 512}) {
      for (bool cache : {false, true}) {
        for (int32_t others : {0, 15}) {
          SchedulerConfig variant = config();
          variant.policy = policy;
          variant.chunked_prefill_size = chunk;
          variant.prefix_cache = cache;
          SimHarness sim(variant, model(), limits(256));
          for (int32_t i = 0; i < others; ++i) ASSERT_TRUE(sim.add(make_request(i + 1, 200 + i, 30, 77 + i % 2)).ok());
          ASSERT_TRUE(sim.add(probe).ok());
          sim.run();
          expect_reference(sim, probe);
          const int32_t shared = cache && others > 0 ? 192 : 0;  // with the longest of the others
          EXPECT_GE(sim.answer(100).cached_tokens, shared);
          EXPECT_TRUE(cache || sim.answer(100).cached_tokens == 0);
          expect_idle(sim);
        }
      }
    }
  }
}

// n answers compute the prompt once.
TEST(Scheduler, AnswersOfOneRequestShareThePrompt) {
  SimHarness sim(config(), model(), limits());
  Request request = make_request(1, 325, 4);
  request.sampling.temperature = 1;
  request.n = 8;
  ASSERT_TRUE(sim.add(request).ok());
  sim.run();
  expect_reference(sim, request);
  EXPECT_EQ(sim.executor.tokens_computed(), 325u + 7 * 5 + 8 * 3);  // 320 tokens are full pages
  EXPECT_NE(sim.answer(1, 0).tokens[0].token, sim.answer(1, 1).tokens[0].token);
  expect_idle(sim);
}

TEST(Scheduler, RequestsThatArriveTogetherShareAPrefix) {
  SchedulerConfig small_steps = config();
  small_steps.chunked_prefill_size = 64;
  SimHarness sim(small_steps, model(), limits(256));
  for (RequestId id = 1; id <= 6; ++id) {
    Request request = make_request(id, 330, 2, 5);
    request.prompt.back() = static_cast<TokenId>(id);
    ASSERT_TRUE(sim.add(request).ok());
  }
  sim.run();
  EXPECT_EQ(sim.executor.tokens_computed(), 330u + 5 * 10 + 6);
}

TEST(Scheduler, NamespacesShareNoPages) {
  SimHarness sim(config(), model(), limits());
  Request request = make_request(1, 100, 2);
  request.cache_namespace = "tenant a";
  ASSERT_TRUE(sim.add(request).ok());
  sim.run();
  request.id = 2;
  request.cache_namespace = "tenant b";
  ASSERT_TRUE(sim.add(request).ok());
  sim.run();
  EXPECT_EQ(sim.answer(2).cached_tokens, 0);
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

// F19: decodes go on in every step while long prompts come in, and the prompts advance in every step.
TEST(Scheduler, LongPromptsAndDecodesShareEachStep) {
  SchedulerConfig mixed = config();
  mixed.max_num_batched_tokens = 128;
  SimHarness sim(mixed, model(), limits(2048, 16, 16384));
  for (RequestId id = 1; id <= 8; ++id) ASSERT_TRUE(sim.add(make_request(id, 10, 300, id)).ok());
  for (int i = 0; i < 5; ++i) sim.step();
  for (RequestId id = 9; id <= 12; ++id) ASSERT_TRUE(sim.add(make_request(id, 4000, 2, id)).ok());
  ASSERT_TRUE(sim.add(make_request(13, 20, 2, 13)).ok());  // waits for none of the four
  for (int i = 0; i < 3; ++i) sim.step();
  EXPECT_TRUE(sim.answer(13).finish);
  for (int i = 0; i < 60; ++i) {
    sim.step();
    EXPECT_EQ(std::ranges::count_if(std::views::iota(0, sim.batch.num_rows()), [&](int row) {
                return sim.batch.qo_indptr[row + 1] - sim.batch.qo_indptr[row] >= 20;
              }), 4);
    EXPECT_EQ(sim.batch.num_rows(), 12);
    EXPECT_EQ(sim.batch.num_tokens(), 128);
  }
  sim.run();
  expect_idle(sim);
}

TEST(Scheduler, ShortPromptPassesALongOneInProgress) {
  SimHarness sim(config(), model(), limits(2048, 16, 16384));
  ASSERT_TRUE(sim.add(make_request(1, 8000, 2, 1)).ok());
  sim.step();
  ASSERT_TRUE(sim.add(make_request(2, 100, 2, 2)).ok());
  sim.step();
  EXPECT_EQ(sim.answer(2).tokens.size(), 1u);
  EXPECT_EQ(sim.batch.num_tokens(), 512);
}

TEST(Scheduler, LowerPriorityValueRunsFirstAndPushesOthersOut) {
  SchedulerConfig one = config();
  one.max_num_seqs = 1;
  SimHarness sim(one, model(), limits());
  Request late = make_request(1, 20, 50, 1);
  late.priority = 5;
  ASSERT_TRUE(sim.add(late).ok());
  sim.step();
  sim.step();
  const Request urgent = make_request(2, 20, 5, 2);
  ASSERT_TRUE(sim.add(urgent).ok());
  for (int i = 0; i < 5; ++i) sim.step();
  EXPECT_TRUE(sim.answer(2).finish);
  sim.run();
  expect_reference(sim, late);
  expect_reference(sim, urgent);
  EXPECT_EQ(sim.scheduler.stats().preemptions, 1u);
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

TEST(Scheduler, SteadyDecodeDoesNotGrowTheBatch) {
  SimHarness sim(config(), model(), limits(256));
  for (RequestId id = 1; id <= 16; ++id) ASSERT_TRUE(sim.add(make_request(id, 60, 100, id)).ok());
  const auto data = [&] { return std::pair(sim.batch.token_ids.data(), sim.batch.page_table.data()); };
  const auto before = data();
  sim.run();
  EXPECT_EQ(data(), before);
}

TEST(SchedulerDeathTest, PlanTwiceIsAProgrammingError) {
  SimHarness sim(config(), model(), limits());
  ASSERT_TRUE(sim.add(make_request(1, 5, 5)).ok());
  ASSERT_TRUE(sim.scheduler.plan(sim.batch));
  EXPECT_DEATH(sim.scheduler.plan(sim.batch), "before the last step");
}

}  // namespace
}  // namespace vayu
