// Whole models against the independent PyTorch oracle (tests/golden/oracle), on the same seeded weights: logits, and
// the experts chosen for every token in every layer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "loader/json_config.h"
#include "model/dummy_checkpoint.h"
#include "model/model.h"
#include "model/registry.h"
#include "model/testing/batch_builder.h"
#include "model/testing/golden.h"
#include "ops/cpu/thread_pool.h"

namespace vayu::model {
namespace {

using testing::Golden;
using testing::golden_path;
using Json = nlohmann::json;

constexpr int32_t kPageSize = 16;
constexpr int32_t kMaxTokens = 64;
constexpr double kTolerance = 1e-4;  // of the largest logit of a position, in fp32
// bf16 weights and cache, activations fp32: mean and 90th percentile of |error| over the rms of the logits
constexpr double kBf16Mean = 0.02;
constexpr double kBf16Percentile90 = 0.05;

struct RunOptions {
  ops::Backend backend = ops::Backend::kCpu;
  DataFormat weights = DataFormat::kF32;
  ops::KvFormat kv = ops::KvFormat::kF32;
  MlaForm mla = MlaForm::kAbsorbed;
  int32_t chunk = kMaxTokens;  // tokens a step
  int32_t first_position = 0;  // shifts every position
  std::function<void(Recipe&)> change;
  uint64_t seed = 1234;
};

struct RunResult {
  std::vector<std::vector<float>> logits;                  // (tokens, vocab)
  std::vector<std::vector<std::vector<int32_t>>> experts;  // (moe layers, tokens, k), ascending
};

Recipe recipe_from(const Json& config) {
  const auto json = loader::JsonConfig::parse(config.dump(), "config.json");
  EXPECT_TRUE(json.ok());
  auto recipe = recipe_of(**json);
  EXPECT_TRUE(recipe.ok()) << recipe.error().message;
  return std::move(*recipe);
}

RunResult run(const Json& config, const std::vector<int32_t>& tokens, const RunOptions& options) {
  static ThreadPool pool(2);
  Recipe recipe = recipe_from(config);
  recipe.config.mla.form = options.mla;
  if (options.change) options.change(recipe);
  const auto weights = dummy_checkpoint(recipe, options.seed, "dummy");
  ModelLoadOptions load;
  load.ops = {options.backend, options.backend == ops::Backend::kCpu ? &pool : nullptr};
  load.kv_format = options.kv;
  load.weight_format = options.weights;
  load.page_size = kPageSize;
  load.num_pages = 2 * kMaxTokens / kPageSize + 64;
  load.max_step_tokens = kMaxTokens;
  load.max_rows = load.max_logits = kMaxTokens;
  load.max_context = std::min(recipe.config.max_context, 2048);
  const int64_t vocab = recipe.config.vocab_size;
  const int32_t top_k = recipe.config.moe.router.top_k;
  auto model = Model::load(std::move(recipe), *weights, load);
  EXPECT_TRUE(model.ok()) << model.error().message;

  RunResult result;
  std::map<int32_t, std::vector<std::vector<int32_t>>> by_layer;
  const RouterObserver observer = [&](int32_t layer, const int32_t* ids, int64_t num_tokens) {
    for (int64_t t = 0; t < num_tokens; ++t) {
      std::vector<int32_t> chosen(ids + t * top_k, ids + (t + 1) * top_k);
      std::sort(chosen.begin(), chosen.end());
      by_layer[layer].push_back(chosen);
    }
  };
  testing::TestSequence sequence;
  sequence.tokens = tokens;
  sequence.pages.resize((tokens.size() + kPageSize - 1) / kPageSize);
  std::iota(sequence.pages.rbegin(), sequence.pages.rend(), 1);
  std::vector<float> logits(kMaxTokens * vocab);
  while (sequence.computed < static_cast<int32_t>(tokens.size())) {
    Batch batch;
    const int32_t count = std::min(options.chunk, static_cast<int32_t>(tokens.size()) - sequence.computed);
    append_row(batch, sequence, count, kPageSize, /*all_logits=*/true);
    for (int32_t& position : batch.positions) position += options.first_position;
    (*model)->forward(batch, logits.data(), &observer);
    for (int32_t t = 0; t < count; ++t) {
      result.logits.emplace_back(logits.begin() + t * vocab, logits.begin() + (t + 1) * vocab);
    }
  }
  for (auto& [layer, chosen] : by_layer) result.experts.push_back(std::move(chosen));
  return result;
}

Json config_of(const Golden& golden) {
  Json config = Json::parse(testing::read_whole(golden_path(golden.metadata.at("config"))));
  if (golden.metadata.contains("override_n_group")) {  // what --hf-overrides does
    config["n_group"] = std::stoi(golden.metadata.at("override_n_group"));
    config["topk_group"] = std::stoi(golden.metadata.at("override_topk_group"));
  }
  return config;
}

double largest(const float* x, size_t n) {
  double peak = 0;
  for (size_t i = 0; i < n; ++i) peak = std::max(peak, std::fabs(double{x[i]}));
  return peak;
}

double largest_difference(const std::vector<float>& a, const float* b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::fabs(double{a[i]} - b[i]));
  return worst;
}

// Largest error relative to the largest logit of its position.
double worst_error(const Golden& golden, const RunResult& got) {
  const auto positions = golden.integers("logit_positions");
  double worst = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    const std::vector<float>& mine = got.logits[positions[i]];
    const float* want = golden.at("logits").values.data() + i * mine.size();
    worst = std::max(worst, largest_difference(mine, want) / largest(want, mine.size()));
  }
  return worst;
}

