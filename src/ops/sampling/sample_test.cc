#include "ops/sampling/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/cpu/op_test_util.h"
#include "ops/sampling/philox.h"

namespace vayu::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const OpContext kReferenceContext{Backend::kReference, nullptr};

template <class Body>
void for_each_variant(Body&& body) {
  body(kReferenceContext, std::string("reference"));
  for_each_cpu_variant(body);
}

std::vector<SampleResult> run(const OpContext& ctx, const std::vector<float>& logits,
                              const std::vector<SampleTask>& tasks) {
  const auto vocab_size = static_cast<int64_t>(logits.size() / tasks.size());
  TestScratch scratch(sample_scratch_bytes(ctx, vocab_size));
  std::vector<SampleResult> results(tasks.size());
  SampleArgs args{logits.data(), vocab_size, tasks.data(), results.data(), static_cast<int64_t>(tasks.size()),
                  scratch.get()};
  sample(ctx, args);
  return results;
}

SampleResult run_one(const OpContext& ctx, const std::vector<float>& logits, const SampleTask& task) {
  return run(ctx, logits, {task})[0];
}

// Counts of each token over seeds 0 .. draws - 1.
std::vector<int> frequencies(const OpContext& ctx, const std::vector<float>& logits, const SamplingParams& params,
                             int draws) {
  std::vector<SampleTask> tasks(draws);
  std::vector<float> rows;
  for (int i = 0; i < draws; ++i) {
    tasks[i].params = &params;
    tasks[i].seed = static_cast<uint64_t>(i);
    tasks[i].output_index = 7;
    rows.insert(rows.end(), logits.begin(), logits.end());
  }
  std::vector<int> counts(logits.size());
  for (const SampleResult& r : run(ctx, rows, tasks)) ++counts[r.token];
  return counts;
}

