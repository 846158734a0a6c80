// Whole models on the device: against the PyTorch oracle (tests/golden/oracle) where that was made for BF16, and
// against the CPU's Model on longer prompts, ragged batches, chunks, and captured graphs.
#include "model/device_model.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>

#include "loader/json_config.h"
#include "model/dummy_checkpoint.h"
#include "model/geometries.h"
#include "model/model.h"
#include "model/registry.h"
#include "model/testing/batch_builder.h"
#include "model/testing/golden.h"
#include "model/testing/row_errors.h"
#include "ops/cpu/thread_pool.h"
#include "ops/cuda/cuda_test_util.h"

namespace vayu::model {
namespace {

using ops::TestRandom;
using ops::unless_short;
using testing::golden_path;
using testing::TestSequence;
using Json = nlohmann::json;
using Logits = std::vector<std::vector<float>>;  // (tokens, vocab)

constexpr int32_t kMaxTokens = 512;

struct Variant {
  bool f8 = false;
  ops::DeviceKvFormat kv = ops::DeviceKvFormat::kBF16;
  bool graphs = false;
  bool shared_expert_in_line = false;
  int32_t max_tokens = kMaxTokens;
};

// The shared expert of a step that is watched does not go to a second stream.
class Bystander final : public StepObserver {
 public:
  void begin(StepOperator, int32_t, ops::CudaStream) override {}
  void end(StepOperator, int32_t, ops::CudaStream) override {}
};

Recipe recipe_from(const Json& config) {
  const auto json = loader::JsonConfig::parse(config.dump(), "config.json");
  auto recipe = recipe_of(**json);
  EXPECT_TRUE(recipe.ok()) << recipe.error().message;
  return std::move(*recipe);
}

Json config_named(const std::string& name) {
  return Json::parse(testing::read_whole(golden_path("configs/" + name + ".json")));
}

// Latent attention with no experts behind it, whose choice may change where two scores nearly tie.
Json dense_mla(const std::string& name) {
  Json config = config_named(name);
  config["first_k_dense_replace"] = config.at("num_hidden_layers");
  return config;
}

Json dense_config(const std::string& name) {
  return name.starts_with("sarvam_mla") ? dense_mla(name) : config_named(name);
}

class Runner {
 public:
  Runner(const Json& config, const Variant& setup) {
    Recipe recipe = recipe_from(config);
    vocab_ = recipe.config.vocab_size;
    const auto weights = dummy_checkpoint(recipe, 1234, "dummy");
    DeviceModelOptions options;
    options.f8_weights = setup.f8;
    options.kv_format = setup.kv;
    options.observer = setup.shared_expert_in_line ? &bystander_ : nullptr;
    options.num_pages = 256;
    options.max_step_tokens = setup.max_tokens;
    options.max_rows = 32;
    options.max_logits = kMaxTokens;
    options.max_context = std::min(recipe.config.max_context, 4096);
    auto model = DeviceModel::load(std::move(recipe), *weights, options);
    EXPECT_TRUE(model.ok()) << model.error().message;
    model_ = std::move(*model);
    stream_ = ops::create_stream().value();
    if (setup.graphs) {
      const Status captured = model_->capture_graphs(stream_);
      EXPECT_TRUE(captured.ok()) << captured.error().message;
    }
  }
  ~Runner() { ops::destroy_stream(stream_); }

  Logits step(const Batch& batch) {
    const Status launched = model_->launch(batch, stream_);
    EXPECT_TRUE(launched.ok()) << launched.error().message;
    std::vector<float> all(batch.num_logits() * int64_t{vocab_});
    EXPECT_TRUE(
        ops::copy_to_host(all.data(), model_->logits(), static_cast<int64_t>(all.size() * sizeof(float)), stream_)
            .ok());
    const Status landed = ops::synchronize(stream_);
    EXPECT_TRUE(landed.ok()) << landed.error().message;
    Logits rows;
    for (int32_t i = 0; i < batch.num_logits(); ++i)
      rows.emplace_back(&all[i * int64_t{vocab_}], &all[(i + 1) * int64_t{vocab_}]);
    return rows;
  }

