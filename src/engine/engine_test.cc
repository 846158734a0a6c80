// The engine thread over a small executor whose "model" counts: the next token is the last one plus one. Every test
// runs with steps one by one and with steps that overlap.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <future>
#include <optional>

namespace vayu {
namespace {

class CountingExecutor : public Executor {
 public:
  // fail_at_step: that step and all after it fail; -1: none.
  explicit CountingExecutor(bool overlaps, int fail_at_step) : overlaps_(overlaps), fail_at_step_(fail_at_step) {
    limits_ = {
        .vocab_size = 1000, .page_size = 4, .num_pages = 64, .max_step_tokens = 64, .max_rows = 16, .max_context = 128};
  }
  const ExecutorLimits& limits() const override { return limits_; }
  bool overlaps() const override { return overlaps_; }
  void launch(const Batch& batch) override {
    VAYU_CHECK(running_.size() < (overlaps_ ? 2 : 1), "{} steps under way", running_.size());
    running_.push_back(&batch);
  }
  void wait(StepOutput& output) override {
    const Batch& batch = *running_.at(0);
    running_.erase(running_.begin());
    if (step_++ == fail_at_step_) {
      output.results.clear();
      output.failure = make_error(ErrorKind::kUnavailable, "the device is gone");
      return;
    }
    output.results.resize(batch.samples.size());
    for (size_t i = 0; i < batch.samples.size(); ++i) {
      const int32_t t = batch.logit_rows[i];
      const int32_t prev = batch.prev_samples.empty() ? -1 : batch.prev_samples[t];
      const TokenId last = prev < 0 ? batch.token_ids[t] : last_tokens_.at(prev);
      output.results[i].token = (last + 1) % limits_.vocab_size;
      output.results[i].finite = !batch.samples[i].poison;
    }
    last_tokens_.clear();
    for (const SampleResult& result : output.results) last_tokens_.push_back(result.token);
  }

 private:
  ExecutorLimits limits_;
  std::vector<const Batch*> running_;
  std::vector<TokenId> last_tokens_;
  const bool overlaps_;
  const int fail_at_step_;
  int step_ = 0;
};

struct Answer {
  std::vector<TokenId> tokens;
  FinishReason finish = FinishReason::kError;
  std::optional<Error> error;
  int endings = 0;
  std::promise<void> done;
};

DeltaSink sink_of(std::shared_ptr<Answer> answer) {
  return [answer](SequenceDelta&& delta) {
    for (const OutputToken& t : delta.tokens) answer->tokens.push_back(t.token);
    if (!delta.finish) return;
    answer->finish = *delta.finish;
    answer->error = delta.error;
    if (++answer->endings == 1) answer->done.set_value();
  };
}

Request count_from(TokenId first, int32_t max_tokens) {
  Request request;
  request.prompt = {first - 1, first};
  request.sampling.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  return request;
}

class EngineTest : public ::testing::TestWithParam<bool> {};

std::unique_ptr<Engine> make_engine(const Clock& clock, int32_t max_open = 64, int fail_at_step = -1) {
  EngineConfig config{.model_name = "counting", .max_open_requests = max_open};
  config.scheduler.end_ids = {999};
  config.scheduler.max_num_batched_tokens = 64;
  return std::make_unique<Engine>(std::move(config),
                                  std::make_unique<CountingExecutor>(EngineTest::GetParam(), fail_at_step), clock);
}

void wait_done(Answer& answer) {
  ASSERT_EQ(answer.done.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
}

TEST_P(EngineTest, AnswersManyRequestsAtOnce) {
  SteadyClock clock;
  auto engine = make_engine(clock);
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 40; ++i) {
    answers.push_back(std::make_shared<Answer>());
    ASSERT_TRUE(engine->submit(count_from(10 * i + 1, 8), sink_of(answers.back())).ok());
  }
  for (int i = 0; i < 40; ++i) {
    wait_done(*answers[i]);
    ASSERT_EQ(answers[i]->tokens.size(), 8u);
    for (int k = 0; k < 8; ++k) EXPECT_EQ(answers[i]->tokens[k], 10 * i + 2 + k);
    EXPECT_EQ(answers[i]->finish, FinishReason::kLength);
  }
}

TEST_P(EngineTest, EndIdStopsAndIsReported) {
  SteadyClock clock;
  auto engine = make_engine(clock);
  auto answer = std::make_shared<Answer>();
  ASSERT_TRUE(engine->submit(count_from(996, 50), sink_of(answer)).ok());
  wait_done(*answer);
  EXPECT_EQ(answer->finish, FinishReason::kStop);
  EXPECT_EQ(answer->tokens, (std::vector<TokenId>{997, 998, 999}));
}

TEST_P(EngineTest, CancelEndsOnceAndReturnsPages) {
  SteadyClock clock;
  auto engine = make_engine(clock);
  auto answer = std::make_shared<Answer>();
  const auto id = engine->submit(count_from(1, 100), sink_of(answer));
  ASSERT_TRUE(id.ok());
  engine->cancel(*id, -1, FinishReason::kCancelled);
  engine->cancel(*id, -1, FinishReason::kCancelled);
  wait_done(*answer);
  engine->cancel(*id, -1, FinishReason::kCancelled);
  auto next = std::make_shared<Answer>();
  ASSERT_TRUE(engine->submit(count_from(500, 4), sink_of(next)).ok());
  wait_done(*next);
  EXPECT_EQ(answer->endings, 1);
  const auto busy = [](const EngineStats& stats) {  // pages come back when the last step under way has landed
    return stats.running > 0 || stats.free_pages + stats.cached_pages < stats.total_pages;
  };
  for (int i = 0; i < 200 && busy(engine->stats()); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.total_pages);
}

TEST_P(EngineTest, PoisonedRowFailsAloneWithReason) {
  SteadyClock clock;
  auto engine = make_engine(clock);
  auto bad = std::make_shared<Answer>(), good = std::make_shared<Answer>();
  Request poisoned = count_from(1, 10);
  poisoned.fail_at_token = 3;
  ASSERT_TRUE(engine->submit(std::move(poisoned), sink_of(bad)).ok());
  ASSERT_TRUE(engine->submit(count_from(100, 10), sink_of(good)).ok());
  wait_done(*bad);
  wait_done(*good);
  EXPECT_EQ(bad->finish, FinishReason::kError);
  EXPECT_EQ(bad->tokens.size(), 3u);
  EXPECT_EQ(good->tokens.size(), 10u);
}

TEST_P(EngineTest, RefusesWhatCannotFitAndWhatIsTooMuch) {
  SteadyClock clock;
  auto engine = make_engine(clock, 1);
  Request huge = count_from(1, 1);
  huge.prompt.assign(1000, 5);
  const auto refused = engine->submit(std::move(huge), [](SequenceDelta&&) { FAIL(); });
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);

