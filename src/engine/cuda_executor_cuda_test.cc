// The CUDA executor under the scheduler: steps that overlap give what steps one by one give.
#include "engine/cuda_executor.h"

#include <algorithm>
#include <map>

#include "loader/json_config.h"
#include "model/dummy_checkpoint.h"
#include "model/registry.h"
#include "model/testing/golden.h"
#include "ops/cuda/whole_device.h"
#include "scheduler/scheduler.h"

namespace vayu {
namespace {

using Answers = std::map<RequestId, std::vector<OutputToken>>;

std::unique_ptr<CudaExecutor> load(const std::string& name, const CudaExecutorOptions& options) {
  const auto json = loader::JsonConfig::parse(
      model::testing::read_whole(model::testing::golden_path("configs/" + name + ".json")), "config.json");
  auto recipe = model::recipe_of(**json);
  EXPECT_TRUE(recipe.ok()) << recipe.error().message;
  const auto weights = model::dummy_checkpoint(*recipe, 1234, "dummy");
  auto executor = CudaExecutor::load(std::move(*recipe), *weights, options);
  EXPECT_TRUE(executor.ok()) << executor.error().message;
  return std::move(*executor);
}

// The engine's loop without its thread, so that steps hold the same rows in every run.
struct Driver {
  explicit Driver(Executor& executor)
      : executor(executor),
        scheduler({.max_num_batched_tokens = executor.limits().max_step_tokens,
                   .chunked_prefill_size = executor.limits().max_step_tokens,
                   .max_num_seqs = 16,
                   .max_logits_per_step = 16,
                   .overlap = executor.overlaps()},
                  executor.limits(), clock) {}

  Answers run(const std::vector<Request>& requests) {
    Answers answers;
    for (const Request& request : requests) EXPECT_TRUE(scheduler.add(request).ok());
    Batch batches[2];
    StepOutput output;
    std::vector<SequenceDelta> deltas;
    const int most = executor.overlaps() ? 2 : 1;
    for (int turn = 0, under_way = 0; scheduler.has_work() || under_way > 0;) {
      const bool planned = scheduler.plan(batches[turn]);
      if (planned) {
        for (const int32_t sample : batches[turn].prev_samples) unknown_tokens += sample >= 0;
        executor.launch(batches[turn]);
        turn ^= 1;
        ++under_way;
      }
      if (under_way < most && planned) continue;
      executor.wait(output);
      --under_way;
      if (output.failure) {
        ADD_FAILURE() << output.failure->message;
        return {};
      }
      scheduler.commit(output);
      scheduler.take_deltas(deltas);
      for (SequenceDelta& delta : deltas) {
        EXPECT_FALSE(delta.error) << delta.error->message;
        std::ranges::move(delta.tokens, std::back_inserter(answers[delta.request_id]));
      }
    }
    return answers;
  }