  // Time of a step, and of the same as part of a graph, in us.
  double time(const Batch& batch) {
    return ops::median_us([&](ops::CudaStream stream) { EXPECT_TRUE(model_->launch(batch, stream).ok()); }).value();
  }
  double time_captured(const Batch& batch) {
    const auto call = [&](ops::CudaStream stream, int) { EXPECT_TRUE(model_->launch(batch, stream).ok()); };
    return ops::chained_us(call, 2, 2).value();
  }
  // How many operations of a captured step are followed by two that may run side by side. Two edges alone do not make a
  // fork: what begins on the second stream waits for the end of what was there before, too, which the first stream has
  // waited for long ago.
  int forks(const Batch& batch) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_TRUE(model_->launch(batch, stream_).ok());
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    size_t count = 0;
    EXPECT_EQ(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count), cudaSuccess);
    std::vector<cudaGraphNode_t> from(count), to(count);
    std::vector<cudaGraphEdgeData> data(count);
    EXPECT_EQ(cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &count), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    std::map<cudaGraphNode_t, std::vector<cudaGraphNode_t>> followers;
    for (size_t i = 0; i < count; ++i) followers[from[i]].push_back(to[i]);
    const auto leads_to = [&](cudaGraphNode_t first, cudaGraphNode_t second) {
      std::set<cudaGraphNode_t> seen;
      std::vector<cudaGraphNode_t> open = {first};
      while (!open.empty()) {
        const cudaGraphNode_t node = open.back();
        open.pop_back();
        if (node == second) return true;
        if (seen.insert(node).second) open.insert(open.end(), followers[node].begin(), followers[node].end());
      }
      return false;
    };
    int forks = 0;
    for (const auto& [node, next] : std::map(followers)) {
      bool apart = false;
      for (const cudaGraphNode_t a : next) {
        for (const cudaGraphNode_t b : next) apart |= !leads_to(a, b) && !leads_to(b, a);
      }
      forks += apart;
    }
    return forks;
  }
  std::vector<float> logits(int32_t rows) const {
    std::vector<float> all(rows * int64_t{vocab_});
    const auto bytes = static_cast<int64_t>(all.size() * sizeof(float));
    EXPECT_TRUE(ops::copy_to_host(all.data(), model_->logits(), bytes, stream_).ok());
    EXPECT_TRUE(ops::synchronize(stream_).ok());
    return all;
  }

  // All logits of a prompt, `chunk` tokens a step.
  Logits run(const std::vector<int32_t>& tokens, int32_t chunk) {
    TestSequence sequence{tokens, std::vector<PageId>(tokens.size() / kDevicePageSize + 1), 0};
    std::iota(sequence.pages.rbegin(), sequence.pages.rend(), 3);
    Logits all;
    while (sequence.computed < static_cast<int32_t>(tokens.size())) {
      Batch batch;
      append_row(batch, sequence, std::min(chunk, static_cast<int32_t>(tokens.size()) - sequence.computed),
                 kDevicePageSize, true);
      for (auto& row : step(batch)) all.push_back(std::move(row));
    }
    return all;
  }

 private:
  int32_t vocab_ = 0;
  Bystander bystander_;
  std::unique_ptr<DeviceModel> model_;
  ops::CudaStream stream_ = nullptr;
};