  Request stalled = count_from(1, 2);
  stalled.stall_ms = 200;
  auto first = std::make_shared<Answer>();
  ASSERT_TRUE(engine->submit(std::move(stalled), sink_of(first)).ok());
  const auto full = engine->submit(count_from(1, 2), [](SequenceDelta&&) { FAIL(); });
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().kind, ErrorKind::kResourceExhausted);
  wait_done(*first);
}

TEST_P(EngineTest, DrainRefusesNewAndCancelsLate) {
  SteadyClock clock;
  auto engine = make_engine(clock);
  auto answer = std::make_shared<Answer>();
  ASSERT_TRUE(engine->submit(count_from(1, 5), sink_of(answer)).ok());
  engine->drain(clock.now_us() + 10'000'000);
  const auto refused = engine->submit(count_from(1, 5), [](SequenceDelta&&) { FAIL(); });
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kUnavailable);
  wait_done(*answer);
  EXPECT_EQ(answer->finish, FinishReason::kLength);
}

TEST_P(EngineTest, FailedStepEndsEveryAnswerAndRefusesNewOnes) {
  SteadyClock clock;
  auto engine = make_engine(clock, 64, /*fail_at_step=*/5);
  std::vector<std::shared_ptr<Answer>> answers;
  Request first = count_from(1, 100);
  first.stall_ms = 50;            // the others come meanwhile
  for (int i = 0; i < 20; ++i) {  // more than have room
    answers.push_back(std::make_shared<Answer>());
    Request request = i == 0 ? std::move(first) : count_from(10 * i + 1, 100);
    ASSERT_TRUE(engine->submit(std::move(request), sink_of(answers.back())).ok());
  }
  for (int i = 0; i < 20; ++i) {
    wait_done(*answers[i]);
    EXPECT_EQ(answers[i]->finish, FinishReason::kError);
    ASSERT_TRUE(answers[i]->error.has_value());
    EXPECT_EQ(answers[i]->error->kind, ErrorKind::kUnavailable);
    EXPECT_NE(answers[i]->error->message.find("the device is gone"), std::string::npos);
    for (size_t k = 0; k < answers[i]->tokens.size(); ++k) EXPECT_EQ(answers[i]->tokens[k], 10 * i + 2 + k);
  }
  EXPECT_GT(answers[0]->tokens.size(), 0u);
  const auto refused = engine->submit(count_from(1, 5), [](SequenceDelta&&) { FAIL(); });
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kUnavailable);
  EXPECT_NE(refused.error().message.find("the device is gone"), std::string::npos);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.failed, refused.error().message);
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.step_running_since_us, 0);
  EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.total_pages);
  engine.reset();
  for (const auto& answer : answers) EXPECT_EQ(answer->endings, 1);
}

TEST_P(EngineTest, DestructionEndsOpenAnswers) {
  SteadyClock clock;
  auto answer = std::make_shared<Answer>();
  {
    auto engine = make_engine(clock);
    Request request = count_from(1, 100);
    request.stall_ms = 20;
    ASSERT_TRUE(engine->submit(std::move(request), sink_of(answer)).ok());
  }
  EXPECT_EQ(answer->endings, 1);
}

INSTANTIATE_TEST_SUITE_P(Steps, EngineTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Overlapped" : "OneByOne"; });

}  // namespace
}  // namespace vayu