void expect_same_experts(const Golden& golden, const RunResult& got, const std::string& suffix = "") {
  if (!golden.tensors.contains("experts" + suffix)) return;
  const testing::GoldenTensor& want = golden.at("experts" + suffix);
  const auto ids = golden.integers("experts" + suffix);
  ASSERT_EQ(got.experts.size(), static_cast<size_t>(want.shape[0]));
  for (int64_t layer = 0; layer < want.shape[0]; ++layer) {
    for (int64_t t = 0; t < want.shape[1]; ++t) {
      const auto first = ids.begin() + (layer * want.shape[1] + t) * want.shape[2];
      EXPECT_EQ(got.experts[layer][t], std::vector<int32_t>(first, first + want.shape[2]))
          << "MoE layer " << layer << ", token " << t;
    }
  }
}

double relative(const RunResult& a, const RunResult& b) {
  double worst = 0;
  for (size_t t = 0; t < a.logits.size(); ++t) {
    worst = std::max(
        worst, largest_difference(a.logits[t], b.logits[t].data()) / largest(b.logits[t].data(), b.logits[t].size()));
  }
  return worst;
}

class Oracle : public ::testing::TestWithParam<const char*> {
 protected:
  Golden golden_ = testing::read_golden(golden_path("goldens/" + std::string(GetParam()) + ".safetensors"));
  Json config_ = config_of(golden_);
  std::vector<int32_t> tokens_ = golden_.integers("tokens");
};

TEST_P(Oracle, LogitsAndExpertsEqual) {
  for (const ops::Backend backend : {ops::Backend::kReference, ops::Backend::kCpu}) {
#ifdef VAYU_SANITIZED
    if (backend == ops::Backend::kReference) continue;  // a minute of instrumented plain loops
#endif
    SCOPED_TRACE(backend == ops::Backend::kCpu ? "cpu" : "reference");
    const RunResult got = run(config_, tokens_, {.backend = backend});
    EXPECT_LT(worst_error(golden_, got), kTolerance);
    expect_same_experts(golden_, got);
  }
}

// Where transformers has the model itself, or one that computes the same (DeepSeek-V3 for sarvam_mla).
TEST(Transformers, LogitsAndExpertsEqual) {
#ifdef VAYU_SANITIZED
  GTEST_SKIP() << "numbers, not memory: the uninstrumented run has them";
#endif
  for (const char* variant : {"qwen3", "qwen3_moe", "qwen3_moe_unnormalised", "qwen3_moe_dense_layer", "llama_llama3",
                              "llama_yarn", "sarvam_mla_flat"}) {
    SCOPED_TRACE(variant);
    const Golden golden =
        testing::read_golden(golden_path(fmt::format("goldens/{}.transformers.safetensors", variant)));
    const RunResult got = run(config_of(golden), golden.integers("tokens"), {});
    EXPECT_LT(worst_error(golden, got), kTolerance);
    expect_same_experts(golden, got);
  }
}

TEST_P(Oracle, TokenByTokenEqualsPrefill) {
  const RunResult whole = run(config_, tokens_, {});
  const RunResult steps = run(config_, tokens_, {.chunk = 1});
  EXPECT_EQ(relative(steps, whole), 0);
  EXPECT_EQ(steps.experts, whole.experts);
}

TEST_P(Oracle, Bf16IsWithinItsTolerance) {
  if (!golden_.tensors.contains("tokens_bf16")) GTEST_SKIP();
  const RunResult got =
      run(config_, golden_.integers("tokens_bf16"), {.weights = DataFormat::kBF16, .kv = ops::KvFormat::kBF16});
  expect_same_experts(golden_, got, "_bf16");
  const auto positions = golden_.integers("logit_positions_bf16");
  std::vector<double> errors;
  double squares = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    const std::vector<float>& mine = got.logits[positions[i]];
    const float* want = golden_.at("logits_bf16").values.data() + i * mine.size();
    for (size_t v = 0; v < mine.size(); ++v) {
      errors.push_back(std::fabs(double{mine[v]} - want[v]));
      squares += double{want[v]} * want[v];
    }
  }
  const double rms = std::sqrt(squares / static_cast<double>(errors.size()));
  std::sort(errors.begin(), errors.end());
  const double mean = std::accumulate(errors.begin(), errors.end(), 0.0) / static_cast<double>(errors.size());
  EXPECT_LT(mean / rms, kBf16Mean);
  EXPECT_LT(errors[errors.size() * 9 / 10] / rms, kBf16Percentile90);
  EXPECT_GT(mean / rms, 1e-5);  // or it was not bf16
}