Logits run_cpu(const Json& config, const std::vector<int32_t>& tokens) {
  static ThreadPool pool(0);
  Recipe recipe = recipe_from(config);
  const auto weights = dummy_checkpoint(recipe, 1234, "dummy");
  ModelLoadOptions load;
  load.ops = {ops::Backend::kCpu, &pool};
  load.kv_format = ops::KvFormat::kBF16;
  load.weight_format = DataFormat::kBF16;
  load.num_pages = 256;
  load.max_step_tokens = load.max_rows = load.max_logits = kMaxTokens;
  load.max_context = std::min(recipe.config.max_context, 2048);
  const int64_t vocab = recipe.config.vocab_size;
  auto model = Model::load(std::move(recipe), *weights, load);
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

struct Errors {
  double mean = 0;  // of |a - b|, over the rms of b
  double percentile90 = 0;
};

Errors compare(const Logits& a, const Logits& b) {
  std::vector<double> errors;
  double squares = 0;
  for (size_t t = 0; t < b.size(); ++t) {
    for (size_t v = 0; v < b[t].size(); ++v) {
      const double error = std::fabs(double{a[t][v]} - b[t][v]);
      errors.push_back(std::isfinite(error) ? error : 1e30);
      squares += double{b[t][v]} * b[t][v];
    }
  }
  const double rms = std::sqrt(squares / static_cast<double>(errors.size()));
  std::sort(errors.begin(), errors.end());
  return {std::accumulate(errors.begin(), errors.end(), 0.0) / static_cast<double>(errors.size()) / rms,
          errors[errors.size() * 9 / 10] / rms};
}

std::vector<int32_t> random_tokens(TestRandom& random, int64_t count, int32_t vocab) {
  std::vector<int32_t> tokens(count);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random.integer(0, vocab - 1));
  return tokens;
}

// Activations are rounded to BF16 between the fused operations, which the oracle does not do.
constexpr double kBf16Mean = 0.03, kBf16Percentile90 = 0.08;
// Of FP8 against BF16: 3 bits of mantissa on both sides of every product.
constexpr double kF8Mean = 0.15, kF8Percentile90 = 0.35;

constexpr const char* kVariants[] = {"sarvam_moe_base",
                                     "sarvam_moe_grouped",
                                     "sarvam_moe_hidden384",
                                     "sarvam_moe_experts128",
                                     "qwen3",
                                     "qwen3_moe",
                                     "qwen3_moe_dense_layer",
                                     "llama_llama3",
                                     "llama_yarn",
                                     "sarvam_mla_flat",
                                     "sarvam_mla_grouped",
                                     "sarvam_mla_kernel_shape",
                                     "sarvam_mla_mscale"};

// Tests of one variant each, which run side by side.
using OneVariant = ::testing::TestWithParam<const char*>;
std::string variant_name(const ::testing::TestParamInfo<const char*>& info) { return info.param; }

class Oracle : public OneVariant {};
INSTANTIATE_TEST_SUITE_P(DeviceModelCuda, Oracle, ::testing::ValuesIn(kVariants), variant_name);

TEST_P(Oracle, IsMatchedInBf16) {
  VAYU_NEEDS_DEVICE();
  const auto golden = testing::read_golden(golden_path(std::string("goldens/") + GetParam() + ".safetensors"));
  Runner runner(Json::parse(testing::read_whole(golden_path(golden.metadata.at("config")))), {});
  const Logits got = runner.run(golden.integers("tokens_bf16"), kMaxTokens);
  Logits mine, want;
  const auto positions = golden.integers("logit_positions_bf16");
  for (size_t i = 0; i < positions.size(); ++i) {
    mine.push_back(got[positions[i]]);
    const float* row = golden.at("logits_bf16").values.data() + i * mine.back().size();
    want.emplace_back(row, row + mine.back().size());
  }
  const Errors errors = compare(mine, want);
  std::printf("MODEL %s bf16 against the oracle: mean %.4f p90 %.4f\n", GetParam(), errors.mean, errors.percentile90);
  EXPECT_LT(errors.mean, kBf16Mean);
  EXPECT_LT(errors.percentile90, kBf16Percentile90);
  EXPECT_GT(errors.mean, 1e-5);
}

