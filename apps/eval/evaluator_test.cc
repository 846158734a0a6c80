#include "apps/eval/evaluator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "model/testing/load_gguf.h"
#include "model/testing/tiny_llama.h"

namespace vayu::eval {
namespace {

using model::testing::TinyLlama;

EvalText random_text(int64_t num_tokens) {
  std::mt19937 rng(7);
  EvalText text{.path = "text", .scored_bytes = num_tokens};
  for (int64_t i = 0; i < num_tokens; ++i) text.ids.push_back(static_cast<TokenId>(rng() % 80));
  return text;
}

class EvaluatorTest : public ::testing::Test {
 protected:
  std::unique_ptr<model::Model> load(TinyLlama spec, const WindowOptions& windows) {
    const auto bytes = spec.build();
    const auto file = *loader::GgufFile::parse(bytes, "tiny.gguf");
    model::ModelLoadOptions options;
    options.ops = {ops::Backend::kCpu, &pool_};
    plan_model(windows, spec.vocab, options);
    auto loaded = model::testing::load_gguf(*file, options);
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    return std::move(*loaded);
  }
  Result<TextScore> score(const EvalText& text, const WindowOptions& windows, model::Model& evaluated,
                          model::Model* reference = nullptr) {
    auto evaluator = Evaluator::create(windows, evaluated, reference, pool_);
    EXPECT_TRUE(evaluator.ok());
    int64_t told = 0;
    auto result = (*evaluator)->score(text, [&](int64_t tokens) { told += tokens; });
    EXPECT_TRUE(!result.ok() || told == result->tokens);
    return result;
  }
  ThreadPool pool_{2};
};

TEST_F(EvaluatorTest, BatchesDoNotChangeTheFigures) {
  const EvalText text = random_text(300);
  WindowOptions windows{.window = 40, .stride = 13, .max_step_tokens = 1000};
  const double whole = score(text, windows, *load({}, windows))->nll;
  EXPECT_TRUE(std::isfinite(whole));
  for (const int32_t step : {5, 39, 64, 200}) {
    windows.max_step_tokens = step;
    const auto cut = score(text, windows, *load({}, windows));
    ASSERT_TRUE(cut.ok());
    EXPECT_EQ(cut->tokens, 299);
    EXPECT_NEAR(cut->nll, whole, 1e-4 * whole) << step;
  }
}

// A text of three windows by hand: each window as a text of its own, less what it scores of its context.
TEST_F(EvaluatorTest, WindowsAreSequencesOfTheirOwn) {
  const EvalText text = random_text(40);
  const WindowOptions windows{.window = 20, .stride = 10, .max_step_tokens = 64};
  const auto model = load({}, windows);
  double expected = 0;
  for (int begin = 0; begin <= 20; begin += 10) {
    const auto part = [&](int length) {
      EvalText cut{.path = "cut"};
      cut.ids.assign(text.ids.begin() + begin, text.ids.begin() + begin + length);
      return score(cut, windows, *model)->nll;
    };
    expected += part(20) - (begin > 0 ? part(10) : 0);
  }
  EXPECT_NEAR(score(text, windows, *model)->nll, expected, 1e-4 * expected);
}

TEST_F(EvaluatorTest, AgainstItselfAndAgainstCoarserWeights) {
  const EvalText text = random_text(200);
  const WindowOptions windows{.window = 64, .stride = 32, .max_step_tokens = 128};
  TinyLlama coarse;
  coarse.format = DataFormat::kQ4_0;
  const auto exact = load({}, windows), other = load({}, windows), rounded = load(coarse, windows);
  const auto same = score(text, windows, *exact, other.get());
  EXPECT_EQ(same->agreement(), 1);
  EXPECT_EQ(same->mean_kl(), 0);
  EXPECT_EQ(same->reference_nll, same->nll);
  const auto differs = score(text, windows, *rounded, exact.get());
  EXPECT_EQ(differs->reference_nll, same->nll);
  EXPECT_NE(differs->nll, same->nll);
  EXPECT_GT(differs->mean_kl(), 0);
  EXPECT_GT(differs->p99_kl(), differs->mean_kl());
  EXPECT_LT(differs->agreement(), 1);
}

TEST_F(EvaluatorTest, NamesTheWindowOfLogitsThatOverflow) {
  const WindowOptions windows{.window = 16, .stride = 8, .max_step_tokens = 32};
  TinyLlama broken;
  broken.without = "output_norm.weight";
  broken.extra = [](loader::GgufWriter& writer) {
    writer.add_tensor("output_norm.weight", std::vector<int64_t>{64}, DataFormat::kF32, std::vector<float>(64, 3e38f));
  };
  const auto good = load({}, windows), bad = load(broken, windows);
  const auto failed = score(random_text(30), windows, *bad);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().message, "text: logits are not finite in window 0 (tokens 0 to 15), at token 1");
  const auto reference = score(random_text(30), windows, *good, bad.get());
  ASSERT_FALSE(reference.ok());
  EXPECT_NE(reference.error().message.find("of the reference"), std::string::npos);
}

}  // namespace
}  // namespace vayu::eval
