#include "model/device_formats.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "loader/fp8_scales.h"
#include "loader/json_config.h"
#include "model/dummy_checkpoint.h"
#include "model/registry.h"
#include "model/testing/f8_checkpoint.h"
#include "model/testing/golden.h"

namespace vayu::model {
namespace {

using ops::WeightScale;
using testing::F8Checkpoint;
using testing::Recast;
using testing::recast_f8;
using Json = nlohmann::json;
using Scales = Recast::Scales;

Json config_named(const std::string& name) {
  return Json::parse(testing::read_whole(testing::golden_path("configs/" + name + ".json")));
}

Recipe recipe_from(const Json& config) {
  const auto json = loader::JsonConfig::parse(config.dump(), "config.json");
  auto recipe = recipe_of(**json);
  EXPECT_TRUE(recipe.ok()) << recipe.error().message;
  return std::move(*recipe);
}

bool has(const loader::CheckpointTensor& tensor, std::string_view part) {
  return tensor.name.find(part) != std::string::npos;
}

class Formats {
 public:
  Formats(const Json& config, const F8Checkpoint::Choice& choose, const DeviceModelOptions& options)
      : recipe_(recipe_from(config)), checkpoint_(*dummy_checkpoint(recipe_, 7, "dummy"), choose) {
    auto planned = DeviceFormats::plan(checkpoint_, recipe_, options);
    EXPECT_TRUE(planned.ok()) << planned.error().message;
    formats_ = std::move(*planned);
  }
  const DeviceFormats* operator->() const { return &formats_; }
  WeightScale scale(Slot slot, int32_t layer = 1) const { return formats_.scale(slot, layer); }
  const F8Checkpoint& checkpoint() const { return checkpoint_; }
  const Recipe& recipe() const { return recipe_; }

