// What a model takes of the device's memory, on a device that others have filled.
#include <numeric>

#include "loader/json_config.h"
#include "model/device_model.h"
#include "model/dummy_checkpoint.h"
#include "model/registry.h"
#include "model/testing/batch_builder.h"
#include "model/testing/golden.h"
#include "ops/cuda/whole_device.h"

namespace vayu::model {
namespace {

using ops::Ballast;
using testing::TestSequence;

constexpr int64_t kMiB = 1 << 20;
constexpr int32_t kRows = 256, kContext = 4096, kPrompt = 300;

// As many pages as are of use are 2.3 GiB.
DeviceModelOptions tiny_options() {
  return {.f8_weights = false, .max_step_tokens = 512, .max_rows = kRows, .max_logits = 64, .max_context = kContext};
}

Result<std::unique_ptr<DeviceModel>> load(const DeviceModelOptions& options) {
  const auto json =
      loader::JsonConfig::parse(testing::read_whole(testing::golden_path("configs/qwen3.json")), "config.json");
  Recipe recipe = std::move(recipe_of(**json)).value();
  const auto weights = dummy_checkpoint(recipe, 1234, "dummy");
  return DeviceModel::load(std::move(recipe), *weights, options);
}

class Model {
 public:
  explicit Model(const DeviceModelOptions& options) {
    auto loaded = load(options);
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    model_ = std::move(*loaded);
    stream_ = ops::create_stream().value();
    const Status captured = model_->capture_graphs(stream_);
    EXPECT_TRUE(captured.ok()) << captured.error().message;
  }
  ~Model() { ops::destroy_stream(stream_); }

  const DeviceMemoryPlan& memory() const { return model_->memory(); }
  int32_t pages() const { return model_->options().num_pages; }

  // A prompt kernel by kernel, then two tokens from graphs: logits of the last one each.
  std::vector<float> run() {
    std::vector<int32_t> tokens(kPrompt + 2);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 37 % model_->config().vocab_size);
    TestSequence sequence{tokens, std::vector<PageId>(tokens.size() / kDevicePageSize + 1), 0};
    std::iota(sequence.pages.rbegin(), sequence.pages.rend(), 5);
    std::vector<float> all;
    for (const int32_t count : {kPrompt, 1, 1}) {
      Batch batch;
      append_row(batch, sequence, count, kDevicePageSize, false);
      EXPECT_TRUE(model_->launch(batch, stream_).ok());
      std::vector<float> logits(model_->config().vocab_size);
      const auto bytes = static_cast<int64_t>(logits.size() * sizeof(float));
      EXPECT_TRUE(ops::copy_to_host(logits.data(), model_->logits(), bytes, stream_).ok());
      const Status landed = ops::synchronize(stream_);
      EXPECT_TRUE(landed.ok()) << (landed.ok() ? "" : landed.error().message);
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }

 private:
  std::unique_ptr<DeviceModel> model_;
  ops::CudaStream stream_ = nullptr;
};

void expect_complete(const DeviceMemoryPlan& m) {
  std::printf("MEMORY weights %ld KV %ld workspace %ld graphs %ld other %ld free %ld of %ld MiB\n", m.weights / kMiB,
              m.kv_pages / kMiB, m.workspace / kMiB, m.graphs / kMiB, m.other / kMiB, m.free / kMiB, m.total / kMiB);
  EXPECT_EQ(m.weights + m.kv_pages + m.workspace + m.graphs + m.other + m.free, m.total);
  EXPECT_EQ(m.free, ops::free_device_bytes().value());
  EXPECT_GE(m.graphs, 0);
  EXPECT_GE(m.other, 0);
}

// 12 graphs (up to 64 rows, one context) of 3 layers.
int64_t reserve_of_tiny() { return DeviceMemoryNeeds{.num_layers = 3, .num_graphs = 12}.reserve(); }

TEST(DeviceMemoryAlone, AModelTakesThePagesThatFit) {
  VAYU_NEEDS_WHOLE_DEVICE();
  constexpr int64_t kRoom = 512 * kMiB;
  DeviceMemoryPlan roomy;
  std::vector<float> want;
  {
    Model model(tiny_options());
    EXPECT_EQ(model.pages(), kRows * (kContext / kDevicePageSize + 1) * 3 / 2);
    roomy = model.memory();
    expect_complete(roomy);
    EXPECT_LT(roomy.graphs, reserve_of_tiny());
    EXPECT_LT(roomy.other, 2048 * kMiB) << "somebody else uses the device";
    want = model.run();
  }
  const Ballast ballast(roomy.weights + roomy.workspace + reserve_of_tiny() + kRoom);
  Model model(tiny_options());
  expect_complete(model.memory());
  EXPECT_LE(model.memory().kv_pages, kRoom + 8 * Ballast::kPiece);
  EXPECT_GE(model.memory().kv_pages, kRoom - 64 * kMiB);
  EXPECT_EQ(model.run(), want);
  EXPECT_EQ(model.memory().free, ops::free_device_bytes().value()) << "steps took memory";
}

// Room for weights and workspace, not for what comes behind them; then not even for the weights.
TEST(DeviceMemoryAlone, AFullDeviceIsARefusalWithNumbers) {
  VAYU_NEEDS_WHOLE_DEVICE();
  const DeviceMemoryPlan roomy = Model(tiny_options()).memory();
  for (const int64_t left : {roomy.weights + roomy.workspace + reserve_of_tiny() / 2, roomy.weights / 2}) {
    const Ballast ballast(left);
    const int64_t free = ops::free_device_bytes().value();
    const auto refused = load(tiny_options());
    ASSERT_FALSE(refused.ok()) << left;
    EXPECT_EQ(refused.error().kind, ErrorKind::kResourceExhausted);
    for (const char* part : {" GiB free, of which ", "kept for graphs and the driver", "the weights take about ",
                             "workspace ", "128 KV pages "}) {
      EXPECT_NE(refused.error().message.find(part), std::string::npos) << part << ": " << refused.error().message;
    }
    EXPECT_EQ(ops::free_device_bytes().value(), free);
  }
}

// All pages that were asked for, or none of the model.
TEST(DeviceMemoryAlone, PagesThatAreAskedForAreNotCut) {
  VAYU_NEEDS_WHOLE_DEVICE();
  DeviceModelOptions options = tiny_options();
  options.num_pages = 20000;  // 469 MiB
  DeviceMemoryPlan roomy;
  {
    Model model(options);
    EXPECT_EQ(model.pages(), 20000);
    roomy = model.memory();
  }
  const Ballast ballast(roomy.weights + roomy.workspace + reserve_of_tiny() + roomy.kv_pages / 2);
  const auto refused = load(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kResourceExhausted);
  EXPECT_NE(refused.error().message.find("20000 KV pages 0.458"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace vayu::model
