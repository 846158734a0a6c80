// Rotary tables of every kind of scaling against transformers (tests/golden/oracle/make_rope_goldens.py), from the
// config.json block to the rotated pair, at positions 1, 8192 and 40000.
#include <gtest/gtest.h>

#include <cmath>

#include "loader/json_config.h"
#include "model/registry.h"
#include "model/rope_frequencies.h"
#include "model/testing/golden.h"
#include "ops/cpu/thread_pool.h"

namespace vayu::model {
namespace {

using Json = nlohmann::json;

// cos and sin of every pair as the op applies them: what becomes of (1, 0).
std::vector<float> rotate_unit_pairs(const RopeConfig& rope, const RopeFrequencies& table, int32_t position,
                                     ops::Backend backend) {
  static ThreadPool pool(1);
  const int32_t dim = rope.rotary_dim;
  std::vector<float> qkv(3 * dim, 0.0f);
  std::fill_n(qkv.begin(), dim / 2, 1.0f);
  std::vector<float> pages(2 * dim);
  const int32_t slot = 0;
  ops::RopeKvWriteArgs args;
  args.qkv = qkv.data();
  args.positions = &position;
  args.slot_mapping = &slot;
  args.inv_freq = table.inv_freq.data();
  args.attention_factor = table.attention_factor;
  args.pairing = rope.pairing;
  args.rotary_dim = dim;
  args.num_q_heads = 1;
  args.num_tokens = 1;
  args.kv = {pages.data(), ops::KvFormat::kF32, 1, dim, 1};
  ops::rope_kv_write({backend, &pool}, args);
  qkv.resize(dim);
  return qkv;  // cos of each pair, then sin
}

TEST(RopeGolden, TablesEqualTransformers) {
  const Json golden = Json::parse(testing::read_whole(testing::golden_path("rope.json")));
  ASSERT_EQ(golden["cases"].size(), 12u);
  for (const auto& [name, entry] : golden["cases"].items()) {
    SCOPED_TRACE(name);
    const auto json = loader::JsonConfig::parse(entry["config"].dump(), "config.json");
    ASSERT_TRUE(json.ok());
    const auto recipe = recipe_of(**json);
    ASSERT_TRUE(recipe.ok()) << recipe.error().message;
    const RopeConfig& rope = recipe->config.rope;
    const auto table = rope_frequencies(rope, {});
    ASSERT_TRUE(table.ok());
    EXPECT_NEAR(table->attention_factor, entry["attention_factor"].get<double>(), 1e-6);
    const auto want = entry["inv_freq"].get<std::vector<double>>();
    ASSERT_EQ(table->inv_freq.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(table->inv_freq[i] / want[i], 1, 5e-7) << "pair " << i;
    for (size_t p = 0; p < golden["positions"].size(); ++p) {
      const int32_t position = golden["positions"][p];
      // An angle of 40000 radians is good to 40000 * 2^-24 in float, on both sides.
      const double tolerance = 1e-6 + 2e-7 * position;
      for (const ops::Backend backend : {ops::Backend::kReference, ops::Backend::kCpu}) {
        const auto got = rotate_unit_pairs(rope, *table, position, backend);
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_NEAR(got[i], entry["cos"][p][i].get<double>(), tolerance) << "position " << position << ", pair " << i;
          EXPECT_NEAR(got[want.size() + i], entry["sin"][p][i].get<double>(), tolerance);
        }
      }
    }
  }
}

TEST(RopeGolden, ContextFollowsFromFactorAndOriginalLength) {
  const Json golden = Json::parse(testing::read_whole(testing::golden_path("rope.json")));
  const auto context = [&](const char* name) {
    const auto json = loader::JsonConfig::parse(golden["cases"][name]["config"].dump(), "config.json");
    return recipe_of(**json)->config.max_context;
  };
  EXPECT_EQ(context("plain"), 65536);
  EXPECT_EQ(context("rope_type_linear"), 65536);
  EXPECT_EQ(context("llama3"), 131072);
  EXPECT_EQ(context("yarn"), 131072);
  EXPECT_EQ(context("yarn_without_original"), 131072);
  EXPECT_EQ(context("dynamic_within_its_length"), 65536);  // past it the frequencies would change under the cache
}

TEST(RopeGolden, ContradictionsAndUnknownKindsAreNamed) {
  Json config = Json::parse(testing::read_whole(testing::golden_path("rope.json")))["cases"]["plain"]["config"];
  const auto message = [&](const Json& block) {
    config["rope_scaling"] = block;
    const auto recipe = recipe_of(**loader::JsonConfig::parse(config.dump(), "config.json"));
    return recipe.ok() ? std::string() : recipe.error().message;
  };
  EXPECT_EQ(message(nullptr), "");
  EXPECT_EQ(message({{"rope_type", "default"}}), "");
  EXPECT_NE(message({{"rope_type", "spiral"}, {"factor", 2}}).find("rope_scaling.rope_type': RoPE scaling 'spiral'"),
            std::string::npos);
  EXPECT_NE(message({{"type", "yarn"}, {"rope_type", "linear"}, {"factor", 2}}).find("rope_scaling.type"),
            std::string::npos);
  EXPECT_NE(message({{"type", "linear"}}).find("rope_scaling.factor"), std::string::npos);
  EXPECT_NE(message({{"type", "linear"}, {"factor", -2}}).find("factor -2"), std::string::npos);
}

}  // namespace
}  // namespace vayu::model
