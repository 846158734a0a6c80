// Models whose linears are held in different formats: against the CPU's model of the same checkpoint, and, where two
// ways to the same weights meet, bit for bit against each other.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "loader/fp8_scales.h"
#include "loader/json_config.h"
#include "model/device_formats.h"
#include "model/device_model.h"
#include "model/dummy_checkpoint.h"
#include "model/model.h"
#include "model/registry.h"
#include "model/testing/batch_builder.h"
#include "model/testing/f8_checkpoint.h"
#include "model/testing/golden.h"
#include "model/testing/row_errors.h"
#include "ops/cpu/thread_pool.h"
#include "ops/cuda/cuda_test_util.h"

namespace vayu::model {
namespace {

using loader::CheckpointTensor;
using ops::TestRandom;
using ops::unless_short;
using testing::F8Checkpoint;
using testing::Recast;
using testing::recast_f8;
using testing::TestSequence;
using Json = nlohmann::json;
using Logits = std::vector<std::vector<float>>;  // (tokens, vocab)
using Scales = Recast::Scales;

constexpr int32_t kMaxTokens = 512;

Json config_named(const std::string& name, int32_t layers) {
  Json config = Json::parse(testing::read_whole(testing::golden_path("configs/" + name + ".json")));
  config["num_hidden_layers"] = layers;
  return config;
}

Recipe recipe_from(const Json& config) {
  const auto json = loader::JsonConfig::parse(config.dump(), "config.json");
  auto recipe = recipe_of(**json);
  EXPECT_TRUE(recipe.ok()) << recipe.error().message;
  return std::move(*recipe);
}

bool has(const CheckpointTensor& tensor, std::string_view part) { return tensor.name.find(part) != std::string::npos; }

F8Checkpoint::Choice all_f8(Scales scales) {
  return [scales](const CheckpointTensor&) { return recast_f8(scales); };
}

class Device {
 public:
  Device(const Json& config, const loader::Checkpoint& checkpoint, DeviceModelOptions options, bool graphs = false) {
    Recipe recipe = recipe_from(config);
    vocab_ = recipe.config.vocab_size;
    options.num_pages = 256;
    options.max_step_tokens = options.max_logits = kMaxTokens;
    options.max_rows = 32;
    options.max_context = 2048;
    auto model = DeviceModel::load(std::move(recipe), checkpoint, options);
    EXPECT_TRUE(model.ok()) << model.error().message;
    model_ = std::move(*model);
    stream_ = ops::create_stream().value();
    if (!graphs) return;
    EXPECT_TRUE(model_->capture_graphs(stream_).ok());
  }
  ~Device() { ops::destroy_stream(stream_); }

  // A sequence in chunks of at most `chunk` tokens.
  Logits run(const std::vector<int32_t>& tokens, int32_t chunk) {
    TestSequence sequence{tokens, std::vector<PageId>(tokens.size() / kDevicePageSize + 1), 0};
    std::iota(sequence.pages.rbegin(), sequence.pages.rend(), 3);
    Logits all;
    while (sequence.computed < static_cast<int32_t>(tokens.size())) {
      Batch batch;
      append_row(batch, sequence, std::min(chunk, static_cast<int32_t>(tokens.size()) - sequence.computed),
                 kDevicePageSize, true);
      step(batch, all);
    }
    return all;
  }
  const DeviceMemoryPlan& memory() const { return model_->memory(); }

 private:
  void step(const Batch& batch, Logits& all) {
    EXPECT_TRUE(model_->launch(batch, stream_).ok());
    std::vector<float> logits(batch.num_logits() * int64_t{vocab_});
    const auto bytes = static_cast<int64_t>(logits.size() * sizeof(float));
    EXPECT_TRUE(ops::copy_to_host(logits.data(), model_->logits(), bytes, stream_).ok());
    const Status landed = ops::synchronize(stream_);
    EXPECT_TRUE(landed.ok()) << landed.error().message;
    for (int64_t i = 0; i < batch.num_logits(); ++i) all.emplace_back(&logits[i * vocab_], &logits[(i + 1) * vocab_]);
  }