// Under a sanitizer a step takes a third of a second, whatever its size: token by token only the first ones.
Logits run_in_chunks(Runner& runner, std::vector<int32_t> tokens, int32_t chunk) {
  if (chunk == 1) tokens.resize(unless_short<size_t>(tokens.size(), 20));
  return runner.run(tokens, chunk);
}

// Prompts long enough for the tiled kernels; whole, in chunks of many sizes and token by token, with and without
// graphs.
class DenseModels : public OneVariant {};
INSTANTIATE_TEST_SUITE_P(DeviceModelCuda, DenseModels,
                         ::testing::Values("qwen3", "llama_llama3", "sarvam_mla_flat", "sarvam_mla_kernel_shape"),
                         variant_name);

TEST_P(DenseModels, AreTheCpusHoweverTheyAreCut) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const Json config = dense_config(GetParam());
  const auto tokens = random_tokens(random, 300, config.at("vocab_size"));
  const Logits want = run_cpu(config, tokens);
  for (const Variant& setup :
       {Variant{}, Variant{.graphs = true}, Variant{.f8 = true, .kv = ops::DeviceKvFormat::kF8E4M3}}) {
    Runner runner(config, setup);
    for (const int32_t chunk : {512, 100, 33, 1}) {
      const Logits got = run_in_chunks(runner, tokens, chunk);
      const Errors errors = compare(got, {want.begin(), want.begin() + static_cast<int64_t>(got.size())});
      std::printf("MODEL %s %s chunk %d: mean %.4f p90 %.4f\n", GetParam(), setup.f8 ? "f8" : "bf16", chunk,
                  errors.mean, errors.percentile90);
      EXPECT_LT(errors.mean, setup.f8 ? kF8Mean : kBf16Mean) << chunk;
      EXPECT_LT(errors.percentile90, setup.f8 ? kF8Percentile90 : kBf16Percentile90) << chunk;
    }
  }
}

// Where two scores of a router nearly tie, another expert may be taken, which moves the row and, through its keys, rows
// behind it. Of the CPU's own models, with noise on their weights that moves a dense model as BF16 or FP8 does, the
// rows' errors are then (40 prompts of each model, the largest of all):
//   median 0.03 and 0.17, 90th percentile 0.12 and 0.27, worst row 0.59 and 0.58
// so at most a tenth of the rows may be beyond these bounds, which are a third or more above that, and none further
// than a row of something else (row_errors.h).
struct ExpertBounds {
  double median, percentile90, worst;
};
constexpr ExpertBounds kBf16Experts{0.04, 0.2, 0.9}, kF8Experts{0.25, 0.4, 0.9};

class Experts : public OneVariant {};
INSTANTIATE_TEST_SUITE_P(DeviceModelCuda, Experts,
                         ::testing::Values("sarvam_moe_base", "sarvam_moe_experts128", "sarvam_mla_flat"),
                         variant_name);

TEST_P(Experts, AgreeWithTheCpus) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const Json config = config_named(GetParam());
  const auto tokens = random_tokens(random, 300, config.at("vocab_size"));
  const Logits want = run_cpu(config, tokens);
  for (const Variant& setup : {Variant{.graphs = true}, Variant{.f8 = true, .graphs = true}}) {
    const ExpertBounds& bounds = setup.f8 ? kF8Experts : kBf16Experts;
    Runner runner(config, setup);
    for (const int32_t chunk : {300, 64, 1}) {
      const Logits got = run_in_chunks(runner, tokens, chunk);
      const testing::RowErrors errors = testing::row_errors(got, want);
      std::printf("MODEL %s %s chunk %d: median row %.4f p90 %.4f worst %.4f\n", GetParam(), setup.f8 ? "f8" : "bf16",
                  chunk, errors.median, errors.percentile90, errors.worst);
      EXPECT_EQ(errors.not_finite, 0) << chunk;
      EXPECT_LT(errors.median, bounds.median) << chunk;
      EXPECT_LT(errors.worst, bounds.worst) << chunk;
      if (got.size() < tokens.size()) continue;  // 20 rows
      EXPECT_LT(errors.percentile90, bounds.percentile90) << chunk;
    }
  }
}

