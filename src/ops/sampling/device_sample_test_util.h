// Random rows for the tests of the device sampler.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "core/batch.h"
#include "ops/context.h"
#include "ops/cpu/op_test_util.h"
#include "ops/sampling/sample.h"

namespace vayu::ops {

// Tasks with the parameters and lists they point to.
struct TestTasks {
  struct Row {
    SamplingParams params;
    std::vector<TokenId> tokens, banned;
  };
  std::vector<std::unique_ptr<Row>> rows;
  std::vector<SampleTask> tasks;

  SamplingParams& add() {
    rows.push_back(std::make_unique<Row>());
    tasks.emplace_back();
    tasks.back().params = &rows.back()->params;
    tasks.back().seed = rows.size() * 7919;
    return rows.back()->params;
  }
  // Of the last row.
  void set_lists(std::vector<TokenId> tokens, int32_t prompt_len, std::vector<TokenId> banned) {
    rows.back()->tokens = std::move(tokens);
    rows.back()->banned = std::move(banned);
    tasks.back().tokens = rows.back()->tokens;
    tasks.back().prompt_len = prompt_len;
    tasks.back().banned = rows.back()->banned;
  }
};

// Every parameter on or off, in all combinations; every eighth row scored, every eighth forced.
inline void add_random_task(TestRandom& random, int64_t vocab, TestTasks& all) {
  const auto coin = [&] { return random.integer(0, 1) == 1; };
  SamplingParams& params = all.add();
  SampleTask& task = all.tasks.back();
  params.temperature = coin() ? static_cast<float>(random.uniform() * 2) : random.integer(0, 3) ? 1.0f : 0.0f;
  if (random.integer(0, 7) == 0) params.temperature = static_cast<float>(std::pow(10.0, random.uniform() * 10 - 5));
  if (coin()) params.top_p = static_cast<float>(random.uniform());
  if (coin()) params.top_k = static_cast<int32_t>(random.integer(1, random.integer(0, 3) ? 60 : vocab + 1));
  if (coin()) params.min_p = static_cast<float>(random.uniform() * 0.2);
  if (coin()) params.repetition_penalty = static_cast<float>(0.5 + random.uniform());
  if (coin()) params.frequency_penalty = static_cast<float>(random.uniform() * 4 - 2);
  if (coin()) params.presence_penalty = static_cast<float>(random.uniform() * 4 - 2);
  params.logprobs = static_cast<int32_t>(random.integer(-1, 20));
  params.prompt_logprobs = static_cast<int32_t>(random.integer(-1, 20));
  if (coin()) {
    for (int64_t id = random.integer(0, vocab); id < vocab + 5; id += random.integer(1, vocab)) {
      params.logit_bias.push_back({static_cast<TokenId>(id), static_cast<float>(random.integer(-101, 20))});
      if (params.logit_bias.size() == 20) break;
      if (random.integer(0, 9) == 0) params.logit_bias.back().second = 100;
    }
  }
  std::vector<TokenId> tokens(random.integer(0, 3000)), banned;
  for (TokenId& id : tokens) id = static_cast<TokenId>(random.integer(-1, vocab));
  if (random.integer(0, 3) == 0 && vocab > 20) {
    for (int i = 0; i < 5; ++i) banned.push_back(static_cast<TokenId>(random.integer(0, vocab)));
  }
  const auto prompt_len = static_cast<int32_t>(random.integer(0, tokens.size()));
  all.set_lists(std::move(tokens), prompt_len, std::move(banned));
  task.seed = static_cast<uint64_t>(random.integer(0, int64_t{1} << 62));
  task.output_index = static_cast<int32_t>(random.integer(0, 1000));
  const int64_t kind = random.integer(0, 7);
  if (kind == 0) task.target = static_cast<TokenId>(random.integer(0, vocab - 1));
  if (kind == 1) task.forced = static_cast<TokenId>(random.integer(0, vocab - 1));
}

// Normal, with some ties and some impossible tokens.
inline std::vector<float> random_logits(TestRandom& random, int64_t count, int64_t vocab, float sigma) {
  std::vector<float> logits = random.normals(count * vocab, sigma);
  for (float& l : logits) {
    if (random.integer(0, 9) == 0) l = std::round(l);
    if (random.integer(0, 19) == 0 && vocab > 20) l = -std::numeric_limits<float>::infinity();
  }
  return logits;
}

inline std::vector<SampleResult> sample_by_reference(const std::vector<float>& logits,
                                                     const std::vector<SampleTask>& tasks) {
  std::vector<SampleResult> results(tasks.size());
  sample({Backend::kReference, nullptr}, {logits.data(), static_cast<int64_t>(logits.size() / tasks.size()),
                                          tasks.data(), results.data(), static_cast<int64_t>(tasks.size()), nullptr});
  return results;
}

inline void expect_same_logprobs(const SampleResult& a, const SampleResult& b, float tolerance,
                                 const std::string& what) {
  ASSERT_EQ(a.finite, b.finite) << what;
  if (a.logprob != b.logprob) {  // both may be -inf: a forced token that is impossible
    ASSERT_NEAR(a.logprob, b.logprob, tolerance * (1 + std::abs(b.logprob))) << what;
  }
  ASSERT_EQ(a.num_top, b.num_top) << what;
  for (int i = 0; i < a.num_top; ++i) {
    ASSERT_EQ(a.top[i].token, b.top[i].token) << what << " top " << i;
    ASSERT_NEAR(a.top[i].logprob, b.top[i].logprob, tolerance * (1 + std::abs(b.top[i].logprob))) << what;
  }
}

}  // namespace vayu::ops