  Executor& executor;
  ManualClock clock;
  Scheduler scheduler;
  int64_t unknown_tokens = 0;
};

const int32_t kAnswerTokens = ops::unless_short(60, 24);  // at least min_tokens

// Prompts of several steps and of a part of one; greedy, drawn, penalised, with bans and alternatives. All answers have
// one length and no end id, so that no row is planned in vain and the steps are the same however they are run.
std::vector<Request> make_requests(int32_t vocab_size) {
  std::vector<Request> requests;
  uint32_t state = 1;
  for (RequestId id = 1; id <= 9; ++id) {
    Request request;
    request.id = id;
    request.arrival_us = static_cast<int64_t>(id);
    for (size_t i = 0; i < 20 + 37 * id; ++i) {
      state = state * 1664525 + 1013904223;
      request.prompt.push_back(static_cast<TokenId>((state >> 8) % static_cast<uint32_t>(vocab_size)));
    }
    SamplingParams& params = request.sampling;
    params.max_tokens = kAnswerTokens;
    params.ignore_eos = true;
    params.seed = 40 + id;
    params.temperature = id % 2 ? 0.0f : 0.9f;
    if (id % 4 == 0) params.top_p = 0.9f;
    if (id % 3 == 0) params.repetition_penalty = 1.3f;
    if (id % 5 == 0) params.frequency_penalty = 0.7f;
    if (id % 3 == 1) params.logprobs = 3;
    if (id % 4 == 3) {
      params.min_tokens = 20;
      params.stop_token_ids = {static_cast<TokenId>(vocab_size - 1)};
      params.logit_bias = {{static_cast<TokenId>(vocab_size - 1), -100.0f}};
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

void expect_same(const Answers& got, const Answers& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [id, tokens] : want) {
    const auto& found = got.at(id);
    ASSERT_EQ(found.size(), tokens.size()) << "request " << id;
    for (size_t i = 0; i < tokens.size(); ++i) {
      ASSERT_EQ(found[i].token, tokens[i].token) << "request " << id << ", token " << i;
      ASSERT_EQ(found[i].logprob, tokens[i].logprob) << "request " << id << ", token " << i;
      ASSERT_EQ(found[i].top.size(), tokens[i].top.size());
      for (size_t k = 0; k < tokens[i].top.size(); ++k) ASSERT_EQ(found[i].top[k].token, tokens[i].top[k].token);
    }
  }
}

CudaExecutorOptions small_options(bool graphs, bool overlap) {
  return {.model = {.f8_weights = false,
                    .num_pages = 512,
                    .memory_fraction = 0.5,
                    .max_step_tokens = 128,
                    .max_rows = 16,
                    .max_logits = 16,
                    .max_context = 1024},
          .graphs = graphs,
          .overlap = overlap};
}

// Of a model, with graphs or kernel by kernel; a test each, which run side by side.
class Overlap : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};
INSTANTIATE_TEST_SUITE_P(CudaExecutor, Overlap,
                         ::testing::Combine(::testing::Values("qwen3", "sarvam_moe_base"), ::testing::Bool()),
                         [](const auto& info) {
                           const char* steps = std::get<1>(info.param) ? "_graphs" : "_kernels";
                           return std::string(std::get<0>(info.param)) + steps;
                         });

TEST_P(Overlap, ChangesNoAnswer) {
  VAYU_NEEDS_DEVICE();
  const auto [name, graphs] = GetParam();
  Answers want;
  {
    const auto executor = load(name, small_options(graphs, false));
    EXPECT_FALSE(executor->overlaps());
    want = Driver(*executor).run(make_requests(executor->limits().vocab_size));
  }
  ASSERT_EQ(want.size(), 9u);
  const auto executor = load(name, small_options(graphs, true));
  EXPECT_TRUE(executor->overlaps());
  Driver driver(*executor);
  expect_same(driver.run(make_requests(executor->limits().vocab_size)), want);
  EXPECT_GT(driver.unknown_tokens, 9 * (kAnswerTokens - 10));
}

// A stop token that is seen when the next step is under way already: the answer ends there, and the pages of the row
// planned in vain serve the next answer.
TEST(CudaExecutor, StopTokenEndsAnAnswerWhileTheNextStepRuns) {
  VAYU_NEEDS_DEVICE();
  const auto executor = load("qwen3", small_options(true, true));
  std::vector<Request> requests = make_requests(executor->limits().vocab_size);
  Driver driver(*executor);
  for (int round = 0; round < 2; ++round) {
    for (const size_t i : ops::unless_short<size_t>({1, 5}, {5})) {  // drawn: they do not repeat themselves at once
      Request request = requests[i];
      request.cache_namespace = std::to_string(round);
      request.id = 100 * (round + 1) + i;
      const std::vector<OutputToken> whole = driver.run({request})[request.id];
      ASSERT_EQ(whole.size(), static_cast<size_t>(kAnswerTokens));
      const TokenId stop = whole[kAnswerTokens * 5 / 12].token;
      const auto first = std::ranges::find(whole, stop, &OutputToken::token) - whole.begin();
      request.id += 1000;
      request.cache_namespace += "again";  // computed anew, with the same chunks
      request.sampling.stop_token_ids = {stop};
      request.sampling.min_tokens = 0;
      const std::vector<OutputToken> stopped = driver.run({request})[request.id];
      ASSERT_EQ(stopped.size(), static_cast<size_t>(first) + 1);
      for (size_t k = 0; k < stopped.size(); ++k) ASSERT_EQ(stopped[k].token, whole[k].token) << k;
      const EngineStats stats = driver.scheduler.stats();
      EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.total_pages);
    }
  }
}

// Prompts, decode steps, every kind of sampling: all memory was taken at start.
TEST(CudaExecutorAlone, StepsTakeNoMemory) {
  VAYU_NEEDS_WHOLE_DEVICE();
  for (const char* name : {"qwen3", "sarvam_moe_base", "sarvam_mla_flat"}) {
    for (const bool graphs : {true, false}) {
      const int64_t before = ops::free_device_bytes().value();
      CudaExecutorOptions options = small_options(graphs, true);
      options.model.num_pages = 0;
      options.model.max_step_tokens = 512;  // the shared expert of such prompts runs on a second stream
      const auto executor = load(name, options);
      const int64_t free = ops::free_device_bytes().value();
      const std::string plan = executor->memory_plan();
      std::printf("MEMORY %s: %s; %ld MiB taken\n", name, plan.c_str(), static_cast<long>(before - free) >> 20);
      for (const char* item : {"weights ", "KV pages ", "workspace ", "graphs ", "context with kernels ", "reserve "}) {
        EXPECT_NE(plan.find(item), std::string::npos) << item;
      }
      Driver(*executor).run(make_requests(executor->limits().vocab_size));
      EXPECT_EQ(ops::free_device_bytes().value(), free) << name << (graphs ? " from graphs" : " kernel by kernel");
    }
  }
}

}  // namespace
}  // namespace vayu