// Decodes, chunks and whole prompts in one batch give what each gives alone.
void expect_rows_apart(TestRandom& random, const Json& config) {
  Runner runner(config, {.graphs = true});
  const int32_t vocab = config.at("vocab_size");
  std::vector<TestSequence> sequences;
  std::vector<Logits> alone;
  PageId next_page = 60;
  for (const int32_t length : {40, 1, 17, 130, 65}) {
    TestSequence s{random_tokens(random, length, vocab), {}, 0};
    alone.push_back(runner.run(s.tokens, kMaxTokens));
    for (int32_t i = 0; i <= length / kDevicePageSize; ++i) s.pages.push_back(next_page++);
    sequences.push_back(std::move(s));
  }
  std::vector<Logits> together(sequences.size());
  while (true) {
    Batch batch;
    std::vector<std::pair<size_t, int32_t>> rows;
    for (size_t i = 0; i < sequences.size(); ++i) {
      TestSequence& s = sequences[i];
      const auto left = static_cast<int64_t>(s.tokens.size()) - s.computed;
      if (left == 0) continue;
      const auto count =
          static_cast<int32_t>(random.uniform() < 0.5 ? 1 : random.integer(1, std::min<int64_t>(left, 60)));
      append_row(batch, s, count, kDevicePageSize, true);
      rows.emplace_back(i, count);
    }
    if (rows.empty()) break;
    const Logits got = runner.step(batch);
    size_t at = 0;
    for (const auto& [sequence, count] : rows) {
      for (int32_t i = 0; i < count; ++i) together[sequence].push_back(got[at++]);
    }
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Errors errors = compare(together[i], alone[i]);
    EXPECT_LT(errors.mean, kBf16Mean) << i;
    EXPECT_LT(errors.percentile90, kBf16Percentile90) << i;
  }
}

TEST(DeviceModelCuda, MixedBatchesKeepRowsApart) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const char* variant : {"qwen3", "sarvam_mla_flat"}) {
    SCOPED_TRACE(variant);
    expect_rows_apart(random, dense_config(variant));
  }
}

// A prompt from its first token on.
Batch prompt_batch(const std::vector<int32_t>& tokens, bool all_logits) {
  TestSequence sequence{tokens, std::vector<PageId>(tokens.size() / kDevicePageSize + 1), 0};
  std::iota(sequence.pages.rbegin(), sequence.pages.rend(), 3);
  Batch batch;
  append_row(batch, sequence, static_cast<int32_t>(tokens.size()), kDevicePageSize, all_logits);
  return batch;
}

// Both streams run the same kernels over the same numbers.
class SharedExpert : public OneVariant {};
INSTANTIATE_TEST_SUITE_P(DeviceModelCuda, SharedExpert,
                         ::testing::Values("sarvam_moe_base", "sarvam_moe_experts128", "sarvam_mla_flat"),
                         variant_name);

TEST_P(SharedExpert, OnASecondStreamIsTheOneInLine) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const Json config = config_named(GetParam());
  const auto tokens = random_tokens(random, 500, config.at("vocab_size"));
  for (const bool f8 : {false, true}) {
    Variant setup{.f8 = f8};
    SCOPED_TRACE(::testing::Message() << "f8 " << f8);
    setup.shared_expert_in_line = true;
    Runner in_line(config, setup);
    setup.shared_expert_in_line = false;
    Runner runner(config, setup);
    const Logits want = in_line.run(tokens, kMaxTokens), want_chunks = in_line.run(tokens, 170);
    for (int i = 0; i < unless_short(3, 1); ++i) {
      ASSERT_EQ(runner.run(tokens, kMaxTokens), want);
      ASSERT_EQ(runner.run(tokens, 170), want_chunks);
    }
  }
}