// Instrumented code is slow: three variants touch every block and op.
#ifdef VAYU_SANITIZED
constexpr const char* kVariants[] = {"sarvam_moe_experts128", "sarvam_mla_kernel_shape", "qwen3_moe_dense_layer"};
#else
constexpr const char* kVariants[] = {
    "sarvam_moe_base",
    "sarvam_moe_grouped",
    "sarvam_moe_hidden384",
    "sarvam_moe_derived",
    "sarvam_moe_experts128",
    "sarvam_mla_flat",
    "sarvam_mla_grouped",
    "sarvam_mla_explicit_flat",
    "sarvam_mla_rope_type",
    "sarvam_mla_mscale",
    "sarvam_mla_override",
    "sarvam_mla_kernel_shape",
    "qwen3",
    "qwen3_moe",
    "qwen3_moe_unnormalised",
    "qwen3_moe_dense_layer",
    "llama_llama3",
    "llama_yarn",
};
#endif
INSTANTIATE_TEST_SUITE_P(Variants, Oracle, ::testing::ValuesIn(kVariants),
                         [](const auto& info) { return std::string(info.param); });

// The traps of multi-head latent attention and of the router.
class Traps : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef VAYU_SANITIZED
    GTEST_SKIP() << "numbers, not memory: the uninstrumented run has them";
#endif
  }
  static Golden load(const std::string& variant) {
    return testing::read_golden(golden_path("goldens/" + variant + ".safetensors"));
  }
  Golden mla_ = load("sarvam_mla_flat");
  Golden moe_ = load("sarvam_moe_base");
  std::vector<int32_t> tokens_ = mla_.integers("tokens");
  RunResult mla(const RunOptions& options) const { return run(config_of(mla_), tokens_, options); }
  RunResult moe(const RunOptions& options) const { return run(config_of(moe_), moe_.integers("tokens"), options); }
};

TEST_F(Traps, AbsorbedEqualsExpanded) {
  for (const char* variant : {"sarvam_mla_flat", "sarvam_mla_kernel_shape"}) {
    const Golden golden = load(variant);
    const auto tokens = golden.integers("tokens");
    const RunResult absorbed = run(config_of(golden), tokens, {});
    const RunResult expanded = run(config_of(golden), tokens, {.mla = MlaForm::kExpanded});
    EXPECT_LT(worst_error(golden, expanded), kTolerance) << variant;
    EXPECT_LT(relative(absorbed, expanded), kTolerance) << variant;
    EXPECT_EQ(absorbed.experts, expanded.experts) << variant;
    const RunResult stepped = run(config_of(golden), tokens, {.mla = MlaForm::kExpanded, .chunk = 7});
    EXPECT_EQ(relative(stepped, expanded), 0) << variant;
  }
}

TEST_F(Traps, OnlyRelativePositionsMatter) {
  EXPECT_LT(relative(mla({.first_position = 100}), mla({})), 1e-3);
  EXPECT_LT(relative(moe({.first_position = 100}), moe({})), 1e-3);
}

TEST_F(Traps, PairingIsInterleavedForMlaAndHalfSplitForGqa) {
  const auto swap = [](Recipe& recipe) {
    ops::RopePairing& pairing = recipe.config.rope.pairing;
    pairing = pairing == ops::RopePairing::kInterleaved ? ops::RopePairing::kHalfSplit : ops::RopePairing::kInterleaved;
  };
  EXPECT_GT(relative(mla({.change = swap}), mla({})), 0.01);
  EXPECT_GT(relative(moe({.change = swap}), moe({})), 0.01);
}

TEST_F(Traps, SoftmaxScaleHoldsTheSquaredTemperature) {
  EXPECT_NEAR(recipe_from(config_of(mla_)).config.attention_scale, 0.19124944, 1e-7);
  EXPECT_NEAR(recipe_from(config_of(load("sarvam_mla_kernel_shape"))).config.attention_scale, 0.13523378, 1e-7);
  const auto drop = [](Recipe& recipe) { recipe.config.attention_scale = 1 / std::sqrt(96.0f); };
  EXPECT_GT(relative(mla({.change = drop}), mla({})), 0.01);
}

TEST_F(Traps, RopeTypeIsTheSameAsType) {
  Json config = config_of(mla_);
  config["rope_scaling"]["rope_type"] = config["rope_scaling"]["type"];
  config["rope_scaling"].erase("type");
  EXPECT_EQ(relative(run(config, tokens_, {}), mla({})), 0);
}

TEST_F(Traps, AbsentGroupsAreOneGroup) {
  Json config = config_of(mla_);
  config["n_group"] = nullptr;
  config["topk_group"] = nullptr;
  EXPECT_EQ(relative(run(config, tokens_, {}), mla({})), 0);
  config["n_group"] = config["topk_group"] = 1;
  EXPECT_EQ(relative(run(config, tokens_, {}), mla({})), 0);
}

TEST_F(Traps, NormComesBeforeRotation) {
  // All-ones norms would hide the order; those of the variants are 1 + 0.3 N.
  const auto without = [](Recipe& recipe) { recipe.config.qk_norm = false; };
  EXPECT_GT(relative(moe({.change = without}), moe({})), 0.01);
}

}  // namespace
}  // namespace vayu::model