  int32_t vocab_ = 0;
  std::unique_ptr<DeviceModel> model_;
  ops::CudaStream stream_ = nullptr;
};

Logits run_cpu(const Json& config, const loader::Checkpoint& checkpoint, const std::vector<int32_t>& tokens) {
  static ThreadPool pool(0);
  Recipe recipe = recipe_from(config);
  const int64_t vocab = recipe.config.vocab_size;
  ModelLoadOptions load;
  load.ops = {ops::Backend::kCpu, &pool};
  load.kv_format = ops::KvFormat::kBF16;
  load.weight_format = DataFormat::kBF16;
  load.num_pages = 256;
  load.max_step_tokens = load.max_rows = load.max_logits = kMaxTokens;
  load.max_context = 2048;
  auto model = Model::load(std::move(recipe), checkpoint, load);
  EXPECT_TRUE(model.ok()) << model.error().message;
  TestSequence sequence{tokens, std::vector<PageId>(tokens.size() / kDevicePageSize + 1), 0};
  std::iota(sequence.pages.begin(), sequence.pages.end(), 0);
  Batch batch;
  append_row(batch, sequence, static_cast<int32_t>(tokens.size()), kDevicePageSize, true);
  std::vector<float> all(tokens.size() * vocab);
  (*model)->forward(batch, all.data());
  Logits rows;
  for (size_t i = 0; i < tokens.size(); ++i) rows.emplace_back(&all[i * vocab], &all[(i + 1) * vocab]);
  return rows;
}

std::vector<int32_t> random_tokens(TestRandom& random, int64_t count, int32_t vocab) {
  std::vector<int32_t> tokens(count);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random.integer(0, vocab - 1));
  return tokens;
}

// Activations in FP8 against the CPU's in float; the weights are the same. Rows of a dense model differ by a third
// either way; where a router's scores nearly tie another expert moves whole rows (Experts in
// device_model_cuda_test.cc).
struct RowBounds {
  double median, percentile90, worst;
};
constexpr RowBounds kF8Dense{0.15, 0.2, 0.3}, kF8Moe{0.3, 0.4, 0.9};

// A prompt in tiles, chunks that stream weights, and tokens one by one, from graphs.
void expect_cpus_logits(const Json& config, const loader::Checkpoint& checkpoint, const DeviceModelOptions& options,
                        const std::string& name) {
  TestRandom random;
  const auto tokens = random_tokens(random, unless_short(200, 80), config.at("vocab_size"));
  const Logits want = run_cpu(config, checkpoint, tokens);
  Device device(config, checkpoint, options, !ops::short_tests());
  const bool moe = config.contains("num_experts") && !config.at("num_experts").is_null();
  const RowBounds& bounds = moe ? kF8Moe : kF8Dense;
  for (const int32_t chunk : {200, 40, 1}) {
    const auto count = static_cast<int64_t>(chunk == 1 ? unless_short(40, 8) : tokens.size());
    const Logits got = device.run({tokens.begin(), tokens.begin() + count}, chunk);
    const testing::RowErrors errors = testing::row_errors(got, want);
    std::printf("MODEL formats %s chunk %d: median row %.4f p90 %.4f worst %.4f\n", name.c_str(), chunk, errors.median,
                errors.percentile90, errors.worst);
    SCOPED_TRACE(name + ", chunk " + std::to_string(chunk));
    EXPECT_EQ(errors.not_finite, 0);
    EXPECT_LT(errors.median, bounds.median);
    EXPECT_LT(errors.worst, bounds.worst);
    EXPECT_GT(errors.median, 1e-5);
    if (got.size() < 40) continue;
    EXPECT_LT(errors.percentile90, bounds.percentile90);
  }
}

struct Mix {
  const char* name;
  F8Checkpoint::Choice choose;
};

// Each linear once against the others, in both directions; and every layer another way.
std::vector<Mix> mixes() {
  const auto f8_if = [](std::function<bool(const CheckpointTensor&)> wanted) -> F8Checkpoint::Choice {
    return [wanted](const CheckpointTensor& t) { return wanted(t) ? recast_f8(Scales::kRow) : Recast{}; };
  };
  const auto with = [&](std::string part) { return f8_if([part](const auto& t) { return has(t, part); }); };
  const auto without = [&](std::string part) { return f8_if([part](const auto& t) { return !has(t, part); }); };
  return {{"attention", f8_if([](const auto& t) { return has(t, "attn") || has(t, "attention"); })},
          {"mlp", with("mlp")},
          {"down", with("down_proj")},
          {"no down", without("down_proj")},
          {"no output", f8_if([](const auto& t) { return !has(t, "o_proj") && !has(t, "dense"); })},
          {"output", f8_if([](const auto& t) { return has(t, "o_proj") || has(t, ".dense"); })},
          {"head", with("lm_head")},
          {"no shared", without("shared")},
          {"shared", with("shared")},
          {"layer 1", with("layers.1.")},
          {"not layer 1", without("layers.1.")},
          {"tensors", all_f8(Scales::kTensor)},
          {"blocks", all_f8(Scales::kBlock)},
          {"blocks and rows", [](const CheckpointTensor& t) {
             return recast_f8(has(t, "layers.1.") || has(t, "down") ? Scales::kBlock : Scales::kRow);
           }}};
}

class MixedFormats : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(DeviceModelFormatsCuda, MixedFormats,
                         ::testing::Values("qwen3", "llama_llama3", "sarvam_moe_base", "sarvam_mla_flat"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(MixedFormats, AgreeWithTheCpus) {
  VAYU_NEEDS_DEVICE();
  const Json config = config_named(GetParam(), 3);
  const auto source = dummy_checkpoint(recipe_from(config), 1234, "dummy");
  size_t index = 0;
  for (const Mix& mix : mixes()) {
    const auto is_f8 = [&](const CheckpointTensor& t) {
      return t.shape.size() > 1 && mix.choose(t).format == DataFormat::kF8E4M3;
    };
    if (std::none_of(source->tensors().begin(), source->tensors().end(), is_f8)) continue;  // a linear it does not have
    if (unless_short(false, index++ % 5 != 0)) continue;
    expect_cpus_logits(config, F8Checkpoint(*source, mix.choose), {.f8_weights = false},
                       std::string(GetParam()) + ", " + mix.name);
  }
}

// Codes kept as they are stored give the logits of the model that --quantization fp8 makes of their values: the search
// finds the same codes and scales again (testing/f8_checkpoint.h).
class SameWeights : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(DeviceModelFormatsCuda, SameWeights,
                         ::testing::Values("qwen3", "sarvam_moe_base", "sarvam_mla_flat"),
                         [](const auto& info) { return std::string(info.param); });

void expect_equal_logits(const Json& config, Device& a, Device& b) {
  TestRandom random;
  const auto tokens = random_tokens(random, 150, config.at("vocab_size"));
  for (const int32_t chunk : unless_short({150, 60}, {60}))
    EXPECT_EQ(a.run(tokens, chunk), b.run(tokens, chunk)) << chunk;
  const std::vector<int32_t> few(tokens.begin(), tokens.begin() + unless_short(6, 2));
  EXPECT_EQ(a.run(few, 1), b.run(few, 1));
}

TEST_P(SameWeights, KeptAndQuantisedAreOne) {
  VAYU_NEEDS_DEVICE();
  const Json config = config_named(GetParam(), 2);
  const auto source = dummy_checkpoint(recipe_from(config), 1234, "dummy");
  const F8Checkpoint stored(*source, all_f8(Scales::kRow)), values(*source, all_f8(Scales::kRow), true);
  Device kept(config, stored, {.f8_weights = false}), quantised(config, values, {.f8_weights = true});
  expect_equal_logits(config, kept, quantised);
  Device flag_changes_nothing(config, stored, {.f8_weights = true});
  expect_equal_logits(config, kept, flag_changes_nothing);
}

TEST_P(SameWeights, WidenedIsTheBf16Model) {
  VAYU_NEEDS_DEVICE();
  const Json config = config_named(GetParam(), 2);
  const auto source = dummy_checkpoint(recipe_from(config), 1234, "dummy");
  const F8Checkpoint stored(*source, all_f8(Scales::kBlock)), values(*source, all_f8(Scales::kBlock), true);
  Device bf16(config, values, {.f8_weights = false});
  Device widened(config, stored, {.f8_weights = false, .widen_f8 = true});
  expect_equal_logits(config, bf16, widened);
  Device ignored(config, values, {.f8_weights = true, .quantization_ignore = {"*"}});
  expect_equal_logits(config, bf16, ignored);
}

TEST(DeviceModelFormatsCuda, IgnoredLinearsRunInBf16) {
  VAYU_NEEDS_DEVICE();
  for (const char* name : {"qwen3", "sarvam_moe_base"}) {
    const Json config = config_named(name, 3);
    const auto source = dummy_checkpoint(recipe_from(config), 1234, "dummy");
    const F8Checkpoint checkpoint(*source, [](const CheckpointTensor&) { return Recast{}; });
    expect_cpus_logits(config, checkpoint, {.f8_weights = true, .quantization_ignore = {"*.down_proj", "*layers.0.*"}},
                       std::string(name) + ", two patterns");
  }
}

// The plan says beforehand what loading takes.
TEST(DeviceModelFormatsCuda, PlannedBytesAreTheBytes) {
  VAYU_NEEDS_DEVICE();
  const Json config = config_named("sarvam_moe_base", 2);
  const Recipe recipe = recipe_from(config);
  const auto source = dummy_checkpoint(recipe, 1234, "dummy");
  for (const Mix& mix : mixes()) {
    const F8Checkpoint checkpoint(*source, mix.choose);
    const DeviceModelOptions options{.f8_weights = false};
    const auto planned = DeviceFormats::plan(checkpoint, recipe, options);
    ASSERT_TRUE(planned.ok());
    const Device device(config, checkpoint, options);
    const auto taken = static_cast<double>(device.memory().weights);
    EXPECT_NEAR(taken, static_cast<double>(planned->weight_bytes()), taken * 0.02) << mix.name;
  }
}

}  // namespace
}  // namespace vayu::model
