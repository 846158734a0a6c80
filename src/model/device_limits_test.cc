// Each limit of the CUDA backend at its edge and one beyond, and models that it must take.
#include "model/device_limits.h"

#include <functional>
#include <nlohmann/json.hpp>

#include "loader/json_config.h"
#include "model/dummy_checkpoint.h"
#include "model/geometries.h"
#include "model/latent_plan.h"
#include "model/registry.h"
#include "model/testing/golden.h"

namespace vayu::model {
namespace {

using Json = nlohmann::json;

// With the FP8 weights of --quantization fp8, as DeviceModel::load asks.
struct Subject {
  ModelConfig config;
  DeviceModelOptions options;
  InputForms inputs{.attention = {.f8 = true}};

  Status check() const {
    ModelConfig loaded = config;
    DeviceModelOptions resolved = options;
    if (resolved.max_context == 0) resolved.max_context = config.max_context;
    loaded.mla.expands_prompts =
        config.has_mla() && config.mla.form != MlaForm::kAbsorbed && has_expanded_form(config.mla);
    return check_device_limits(loaded, resolved, inputs);
  }
};

Subject subject_of(const Json& json) {
  const auto parsed = loader::JsonConfig::parse(json.dump(), "config.json");
  const auto recipe = recipe_of(**parsed);
  EXPECT_TRUE(recipe.ok()) << recipe.error().message;
  return {.config = recipe->config};
}

Json golden_config(const std::string& name) {
  return Json::parse(testing::read_whole(testing::golden_path("configs/" + name + ".json")));
}

Json laid_over(Json base, const Json& patch) {
  base.merge_patch(patch);
  return base;
}

Subject dense() { return subject_of(golden_config("llama_llama3")); }
Subject experts() { return subject_of(golden_config("sarvam_moe_base")); }
Subject latent() { return subject_of(Json::parse(find_geometry("sarvam-105b")->config_json)); }

TEST(DeviceLimits, BuiltInGeometriesAndGoldensAreTaken) {
  for (const Geometry& geometry : geometries()) {
    const Status taken = subject_of(Json::parse(geometry.config_json)).check();
    EXPECT_TRUE(taken.ok()) << geometry.name << ": " << taken.error().message;
  }
  for (const char* name :
       {"llama_llama3", "llama_yarn", "qwen3", "qwen3_moe", "qwen3_moe_dense_layer", "sarvam_moe_base",
        "sarvam_moe_derived", "sarvam_moe_experts128", "sarvam_moe_grouped", "sarvam_moe_hidden384", "sarvam_mla_flat",
        "sarvam_mla_grouped", "sarvam_mla_kernel_shape", "sarvam_mla_mscale"}) {
    const Status taken = subject_of(golden_config(name)).check();
    EXPECT_TRUE(taken.ok()) << name << ": " << taken.error().message;
  }
}

// The published sizes.
TEST(DeviceLimits, PublishedModelsAreTaken) {
  struct Published {
    const char* name;
    const char* like;  // a golden of the architecture
    Json sizes;
  };
  const Published models[] = {
      {"SmolLM2-135M",
       "llama_llama3",
       {{"vocab_size", 49152},
        {"hidden_size", 576},
        {"num_hidden_layers", 30},
        {"num_attention_heads", 9},
        {"num_key_value_heads", 3},
        {"intermediate_size", 1536},
        {"max_position_embeddings", 8192},
        {"rope_scaling", nullptr}}},
      {"Llama-3.1-8B",
       "llama_llama3",
       {{"vocab_size", 128256},
        {"hidden_size", 4096},
        {"num_hidden_layers", 32},
        {"num_attention_heads", 32},
        {"num_key_value_heads", 8},
        {"head_dim", 128},
        {"intermediate_size", 14336},
        {"max_position_embeddings", 131072}}},
      {"Llama-3.1-70B",
       "llama_llama3",
       {{"vocab_size", 128256},
        {"hidden_size", 8192},
        {"num_hidden_layers", 80},
        {"num_attention_heads", 64},
        {"num_key_value_heads", 8},
        {"head_dim", 128},
        {"intermediate_size", 28672},
        {"max_position_embeddings", 131072}}},
      {"Qwen3-0.6B",
       "qwen3",
       {{"vocab_size", 151936},
        {"hidden_size", 1024},
        {"num_hidden_layers", 28},
        {"num_attention_heads", 16},
        {"num_key_value_heads", 8},
        {"head_dim", 128},
        {"intermediate_size", 3072},
        {"max_position_embeddings", 40960}}},
      {"Qwen3-32B",
       "qwen3",
       {{"vocab_size", 151936},
        {"hidden_size", 5120},
        {"num_hidden_layers", 64},
        {"num_attention_heads", 64},
        {"num_key_value_heads", 8},
        {"head_dim", 128},
        {"intermediate_size", 25600},
        {"max_position_embeddings", 40960}}},
      {"Qwen3-30B-A3B",
       "qwen3_moe",
       {{"vocab_size", 151936},
        {"hidden_size", 2048},
        {"num_hidden_layers", 48},
        {"num_attention_heads", 32},
        {"num_key_value_heads", 4},
        {"head_dim", 128},
        {"intermediate_size", 6144},
        {"num_experts", 128},
        {"num_experts_per_tok", 8},
        {"moe_intermediate_size", 768},
        {"max_position_embeddings", 40960}}},
      {"Qwen3-235B-A22B",
       "qwen3_moe",
       {{"vocab_size", 151936},
        {"hidden_size", 4096},
        {"num_hidden_layers", 94},
        {"num_attention_heads", 64},
        {"num_key_value_heads", 4},
        {"head_dim", 128},
        {"intermediate_size", 12288},
        {"num_experts", 128},
        {"num_experts_per_tok", 8},
        {"moe_intermediate_size", 1536},
        {"max_position_embeddings", 40960}}},
  };
  for (const Published& model : models) {
    const Status taken = subject_of(laid_over(golden_config(model.like), model.sizes)).check();
    EXPECT_TRUE(taken.ok()) << model.name << ": " << taken.error().message;
  }
}

struct Edge {
  const char* said;  // the field, as the message names it
  Subject (*base)();
  std::function<void(Subject&, int32_t)> set;
  int32_t most;
  int32_t beyond;  // the next value that a file or flag could ask for
  ErrorKind kind = ErrorKind::kUnsupported;
};

#define SET(place) [](Subject& s, int32_t v) { s.place = v; }
const Edge kEdges[] = {
    {"vocab_size is", dense, SET(config.vocab_size), 524288, 524289},
    {"hidden_size is", dense, SET(config.hidden), 16384, 16400},
    {"hidden_size is", dense, SET(config.hidden), 576, 584},  // multiples of 16
    {"hidden_size is", experts, SET(config.hidden), 16384, 16448},
    {"hidden_size is", experts, SET(config.hidden), 576, 592},  // multiples of 64
    {"intermediate_size is", dense, SET(config.ffn), 1 << 22, (1 << 22) + 1},
    {"moe_intermediate_size is", experts, SET(config.moe.expert_ffn), 1 << 22, (1 << 22) + 1},
    {"moe_shared_expert_intermediate_size", experts, SET(config.moe.shared_ffn), 1 << 22, (1 << 22) + 1},
    {"num_experts is", experts, SET(config.moe.router.num_experts), 256, 257},
    {"num_experts_per_tok is", experts, SET(config.moe.router.top_k), 16, 17},
    {"n_group is", experts, SET(config.moe.router.num_groups), 32, 33},
    {"head_dim is", dense, SET(config.head_dim), 32, 16},
    {"head_dim is", dense, SET(config.head_dim), 64, 48},
    {"head_dim is", dense, SET(config.head_dim), 128, 256},
    {"num_attention_heads is", dense, SET(config.num_q_heads), 32, 33},  // of 2 key heads
    {"num_attention_heads is", dense,
     [](Subject& s, int32_t v) {
       s.config.head_dim = 128;
       s.config.num_q_heads = s.config.num_kv_heads = v;
     },
     64, 65},
    {"rotary_dim", dense, SET(config.rope.rotary_dim), 48, 56},
    {"rotary_dim", dense, SET(config.rope.rotary_dim), 16, 8},
    {"num_attention_heads is", latent, SET(config.num_q_heads), 64, 65},
    {"kv_lora_rank is", latent, SET(config.mla.latent_dim), 512, 528},
    {"kv_lora_rank is", latent, SET(config.mla.latent_dim), 496, 504},
    {"qk_nope_head_dim is", latent, SET(config.mla.nope_dim), 512, 528},
    {"qk_nope_head_dim is", latent, SET(config.mla.nope_dim), 16, 8},
    {"qk_rope_head_dim is", latent, [](Subject& s, int32_t v) { s.config.mla.rope_dim = s.config.rope.rotary_dim = v; },
     256, 272},
    {"qk_rope_head_dim is", latent, [](Subject& s, int32_t v) { s.config.mla.rope_dim = s.config.rope.rotary_dim = v; },
     32, 24},
    {"kv_lora_rank and qk_rope_head_dim together", latent, SET(config.head_dim), 576, 592},
    {"v_head_dim is", latent,
     [](Subject& s, int32_t v) {
       s.config.num_q_heads = 8;
       s.config.mla.v_dim = v;
     },
     512, 528},
    {"v_head_dim is", latent, SET(config.mla.v_dim), 80, 72},
    {"v_head_dim 272 is 17408", latent, SET(config.mla.v_dim), 256, 272},  // 64 heads, quantised row by row
    {"partial_rotary_factor", latent, SET(config.rope.rotary_dim), 64, 32},
    {"--max-num-batched-tokens is", dense, SET(options.max_step_tokens), 1 << 20, (1 << 20) + 1,
     ErrorKind::kInvalidArgument},
    {"--max-num-batched-tokens is", experts, SET(options.max_step_tokens), 65536, 65537, ErrorKind::kInvalidArgument},
    {"--max-num-batched-tokens is", latent, SET(options.max_step_tokens), 65535, 65536, ErrorKind::kInvalidArgument},
    {"--max-num-batched-tokens is", dense, SET(options.max_step_tokens), 64, 63, ErrorKind::kInvalidArgument},
    {"--max-num-seqs is", dense, SET(options.max_rows), 1, 0, ErrorKind::kInvalidArgument},
    // As with_defaults sets them: a step takes a token of every answer.
    {"--max-num-seqs is", latent, [](Subject& s, int32_t v) { s.options.max_rows = s.options.max_step_tokens = v; },
     65535, 65536, ErrorKind::kInvalidArgument},
    {"--max-model-len is", dense, SET(options.max_context), 4096, 4097, ErrorKind::kInvalidArgument},
    {"--max-total-tokens is", dense, SET(options.num_pages), INT32_MAX / 16, INT32_MAX / 16 + 1,
     ErrorKind::kInvalidArgument},
};
#undef SET

TEST(DeviceLimits, TheEdgeIsTakenAndTheNextIsNamed) {
  for (const Edge& edge : kEdges) {
    Subject at = edge.base(), past = edge.base();
    edge.set(at, edge.most);
    edge.set(past, edge.beyond);
    const Status taken = at.check();
    EXPECT_TRUE(taken.ok()) << edge.said << " " << edge.most << ": " << taken.error().message;
    const Status refused = past.check();
    ASSERT_FALSE(refused.ok()) << edge.said << " " << edge.beyond;
    EXPECT_EQ(refused.error().kind, edge.kind) << refused.error().message;
    EXPECT_NE(refused.error().message.find(edge.said), std::string::npos)
        << edge.said << ": " << refused.error().message;
    const std::string& field = refused.error().field;
    EXPECT_NE(refused.error().message.find(field), std::string::npos) << field << ": " << refused.error().message;
    EXPECT_EQ(field.find_first_of(" ,"), std::string::npos) << "no name: " << field;
    EXPECT_FALSE(field.empty()) << refused.error().message;
  }
}

// The same from a config.json, as --hf-overrides may change it, with the formats that its tensors get.
TEST(DeviceLimits, WhatAFileAsksForIsNamed) {
  struct Asked {
    const char* geometry;
    Json overrides;
    const char* said;
  };
  const Asked all[] = {
      {"sarvam-30b", {{"num_experts", 512}}, "num_experts is 512"},
      {"sarvam-30b", {{"num_experts_per_tok", 20}}, "num_experts_per_tok is 20"},
      {"sarvam-30b", {{"n_group", 64}, {"topk_group", 32}}, "n_group is 64"},
      {"sarvam-30b", {{"vocab_size", 600000}}, "vocab_size is 600000"},
      {"sarvam-30b", {{"hidden_size", 16448}}, "hidden_size is 16448"},
      {"sarvam-30b", {{"num_shared_experts", 64}, {"moe_shared_expert_intermediate_size", 1 << 20}}, "is 67108864"},
      {"sarvam-30b", {{"num_attention_heads", 68}}, "num_attention_heads is 68"},
      {"sarvam-30b", {{"partial_rotary_factor", 0.375}}, "rotary_dim 24"},
      {"sarvam-105b", {{"partial_rotary_factor", 0.5}}, "rotary_dim 32 of qk_rope_head_dim 64"},
      {"sarvam-105b", {{"v_head_dim", 512}}, "v_head_dim 512 is 32768"},
  };
  for (const Asked& asked : all) {
    const Json json = laid_over(Json::parse(find_geometry(asked.geometry)->config_json), asked.overrides);
    const auto parsed = loader::JsonConfig::parse(json.dump(), "config.json");
    auto recipe = recipe_of(**parsed);
    ASSERT_TRUE(recipe.ok()) << asked.said << ": " << recipe.error().message;
    Subject subject{.config = recipe->config};
    const auto formats = DeviceFormats::plan(*dummy_checkpoint(*recipe, 1, "dummy"), *recipe, subject.options);
    ASSERT_TRUE(formats.ok()) << asked.said << ": " << formats.error().message;
    subject.inputs = formats->inputs();
    const Status refused = subject.check();
    ASSERT_FALSE(refused.ok()) << asked.said;
    EXPECT_NE(refused.error().message.find(asked.said), std::string::npos) << refused.error().message;
  }
}

TEST(DeviceLimits, TheMessageSaysWhatIsTaken) {
  Subject many = experts();
  many.config.moe.router.num_experts = 512;
  EXPECT_EQ(many.check().error().message, "num_experts is 512: the CUDA backend takes up to 256");
  EXPECT_EQ(many.check().error().field, "num_experts");
  Subject ragged = experts();
  ragged.config.hidden = 1000;
  EXPECT_EQ(ragged.check().error().message, "hidden_size is 1000: the CUDA backend takes multiples of 64 up to 16384");
  Subject long_steps = experts();
  long_steps.options.max_step_tokens = 131072;
  EXPECT_EQ(long_steps.check().error().message,
            "--max-num-batched-tokens is 131072: the CUDA backend takes 64 to 65536, with experts");
}

TEST(DeviceLimits, PairsThatLieSideBySideMayBeFew) {
  Subject interleaved = dense();
  interleaved.config.rope.pairing = ops::RopePairing::kInterleaved;
  for (const int32_t rotary : {2, 6, 24, 64}) {
    interleaved.config.rope.rotary_dim = rotary;
    EXPECT_TRUE(interleaved.check().ok()) << rotary;
  }
}

TEST(DeviceLimits, WideValuesGoThroughInBf16) {
  Subject wide = latent();
  wide.config.mla.v_dim = 512;
  EXPECT_FALSE(wide.check().ok());
  wide.inputs.attention = {.bf16 = true};
  EXPECT_TRUE(wide.check().ok()) << wide.check().error().message;
}

TEST(DeviceLimits, ExpandedLatentsNeedTheirKernel) {
  Subject other = latent();
  other.config.mla.v_dim = 64;
  EXPECT_TRUE(other.check().ok());
  other.config.mla.form = MlaForm::kExpanded;
  const Status refused = other.check();
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("--mla-attention absorbed"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace vayu::model