// The fork and the join become edges of a captured graph.
TEST(DeviceModelCuda, SharedExpertOnASecondStreamCanBeCaptured) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const Json config = config_named("sarvam_moe_base");
  const auto tokens = random_tokens(random, 400, config.at("vocab_size"));
  const Batch batch = prompt_batch(tokens, true);
  Runner in_line(config, {.f8 = true, .shared_expert_in_line = true}), runner(config, {.f8 = true});
  in_line.step(batch);
  EXPECT_EQ(in_line.forks(batch), 0);
  const int moe_layers = config.at("num_hidden_layers").get<int>() - config.at("first_k_dense_replace").get<int>();
  EXPECT_GT(runner.time_captured(batch), 0);
  EXPECT_EQ(runner.forks(batch), moe_layers);
  EXPECT_EQ(runner.forks(prompt_batch({tokens.begin(), tokens.begin() + 128}, true)), 0) << "experts are streamed";
  EXPECT_EQ(runner.logits(batch.num_logits()), in_line.logits(batch.num_logits()));
}

// Prompts through a dense and three MoE layers of sarvam-30b.
TEST(DeviceModelCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (std::getenv("VAYU_SPEED") == nullptr) GTEST_SKIP() << "VAYU_SPEED is not set";
  TestRandom random;
  Json config = Json::parse(find_geometry("sarvam-30b")->config_json);
  config["num_hidden_layers"] = 4;
  config["vocab_size"] = 8192;
  std::vector<Batch> batches;
  for (const int32_t count : {3584, 1024}) batches.push_back(prompt_batch(random_tokens(random, count, 8192), false));
  Variant setup{.f8 = true, .kv = ops::DeviceKvFormat::kF8E4M3, .max_tokens = 4096};
  std::vector<std::vector<float>> want;
  for (const bool in_line : {true, false}) {
    setup.shared_expert_in_line = in_line;
    Runner runner(config, setup);
    for (size_t i = 0; i < batches.size(); ++i) {
      const double us = runner.time(batches[i]), again = runner.time(batches[i]);
      std::printf("SPEED device_model sarvam-30b 1+3 layers, %d tokens, shared expert %s: %.1f us, again %.1f us\n",
                  batches[i].num_tokens(), in_line ? "in line" : "beside", us, again);
      if (in_line) want.push_back(runner.logits(1));
      EXPECT_EQ(runner.logits(1), want[i]);
    }
  }
}

TEST(DeviceModelCuda, RefusesWhatDoesNotFit) {
  VAYU_NEEDS_DEVICE();
  Recipe recipe = recipe_from(config_named("qwen3"));
  const auto weights = dummy_checkpoint(recipe, 1, "dummy");
  DeviceModelOptions options;
  options.memory_fraction = 1e-6;
  const auto model = DeviceModel::load(std::move(recipe), *weights, options);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().kind, ErrorKind::kResourceExhausted);
  EXPECT_NE(model.error().message.find("GiB free"), std::string::npos) << model.error().message;

  Recipe expanded = recipe_from(config_named("sarvam_mla_flat"));
  expanded.config.mla.form = MlaForm::kExpanded;
  const auto expanded_weights = dummy_checkpoint(expanded, 1, "dummy");
  const auto refused = DeviceModel::load(std::move(expanded), *expanded_weights, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(refused.error().message.find("absorbed"), std::string::npos) << refused.error().message;

  Json ragged = config_named("sarvam_mla_flat");
  ragged["v_head_dim"] = 72;
  Recipe odd = recipe_from(ragged);
  const auto odd_weights = dummy_checkpoint(odd, 1, "dummy");
  const auto no_kernel = DeviceModel::load(std::move(odd), *odd_weights, {});
  ASSERT_FALSE(no_kernel.ok());
  EXPECT_EQ(no_kernel.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(no_kernel.error().message.find("v_head_dim is 72"), std::string::npos) << no_kernel.error().message;
}

}  // namespace
}  // namespace vayu::model