 private:
  Recipe recipe_;
  F8Checkpoint checkpoint_;
  DeviceFormats formats_;
};

// sarvam_moe_base with one dense and one MoE layer, of 32 experts.
Json moe_config() {
  Json config = config_named("sarvam_moe_base");
  config["num_hidden_layers"] = 2;
  return config;
}

const DeviceModelOptions kAsStored = {.f8_weights = false};
const DeviceModelOptions kQuantise = {.f8_weights = true};

Recast all_bf16(const loader::CheckpointTensor&) { return {}; }
F8Checkpoint::Choice all_f8(Scales scales) {
  return [scales](const loader::CheckpointTensor&) { return recast_f8(scales); };
}

constexpr Slot kLinears[] = {Slot::kQkv,  Slot::kAttentionOutput, Slot::kGateUp,
                             Slot::kDown, Slot::kExpertGateUp,    Slot::kExpertDown};

TEST(DeviceFormats, UniformModels) {
  const Json config = moe_config();
  const Formats bf16(config, all_bf16, kAsStored), quantised(config, all_bf16, kQuantise);
  const Formats rows(config, all_f8(Scales::kRow), kAsStored), tensors(config, all_f8(Scales::kTensor), kAsStored);
  const Formats blocks(config, all_f8(Scales::kBlock), kAsStored);
  for (const Slot slot : kLinears) {
    EXPECT_EQ(bf16.scale(slot), WeightScale::kNone) << static_cast<int>(slot);
    EXPECT_EQ(quantised.scale(slot), WeightScale::kRow) << static_cast<int>(slot);
    EXPECT_EQ(rows.scale(slot), WeightScale::kRow) << static_cast<int>(slot);
    EXPECT_EQ(tensors.scale(slot), WeightScale::kRow) << static_cast<int>(slot);
    const bool one_block_wide = slot == Slot::kExpertDown || slot == Slot::kDown;  // 128 columns in layer 1
    EXPECT_EQ(blocks.scale(slot), one_block_wide ? WeightScale::kRow : WeightScale::kBlock) << static_cast<int>(slot);
  }
  EXPECT_EQ(blocks.scale(Slot::kDown, 0), WeightScale::kBlock);
  EXPECT_EQ(blocks.scale(Slot::kHead, kNoLayer), WeightScale::kBlock);
  EXPECT_EQ(rows.scale(Slot::kEmbedding, kNoLayer), WeightScale::kNone);

  EXPECT_TRUE(bf16->inputs().x.bf16 && !bf16->inputs().x.f8 && !bf16->inputs().mlp.f8 && !bf16->inputs().head.f8);
  EXPECT_TRUE(rows->inputs().x.f8 && rows->inputs().x.bf16) << "the router reads BF16";
  EXPECT_TRUE(rows->inputs().mlp.f8 && !rows->inputs().mlp.bf16 && !rows->inputs().expert_mlp.bf16);
  EXPECT_TRUE(rows->inputs().attention.f8 && rows->inputs().head.f8 && !rows->inputs().head.bf16);

  EXPECT_EQ(rows->counts().kept, bf16->counts().bf16);
  EXPECT_EQ(rows->counts().kept, quantised->counts().quantised);
  EXPECT_EQ(rows->counts().kept, blocks->counts().kept);
  EXPECT_EQ(rows->counts().widened + rows->counts().bf16 + rows->counts().requantised, 0);
  EXPECT_EQ(rows->summary(), fmt::format("{} linears in FP8 as stored", rows->counts().kept));
}

TEST(DeviceFormats, StoredF8CanBeWidenedOrQuantisedAgain) {
  const Json config = config_named("qwen3");
  const Formats wide(config, all_f8(Scales::kRow), {.f8_weights = false, .widen_f8 = true});
  EXPECT_EQ(wide.scale(Slot::kQkv), WeightScale::kNone);
  EXPECT_EQ(wide->counts().widened, 3 * 7);  // 7 linears a layer, the head is tied
  EXPECT_TRUE(wide->inputs().head.bf16 && !wide->inputs().x.f8);
  const Formats again(config, all_f8(Scales::kRow), {.f8_weights = true, .widen_f8 = true});
  EXPECT_EQ(again.scale(Slot::kQkv), WeightScale::kRow);
  EXPECT_EQ(again->counts().requantised, 3 * 7);
}

TEST(DeviceFormats, MixedPartsOfOneMatrix) {
  const Json config = config_named("qwen3");
  const auto k_is_bf16 = [](const loader::CheckpointTensor& t) {
    return has(t, "k_proj") ? Recast{} : recast_f8(Scales::kRow);
  };
  const Formats stored(config, k_is_bf16, kAsStored);
  EXPECT_EQ(stored.scale(Slot::kQkv), WeightScale::kNone);
  EXPECT_EQ(stored.scale(Slot::kAttentionOutput), WeightScale::kRow);
  EXPECT_EQ(stored->counts().widened, 3 * 2);
  EXPECT_EQ(stored->counts().bf16, 3);
  EXPECT_EQ(stored->counts().kept, 3 * 4);
  EXPECT_EQ(stored->summary(), "12 linears in FP8 as stored, 6 widened from FP8 to BF16, 3 in BF16");
  EXPECT_TRUE(stored->inputs().x.f8 && stored->inputs().x.bf16);

  const Formats quantised(config, k_is_bf16, kQuantise);
  EXPECT_EQ(quantised.scale(Slot::kQkv), WeightScale::kRow);
  EXPECT_EQ(quantised->counts().kept, 3 * 6);
  EXPECT_EQ(quantised->counts().quantised, 3);

  const auto q_has_blocks = [](const loader::CheckpointTensor& t) {
    return recast_f8(has(t, "q_proj") ? Scales::kBlock : Scales::kRow);
  };
  const Formats joined(config, q_has_blocks, kAsStored);
  EXPECT_EQ(joined.scale(Slot::kQkv), WeightScale::kRow);
  EXPECT_EQ(joined->counts().requantised, 3);
  EXPECT_EQ(joined->counts().kept, 3 * 6);
}

TEST(DeviceFormats, BlocksThatCannotBeKept) {
  const auto blocks = [](int64_t rows, int64_t cols) {
    return [=](const loader::CheckpointTensor&) { return Recast{DataFormat::kF8E4M3, Scales::kBlock, {rows, cols}}; };
  };
  const Json qwen = config_named("qwen3");
  EXPECT_EQ(Formats(qwen, blocks(128, 128), kAsStored).scale(Slot::kGateUp), WeightScale::kBlock);
  for (const auto& [rows, cols] : {std::pair(64, 128), std::pair(128, 64), std::pair(256, 128)}) {
    const Formats odd(qwen, blocks(rows, cols), kAsStored);
    EXPECT_EQ(odd.scale(Slot::kGateUp), WeightScale::kRow) << rows << " " << cols;
    EXPECT_EQ(odd->counts().requantised, 3 * 7);
  }
  const auto e5m2 = [](const loader::CheckpointTensor&) { return Recast{DataFormat::kF8E5M2, Scales::kRow, {}}; };
  EXPECT_EQ(Formats(qwen, e5m2, kAsStored)->counts().requantised, 3 * 7);

  // A ragged last column of blocks: an FFN of 704.
  const Formats llama(config_named("llama_llama3"), blocks(128, 128), kAsStored);
  EXPECT_EQ(llama.scale(Slot::kDown), WeightScale::kRow);
  EXPECT_EQ(llama.scale(Slot::kGateUp), WeightScale::kBlock) << "704 rows are 5 blocks and a half";
  EXPECT_EQ(llama.scale(Slot::kQkv), WeightScale::kBlock);

  // A key head of 32 begins in the middle of 64 rows.
  Json narrow = qwen;
  narrow["head_dim"] = 32;
  narrow["num_attention_heads"] = 9;
  narrow["num_key_value_heads"] = 3;
  EXPECT_EQ(Formats(narrow, blocks(128, 128), kAsStored).scale(Slot::kQkv), WeightScale::kRow);
  EXPECT_EQ(Formats(narrow, blocks(128, 128), kAsStored).scale(Slot::kGateUp), WeightScale::kBlock);
}

// 96 rows of gate and 96 of up by experts: blocks begin anew in each tensor, and a device block never spans two.
TEST(DeviceFormats, BlocksOfNarrowExperts) {
  const Formats moe(config_named("qwen3_moe"), all_f8(Scales::kBlock), kAsStored);
  EXPECT_EQ(moe.scale(Slot::kExpertGateUp), WeightScale::kBlock);
  EXPECT_EQ(moe.scale(Slot::kExpertDown), WeightScale::kRow)
      << "96 columns are less than a block: a scale for 128 rows";
}

TEST(DeviceFormats, IgnoredLinearsStayAsStored) {
  const Json config = config_named("qwen3");
  DeviceModelOptions options = kQuantise;
  options.quantization_ignore = {"*.down_proj", "model.layers.1.self_attn.q_proj.weight"};
  const Formats formats(config, all_bf16, options);
  EXPECT_EQ(formats.scale(Slot::kDown, 0), WeightScale::kNone);
  EXPECT_EQ(formats.scale(Slot::kQkv, 0), WeightScale::kRow);
  EXPECT_EQ(formats.scale(Slot::kQkv, 1), WeightScale::kNone) << "one of its tensors stays in BF16";
  EXPECT_EQ(formats->counts().bf16, 3 + 3);
  EXPECT_EQ(formats->counts().quantised, 3 * 7 - 6);
  EXPECT_TRUE(formats->inputs().mlp.bf16 && !formats->inputs().mlp.f8);
  // What is stored in FP8 stays so, too.
  const Formats stored(config, all_f8(Scales::kRow), options);
  EXPECT_EQ(stored->counts().kept, 3 * 7);
}

TEST(DeviceFormats, PatternsMustMatchAMatrix) {
  const Formats formats(moe_config(), all_bf16, kQuantise);
  const auto check = [&](std::vector<std::string> patterns) {
    return check_patterns(patterns, formats.checkpoint(), formats.recipe());
  };
  EXPECT_TRUE(check({}).ok());
  EXPECT_TRUE(check({"lm_head", "model.layers.1.*"}).ok());
  for (const char* wrong : {"lm_heads", "model.norm", "*norm*"}) {
    const Status status = check({"lm_head", wrong});
    ASSERT_FALSE(status.ok()) << wrong;
    EXPECT_EQ(status.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_NE(status.error().message.find(wrong), std::string::npos) << status.error().message;
  }
}

// The routed experts in FP8 and the shared one in BF16, as checkpoints have it that exempt shared experts.
TEST(DeviceFormats, SharedAndRoutedExpertsMayDiffer) {
  const Formats formats(
      moe_config(),
      [](const loader::CheckpointTensor& t) {
        return has(t, "shared") || has(t, "lm_head") ? Recast{} : recast_f8(Scales::kRow);
      },
      kAsStored);
  EXPECT_EQ(formats.scale(Slot::kGateUp, 0), WeightScale::kRow) << "the dense layer";
  EXPECT_EQ(formats.scale(Slot::kGateUp, 1), WeightScale::kNone);
  EXPECT_EQ(formats.scale(Slot::kExpertGateUp, 1), WeightScale::kRow);
  EXPECT_TRUE(formats->inputs().mlp.f8 && formats->inputs().mlp.bf16);
  EXPECT_TRUE(formats->inputs().expert_mlp.f8 && !formats->inputs().expert_mlp.bf16);
  EXPECT_TRUE(!formats->inputs().head.f8 && formats->inputs().head.bf16);
}

// By hand: BF16 takes two bytes an element, FP8 one and four a scale; qwen3 has no padding.
TEST(DeviceFormats, WeightBytes) {
  const Json config = config_named("qwen3");
  const Formats bf16(config, all_bf16, kAsStored), f8(config, all_f8(Scales::kRow), kAsStored);
  const Formats blocks(config, all_f8(Scales::kBlock), kAsStored);
  int64_t vectors = 0, embedding = 0, linears = 0, rows = 0;
  for (const loader::CheckpointTensor& t : bf16.checkpoint().tensors()) {
    const int64_t elements = t.rows() * t.cols();
    if (t.shape.size() < 2) {
      vectors += elements;
    } else if (has(t, "embed")) {
      embedding += elements;
    } else {
      linears += elements;
      rows += t.rows();
    }
  }
  EXPECT_EQ(bf16->weight_bytes(), 4 * vectors + 2 * (embedding + linears));
  EXPECT_EQ(f8->weight_bytes(), 4 * vectors + 2 * embedding + linears + 4 * rows);
  EXPECT_EQ(blocks->weight_bytes(), 4 * vectors + 2 * embedding + linears + 4 * linears / (64 * 128));
}

}  // namespace
}  // namespace vayu::model