TEST(CounterUniform, PhiloxKnownAnswers) {  // from the authors' kat_vectors
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t f = 0xffffffff;
  EXPECT_EQ(philox4x32({f, f, f, f}, {f, f}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(CounterUniform, IsTheTop53BitsOfTwoWords) {
  EXPECT_EQ(counter_uniform(0, 0), static_cast<double>(0xe169c58d6627e8d5 >> 11) * 0x1p-53);
  EXPECT_NE(counter_uniform(1, 0), counter_uniform(0, 1));
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const double u = counter_uniform(1, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
}

TEST(Sample, GreedyTakesTheLowestIdOfATie) {
  SamplingParams params;
  SampleTask task;
  task.params = &params;
  for_each_variant([&](const OpContext& ctx, const std::string& name) {
    std::vector<float> logits(100, -1.0f);
    logits[41] = logits[87] = 3;
    for (int way = 0; way < 3; ++way) {
      params = {};
      if (way == 0) params.temperature = 0;
      if (way == 1) params.top_k = 1;
      if (way == 2) params.top_p = 0;
      EXPECT_EQ(run_one(ctx, logits, task).token, 41) << name;
    }
    logits.assign(100, -0.0f);
    logits[60] = 0.0f;
    params = {};
    params.temperature = 0;
    EXPECT_EQ(run_one(ctx, logits, task).token, 0) << name;
  });
}

TEST(Sample, PenaltiesCountWhatTheySay) {
  SamplingParams params;
  params.temperature = 0;
  SampleTask task;
  task.params = &params;
  const std::vector<TokenId> tokens = {0, 1, 2, 2, 99};  // 99 is outside the vocabulary
  task.tokens = tokens;
  task.prompt_len = 2;
  for_each_variant([&](const OpContext& ctx, const std::string& name) {
    const std::vector<float> logits = {3.0f, -0.5f, 3.5f, 2.0f, -0.6f};
    params.repetition_penalty = 1;
    params.frequency_penalty = 0.2f;  // prompt tokens are not counted: token 2 falls to 3.1
    params.presence_penalty = 0;
    EXPECT_EQ(run_one(ctx, logits, task).token, 2) << name;
    params.presence_penalty = 0.2f;  // 2.9
    EXPECT_EQ(run_one(ctx, logits, task).token, 0) << name;
    params.presence_penalty = params.frequency_penalty = 0;
    params.repetition_penalty = 2;  // prompt and output: 1.5, -1, 1.75, 2
    EXPECT_EQ(run_one(ctx, logits, task).token, 3) << name;
    EXPECT_EQ(run_one(ctx, {-1, -0.5f, -1, -2, -0.7f}, task).token, 4) << name;  // negative logits are multiplied
  });
}

TEST(Sample, BiasAndBans) {
  SamplingParams params;
  params.temperature = 0;
  SampleTask task;
  task.params = &params;
  const std::vector<TokenId> banned = {3, 2};
  const std::vector<float> logits = {1, 2, 3, 4};
  for_each_variant([&](const OpContext& ctx, const std::string& name) {
    params.logit_bias = {{0, 50.0f}, {3, -100.0f}};
    task.banned = {};
    EXPECT_EQ(run_one(ctx, logits, task).token, 0) << name;
    params.logit_bias = {{0, 50.0f}, {1, 100.0f}};
    EXPECT_EQ(run_one(ctx, logits, task).token, 1) << name;
    params.logit_bias = {{1, 100.0f}, {2, 150.0f}};  // between winners, their own logits decide
    EXPECT_EQ(run_one(ctx, logits, task).token, 2) << name;
    task.banned = banned;  // a ban is stronger
    EXPECT_EQ(run_one(ctx, logits, task).token, 1) << name;
    params.logit_bias = {{0, -100.0f}, {1, -1000.0f}};  // nothing is left
    EXPECT_FALSE(run_one(ctx, logits, task).finite) << name;
    params.logit_bias.clear();
  });
}

TEST(Sample, LogprobsAreOfTheUnmodifiedLogits) {
  SamplingParams params;
  params.temperature = 0.5f;
  params.logit_bias = {{1, 100.0f}};
  params.logprobs = 20;
  SampleTask task;
  task.params = &params;
  const std::vector<float> logits = {2, 1, 3, -kInf, 3};
  const double log_sum = std::log(std::exp(2.0) + std::exp(1.0) + 2 * std::exp(3.0));
  for_each_variant([&](const OpContext& ctx, const std::string& name) {
    SampleResult r = run_one(ctx, logits, task);
    EXPECT_EQ(r.token, 1) << name;
    EXPECT_NEAR(r.logprob, 1 - log_sum, 1e-6) << name;
    ASSERT_EQ(r.num_top, 4) << name;  // the impossible token is not listed
    const TokenId order[] = {2, 4, 0, 1};
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(r.top[i].token, order[i]) << name;
      EXPECT_NEAR(r.top[i].logprob, logits[order[i]] - log_sum, 1e-6) << name;
    }
    params.logprobs = 0;
    r = run_one(ctx, logits, task);
    EXPECT_EQ(r.num_top, 0) << name;
    EXPECT_NEAR(r.logprob, 1 - log_sum, 1e-6) << name;
    params.logprobs = -1;
    EXPECT_EQ(run_one(ctx, logits, task).logprob, 0) << name;
    params.logprobs = 20;
  });
}

TEST(Sample, ForcedAndScoredTokens) {
  SamplingParams params;
  params.logprobs = 1;
  params.prompt_logprobs = 2;
  const std::vector<float> logits = {0, 1, 2};
  const double log_sum = std::log(1 + std::exp(1.0) + std::exp(2.0));
  for_each_variant([&](const OpContext& ctx, const std::string& name) {
    SampleTask task;
    task.params = &params;
    task.forced = 0;
    SampleResult r = run_one(ctx, logits, task);
    EXPECT_EQ(r.token, 0) << name;
    EXPECT_NEAR(r.logprob, -log_sum, 1e-6) << name;
    EXPECT_EQ(r.num_top, 1) << name;
    task.forced = kNoToken;
    task.target = 1;
    r = run_one(ctx, logits, task);
    EXPECT_EQ(r.token, 1) << name;
    EXPECT_NEAR(r.logprob, 1 - log_sum, 1e-6) << name;
    EXPECT_EQ(r.num_top, 2) << name;
    EXPECT_EQ(r.top[0].token, 2) << name;
  });
}

TEST(Sample, BrokenRowsAreReportedAndDisturbNobody) {
  TestRandom random;
  constexpr int64_t kVocab = 1037;
  SamplingParams params;
  params.logprobs = 3;
  std::vector<SampleTask> tasks(8);
  for (size_t i = 0; i < tasks.size(); ++i) {
    tasks[i].params = &params;
    tasks[i].seed = i;
  }
  const std::vector<float> logits = random.normals(8 * kVocab);
  for_each_variant([&](const OpContext& ctx, const std::string& name) {
    const std::vector<SampleResult> expected = run(ctx, logits, tasks);
    for (int way = 0; way < 6; ++way) {
      std::vector<float> broken = logits;
      std::vector<SampleTask> broken_tasks = tasks;
      float* row = broken.data() + 3 * kVocab;
      if (way == 0) std::fill_n(row, kVocab, kNaN);
      if (way == 1) row[random.integer(0, kVocab - 1)] = kNaN;
      if (way == 2) row[random.integer(0, kVocab - 1)] = kInf;
      if (way == 3) std::fill_n(row, kVocab, -kInf);
      if (way == 4) broken_tasks[3].poison = true;
      if (way == 5) row[kVocab - 1] = kNaN;
      const std::vector<SampleResult> results = run(ctx, broken, broken_tasks);
      for (int i = 0; i < 8; ++i) {
        ASSERT_EQ(results[i].finite, i != 3) << name << " way " << way;
        if (i == 3) {
          ASSERT_EQ(results[i].token, kNoToken) << name << " way " << way;
        } else {
          ASSERT_EQ(results[i].token, expected[i].token) << name << " way " << way;
          ASSERT_EQ(results[i].logprob, expected[i].logprob) << name << " way " << way;
        }
      }
    }
  });
}

// Pearson's statistic of drawn frequencies against given probabilities; tokens of probability 0 must not occur.
void expect_distribution(const std::vector<int>& counts, const std::vector<double>& p, double critical,
                         const std::string& what) {
  const double draws = std::accumulate(counts.begin(), counts.end(), 0.0);
  double statistic = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) {
      EXPECT_EQ(counts[i], 0) << what << " token " << i;
    } else {
      statistic += (counts[i] - draws * p[i]) * (counts[i] - draws * p[i]) / (draws * p[i]);
    }
  }
  EXPECT_LT(statistic, critical) << what;
}

TEST(Sample, FrequenciesFollowTheDefinition) {  // fixed seeds; critical values of chi-square at 0.1 %
  constexpr int kDraws = 20000;
  const std::vector<double> weights = {0.1, 0.25, 0.4, 0.05, 0.2};
  std::vector<float> logits;
  for (double w : weights) logits.push_back(static_cast<float>(std::log(w)) + 3);
  for_each_variant([&](const OpContext& ctx, const std::string& name) {
    SamplingParams params;
    expect_distribution(frequencies(ctx, logits, params, kDraws), weights, 18.5, name + " plain");
    params.temperature = 0.5f;  // squares: 0.01, 0.0625, 0.16, 0.0025, 0.04 of 0.275
    expect_distribution(frequencies(ctx, logits, params, kDraws),
                        {0.01 / 0.275, 0.0625 / 0.275, 0.16 / 0.275, 0.0025 / 0.275, 0.04 / 0.275}, 18.5, name + " T");
    params = {};
    params.top_k = 3;
    expect_distribution(frequencies(ctx, logits, params, kDraws), {0, 0.25 / 0.85, 0.4 / 0.85, 0, 0.2 / 0.85}, 13.8,
                        name + " top_k");
    params = {};
    params.top_p = 0.6f;  // 0.4 + 0.25 is the first to reach it
    expect_distribution(frequencies(ctx, logits, params, kDraws), {0, 0.25 / 0.65, 0.4 / 0.65, 0, 0}, 10.8,
                        name + " top_p");
    params = {};
    params.min_p = 0.45f;  // 0.18 and more
    expect_distribution(frequencies(ctx, logits, params, kDraws), {0, 0.25 / 0.85, 0.4 / 0.85, 0, 0.2 / 0.85}, 13.8,
                        name + " min_p");
    params.top_k = 2;
    params.top_p = 0.9f;
    expect_distribution(frequencies(ctx, logits, params, kDraws), {0, 0.25 / 0.65, 0.4 / 0.65, 0, 0}, 10.8,
                        name + " all");
  });
}

struct RandomTask {
  SamplingParams params;
  std::vector<TokenId> tokens, banned;
};

// The address of the result must stay: SampleTask points into it.
void fill_random_task(TestRandom& random, int64_t vocab, RandomTask& r, SampleTask& task) {
  const auto maybe = [&](auto value, auto off) {
    return random.integer(0, 1) ? value : static_cast<decltype(value)>(off);
  };
  r.params.temperature = maybe(static_cast<float>(random.uniform() * 2), random.integer(0, 2) ? 1 : 0);
  r.params.top_p = maybe(static_cast<float>(random.uniform()), 1);
  r.params.top_k = maybe(static_cast<int32_t>(random.integer(1, 60)), 0);
  r.params.min_p = maybe(static_cast<float>(random.uniform() * 0.2), 0);
  r.params.repetition_penalty = maybe(static_cast<float>(0.5 + random.uniform()), 1);
  r.params.frequency_penalty = maybe(static_cast<float>(random.uniform() * 4 - 2), 0);
  r.params.presence_penalty = maybe(static_cast<float>(random.uniform() * 4 - 2), 0);
  r.params.logprobs = static_cast<int32_t>(random.integer(-1, 20));
  for (int64_t id = 0; id < vocab && r.params.logit_bias.size() < 20; id += random.integer(1, vocab)) {
    r.params.logit_bias.push_back({static_cast<TokenId>(id), static_cast<float>(random.integer(-101, 20))});
  }
  for (int64_t i = random.integer(0, 200); i > 0; --i)
    r.tokens.push_back(static_cast<TokenId>(random.integer(0, vocab - 1)));
  if (random.integer(0, 3) == 0 && vocab > 2) r.banned.push_back(static_cast<TokenId>(random.integer(0, vocab - 1)));
  task.params = &r.params;
  task.tokens = r.tokens;
  task.prompt_len = static_cast<int32_t>(random.integer(0, r.tokens.size()));
  task.banned = r.banned;
  task.seed = static_cast<uint64_t>(random.integer(0, 1 << 30));
  task.output_index = static_cast<int32_t>(random.integer(0, 1000));
}

void expect_same(const SampleResult& a, const SampleResult& b, float logprob_tolerance, const std::string& what) {
  ASSERT_EQ(a.finite, b.finite) << what;
  ASSERT_NEAR(a.logprob, b.logprob, logprob_tolerance * (1 + std::abs(b.logprob))) << what;
  ASSERT_EQ(a.num_top, b.num_top) << what;
  for (int i = 0; i < a.num_top; ++i) {
    ASSERT_EQ(a.top[i].token, b.top[i].token) << what << " top " << i;
    ASSERT_NEAR(a.top[i].logprob, b.top[i].logprob, logprob_tolerance * (1 + std::abs(b.top[i].logprob))) << what;
  }
}

TEST(Sample, CpuEqualsReferenceOnRandomTasks) {
  TestRandom random;
  constexpr int kTasks = 24;
  int mismatches = 0;
  for (int64_t vocab : {1, 2, 17, 64, 1000, 1027, 5000}) {
    for (float sigma : {0.0f, 0.01f, 1.0f, 4.0f}) {  // from all ties to one clear favourite
      std::vector<RandomTask> random_tasks(kTasks);
      std::vector<SampleTask> tasks(kTasks);
      for (int i = 0; i < kTasks; ++i) fill_random_task(random, vocab, random_tasks[i], tasks[i]);
      std::vector<float> logits = random.normals(kTasks * vocab, sigma);
      for (float& l : logits) {
        if (random.integer(0, 9) == 0) l = std::round(l);  // ties
        if (random.integer(0, 19) == 0 && vocab > 20) l = -kInf;
      }
      const std::vector<SampleResult> expected = run(kReferenceContext, logits, tasks);
      for_each_cpu_variant([&](const OpContext& ctx, const std::string& name) {
        const std::vector<SampleResult> results = run(ctx, logits, tasks);
        for (int i = 0; i < kTasks; ++i) {
          if (results[i].token != expected[i].token) {
            ++mismatches;
            continue;
          }
          expect_same(results[i], expected[i], 1e-6f, name + " vocab " + std::to_string(vocab));
        }
      });
    }
  }
  // A draw within the rounding of float exponentials of a boundary may go the other way: about one in 10^6.
  EXPECT_LE(mismatches, 7);
}

TEST(Sample, LargeVocabularyEqualsReference) {
  TestRandom random;
  constexpr int64_t kVocab = 262144;
  ThreadPool pool(2);
  for (float sigma : {0.0f, 0.5f, 6.0f}) {
    const std::vector<float> logits = random.normals(kVocab, sigma);
    SamplingParams params;
    SampleTask task;
    task.params = &params;
    for (int way = 0; way < 4; ++way) {
      params = {};
      if (way == 1) params.top_p = 0.95f;
      if (way == 2) params.top_k = 100000;
      if (way == 3) params.min_p = 0.3f;
      task.seed = static_cast<uint64_t>(random.integer(0, 1 << 30));
      const SampleResult expected = run_one(kReferenceContext, logits, task);
      const SampleResult result = run_one({Backend::kCpu, &pool}, logits, task);
      // Neighbours in the order of likelihood: rounding may move a draw among 262144 tokens by one or two.
      EXPECT_NEAR(logits[result.token], logits[expected.token], 1e-2) << sigma << " way " << way;
      EXPECT_TRUE(sigma > 0 || result.token == expected.token) << way;  // all weights 1: no rounding
    }
  }
}

TEST(Sample, ATaskGivesTheSameInAnyBatch) {
  TestRandom random;
  constexpr int kTasks = 33;
  constexpr int64_t kVocab = 3000;
  std::vector<RandomTask> random_tasks(kTasks);
  std::vector<SampleTask> tasks(kTasks);
  for (int i = 0; i < kTasks; ++i) fill_random_task(random, kVocab, random_tasks[i], tasks[i]);
  const std::vector<float> logits = random.normals(kTasks * kVocab);
  for_each_variant([&](const OpContext& ctx, const std::string& name) {
    const std::vector<SampleResult> batch = run(ctx, logits, tasks);
    for (int i = 0; i < kTasks; ++i) {
      const std::vector<float> row(logits.begin() + i * kVocab, logits.begin() + (i + 1) * kVocab);
      const SampleResult alone = run_one(ctx, row, tasks[i]);
      ASSERT_EQ(alone.token, batch[i].token) << name << " task " << i;
      expect_same(alone, batch[i], 0, name + " task " + std::to_string(i));
    }
  });
}

TEST(Sample, ExtremeParameters) {
  for_each_variant([&](const OpContext& ctx, const std::string& name) {
    SamplingParams params;
    SampleTask task;
    task.params = &params;
    const std::vector<float> logits = {-3e38f, 3e38f, 3e38f, 0};
    std::vector<bool> drawn(4);
    for (float temperature : {1e-45f, 1e-30f, 1.0f, 1e30f}) {
      for (uint64_t seed = 0; seed < 40; ++seed) {
        params.temperature = temperature;
        task.seed = seed;
        const SampleResult r = run_one(ctx, logits, task);
        ASSERT_TRUE(r.finite) << name;
        ASSERT_TRUE(temperature > 1e20f || r.token == 1 || r.token == 2) << name << ' ' << temperature;
        drawn[r.token] = true;
      }
    }
    EXPECT_TRUE(drawn[1] && drawn[2]) << name;
  });
}

}  // namespace
}  // namespace vayu::ops
