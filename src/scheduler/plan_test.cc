// What steps compute, on the simulated executor. Random traffic: tests/sim/.
#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ranges>

#include "scheduler/scheduler_test_util.h"

namespace vayu {
namespace {

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

// F20: 16 answers of 500 tokens in a pool that holds one and a half of them; penalties, seeds, logprobs, n = 2,
// streaming.
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
  for (SchedulerPolicy policy :
       {SchedulerPolicy::kMixed, SchedulerPolicy::kFixedChunk, SchedulerPolicy::kPrefillFirst}) {
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
    EXPECT_EQ(
        std::ranges::count_if(std::views::iota(0, sim.batch.num_rows()),
                              [&](int row) { return sim.batch.qo_indptr[row + 1] - sim.batch.qo_indptr[row] >= 20; }),
        4);
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
