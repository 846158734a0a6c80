#include "apps/bench/kernel_baseline.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace vayu::bench {
namespace {

using nlohmann::json;

model::ModelConfig config() {
  model::ModelConfig c;
  c.hidden = 4096;
  c.num_q_heads = 64;
  c.num_kv_heads = 4;
  c.head_dim = 64;
  c.ffn = 8192;
  c.vocab_size = 262144;
  c.moe.router.num_experts = 128;
  c.moe.router.top_k = 6;
  c.moe.expert_ffn = 1024;
  return c;
}

json good() {
  return json::parse(R"({
    "hardware": "a GPU", "model": "sarvam-30b", "context": 3650,
    "geometry": {"hidden": 4096, "q_heads": 64, "kv_heads": 4, "head_dim": 64, "experts": 128, "top_k": 6,
                 "expert_ffn": 1024, "dense_ffn": 8192, "vocab": 262144},
    "shapes": {"decode_32": {"attention": {"eager_us": 50.5, "best_us": 40, "best": "bf16"}, "experts_touched": 99}}})");
}

Result<KernelBaselines> parse(const json& file, int32_t context = 3650, const std::string& model = "sarvam-30b") {
  return KernelBaselines::parse(file.dump(), "b.json", model, config(), context);
}

TEST(KernelBaselines, FindsOperatorsOfAShape) {
  const auto baselines = parse(good());
  ASSERT_TRUE(baselines.ok()) << baselines.error().message;
  const auto attention = baselines->find("decode_32", "attention");
  ASSERT_TRUE(attention);
  EXPECT_EQ(attention->eager_us, 50.5);
  EXPECT_EQ(attention->best_us, 40);
  EXPECT_FALSE(baselines->find("decode_32", "router"));
  EXPECT_FALSE(baselines->find("decode_64", "attention"));
  EXPECT_TRUE(KernelBaselines().empty());
}

TEST(KernelBaselines, AnotherModelOrContextIsRefused) {
  const auto other = parse(good(), 3650, "sarvam-105b");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(other.error().message, "--baseline b.json: model is sarvam-30b, in this run sarvam-105b");
  const auto context = parse(good(), 1024);
  ASSERT_FALSE(context.ok());
  EXPECT_EQ(context.error().message, "--baseline b.json: context is 3650, in this run 1024");
  EXPECT_TRUE(parse(good(), 0).ok());  // prompts alone
  const json sound = good();
  for (const auto& [name, value] : sound["geometry"].items()) {
    json file = good();
    file["geometry"][name] = value.get<int>() + 1;
    const auto geometry = parse(file);
    ASSERT_FALSE(geometry.ok()) << name;
    EXPECT_EQ(geometry.error().field, "geometry/" + name);
  }
}

TEST(KernelBaselines, FaultsNameFileAndField) {
  const auto with = [](const char* pointer, json value) {
    json file = good();
    file[json::json_pointer(pointer)] = std::move(value);
    return file;
  };
  const auto without = [](const char* parent, const char* name) {
    json file = good();
    file[json::json_pointer(parent)].erase(name);
    return file;
  };
  const std::pair<json, std::string> cases[] = {
      {with("/model", 3), "model must be a string, not number"},
      {without("", "model"), "model is missing"},
      {without("", "geometry"), "geometry is missing"},
      {with("/geometry", json::array()), "geometry must be an object, not array"},
      {with("/geometry/hidden", "4096"), "geometry/hidden must be a number, not string"},
      {without("/geometry", "experts"), "geometry/experts is missing"},
      {with("/context", nullptr), "context must be a number, not null"},
      {with("/shapes", 1), "shapes must be an object, not number"},
      {with("/shapes/decode_32", json::array()), "shapes/decode_32 must be an object, not array"},
      {with("/shapes/decode_32/attention", 7.5), "shapes/decode_32/attention must be an object, not number"},
      {with("/shapes/decode_32/attention/eager_us", "50"),
       "shapes/decode_32/attention/eager_us must be a number, not string"},
      {with("/shapes/decode_32/attention/best_us", -1), "shapes/decode_32/attention/best_us is -1"},
      {without("/shapes/decode_32/attention", "best_us"), "shapes/decode_32/attention/best_us is missing"},
  };
  for (const auto& [file, message] : cases) {
    const auto baselines = parse(file);
    ASSERT_FALSE(baselines.ok()) << message;
    EXPECT_NE(baselines.error().message.find("--baseline b.json: " + message), std::string::npos)
        << baselines.error().message;
  }
  for (const char* text : {"", "[]", "{", "null"}) {
    EXPECT_FALSE(KernelBaselines::parse(text, "b.json", "m", config(), 0).ok()) << text;
  }
  EXPECT_EQ(KernelBaselines::read("/nonexistent/b.json", "m", config(), 0).error().kind, ErrorKind::kIo);
}

}  // namespace
}  // namespace vayu::bench
