// The same weights under every name and in every form that checkpoints of an architecture come in: each gives the same
// logits to the last bit, and each fault of a folder is one error.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "loader/json_config.h"
#include "loader/model_source.h"
#include "loader/safetensors_writer.h"
#include "loader/testing/temp_folder.h"
#include "model/dummy_checkpoint.h"
#include "model/model.h"
#include "model/registry.h"
#include "model/testing/batch_builder.h"
#include "ops/cpu/thread_pool.h"

namespace vayu::model {
namespace {

using loader::CheckpointTensor;
using loader::TempFolder;

constexpr char kMoe[] = R"({"architectures": ["SarvamMoEForCausalLM"], "model_type": "sarvam_moe", "vocab_size": 64,
  "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
  "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3,
  "num_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "rope_theta": 8000000,
  "max_position_embeddings": 256})";

// A checkpoint in memory: name -> shape and floats.
struct Weight {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using Weights = std::map<std::string, Weight>;

Recipe recipe_from(const std::string& config) { return *recipe_of(**loader::JsonConfig::parse(config, "config.json")); }

Weights seeded_weights(const std::string& config) {
  const auto checkpoint = dummy_checkpoint(recipe_from(config), 7, "dummy");
  Weights weights;
  for (const CheckpointTensor& tensor : checkpoint->tensors()) {
    Weight weight{tensor.shape, std::vector<float>(tensor.rows() * tensor.cols())};
    EXPECT_TRUE(
        checkpoint->read_rows(tensor, 0, tensor.rows(), reinterpret_cast<std::byte*>(weight.values.data())).ok());
    weights.emplace(tensor.name, std::move(weight));
  }
  return weights;
}

void write_folder(const TempFolder& folder, const std::string& config, const Weights& weights,
                  DataFormat format = DataFormat::kF32, int64_t max_shard_bytes = 1 << 30) {
  folder.write("config.json", config);
  std::vector<CheckpointTensor> tensors;
  for (const auto& [name, weight] : weights) tensors.push_back({name, weight.shape, format});
  auto writer = *loader::SafetensorsWriter::create(folder.path(), tensors, max_shard_bytes);
  size_t index = 0;
  for (const auto& [name, weight] : weights) {
    const CheckpointTensor& tensor = tensors[index];
    std::vector<std::byte> bytes(tensor.rows() * row_bytes(format, tensor.cols()));
    quantize_row(format, weight.values.data(), bytes.data(), tensor.rows() * tensor.cols());
    ASSERT_TRUE(writer.write_rows(index++, 0, tensor.rows(), bytes.data()).ok());
  }
  ASSERT_TRUE(writer.finish().ok());
}

Result<std::unique_ptr<Model>> load_folder(const TempFolder& folder) {
  static ThreadPool pool(2);
  VAYU_ASSIGN_OR_RETURN(const loader::ModelSource source, loader::open_model(folder.path()));
  VAYU_ASSIGN_OR_RETURN(Recipe recipe, recipe_of(source));
  ModelLoadOptions options;
  options.ops = {ops::Backend::kCpu, &pool};
  options.num_pages = 4;
  options.max_step_tokens = options.max_rows = options.max_logits = 16;
  return Model::load(std::move(recipe), *source.weights, options);
}

std::vector<float> logits_of(const TempFolder& folder) {
  auto model = load_folder(folder);
  EXPECT_TRUE(model.ok()) << model.error().message;
  if (!model.ok()) return {};
  testing::TestSequence sequence{{3, 60, 5, 17, 9, 22}, {2}};
  Batch batch;
  append_row(batch, sequence, 6, 16, /*all_logits=*/true);
  std::vector<float> logits(6 * (*model)->config().vocab_size);
  (*model)->forward(batch, logits.data());
  return logits;
}

std::vector<float> published_logits() {
  const TempFolder folder;
  write_folder(folder, kMoe, seeded_weights(kMoe));
  return logits_of(folder);
}

void rename(Weights& weights, const std::string& from, const std::string& to) {
  Weights renamed;
  for (auto& [name, weight] : weights) {
    std::string changed = name;
    const size_t at = changed.find(from);
    if (at != std::string::npos) changed.replace(at, from.size(), to);
    renamed.emplace(std::move(changed), std::move(weight));
  }
  weights = std::move(renamed);
}

void split_qkv(Weights& weights) {
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    const Weight fused = weights.at(prefix + "attention.query_key_value.weight");
    weights.erase(prefix + "attention.query_key_value.weight");
    int64_t row = 0;
    for (const auto& [name, rows] : {std::pair{"q", 64}, std::pair{"k", 32}, std::pair{"v", 32}}) {
      const auto begin = fused.values.begin() + row * 64;
      weights[fmt::format("{}self_attn.{}_proj.weight", prefix, name)] = {{rows, 64}, {begin, begin + rows * 64}};
      row += rows;
    }
  }
}

// experts.E.PART.weight of layer 1 behind one another.
Weight stack(Weights& weights, const std::string& part, bool erase = true) {
  Weight out;
  for (int expert = 0; expert < 8; ++expert) {
    const std::string name = fmt::format("model.layers.1.mlp.experts.{}.{}.weight", expert, part);
    const Weight& one = weights.at(name);
    out.shape = {8, one.shape[0], one.shape[1]};
    out.values.insert(out.values.end(), one.values.begin(), one.values.end());
    if (erase) weights.erase(name);
  }
  return out;
}

void stack_experts(Weights& weights, const std::string& folder, const std::string& suffix) {
  for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
    weights[fmt::format("model.layers.1.mlp.{}.{}{}", folder, part, suffix)] = stack(weights, part);
  }
}

void fuse_experts(Weights& weights) {
  const Weight gate = stack(weights, "gate_proj");
  const Weight up = stack(weights, "up_proj");
  Weight both{{8, 64, 64}, {}};
  for (int64_t expert = 0; expert < 8; ++expert) {
    for (const Weight* half : {&gate, &up}) {
      const auto begin = half->values.begin() + expert * 32 * 64;
      both.values.insert(both.values.end(), begin, begin + 32 * 64);
    }
  }
  weights["model.layers.1.mlp.experts.gate_up_proj"] = both;
  weights["model.layers.1.mlp.experts.down_proj"] = stack(weights, "down_proj");
}

TEST(CheckpointNames, EverySpellingGivesTheSameLogits) {
  const std::vector<float> expected = published_logits();
  ASSERT_FALSE(expected.empty());
  const std::pair<const char*, std::function<void(Weights&)>> variants[] = {
      {"embed_tokens", [](Weights& w) { rename(w, "word_embeddings", "embed_tokens"); }},
      {"o_proj", [](Weights& w) { rename(w, "attention.dense", "self_attn.o_proj"); }},
      {"q_norm",
       [](Weights& w) {
         rename(w, "attention.query_layernorm", "self_attn.q_norm");
         rename(w, "attention.key_layernorm", "self_attn.k_norm");
       }},
      {"c_attn", [](Weights& w) { rename(w, "attention.query_key_value", "self_attn.c_attn"); }},
      {"split q, k, v", split_qkv},
      {"e_score_correction_bias", [](Weights& w) { rename(w, "gate.expert_bias", "gate.e_score_correction_bias"); }},
      {"bias outside the gate", [](Weights& w) { rename(w, "gate.expert_bias", "e_score_correction_bias"); }},
      {"shared_expert", [](Weights& w) { rename(w, "shared_experts", "shared_expert"); }},
      {"stacked experts", [](Weights& w) { stack_experts(w, "experts", ".weight"); }},
      {"switch_mlp", [](Weights& w) { stack_experts(w, "switch_mlp", ".weight"); }},
      {"gate_up_proj", fuse_experts},
      {"inv_freq is passed over",
       [](Weights& w) {
         w["model.layers.0.attention.rotary_emb.inv_freq"] = {{8}, std::vector<float>(8)};
       }},
  };
  for (const auto& [name, change] : variants) {
    Weights weights = seeded_weights(kMoe);
    change(weights);
    const TempFolder folder;
    write_folder(folder, kMoe, weights);
    EXPECT_EQ(logits_of(folder), expected) << name;
  }
}

TEST(CheckpointNames, ShardsAndPrecisions) {
  const std::vector<float> expected = published_logits();
  const Weights weights = seeded_weights(kMoe);
  const TempFolder shards;
  write_folder(shards, kMoe, weights, DataFormat::kF32, 20'000);
  EXPECT_EQ(logits_of(shards), expected);
  for (const DataFormat format : {DataFormat::kF16, DataFormat::kBF16}) {
    const TempFolder folder;
    write_folder(folder, kMoe, weights, format);
    const std::vector<float> rounded = logits_of(folder);
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      worst = std::max(worst, std::fabs(double{rounded[i]} - expected[i]));
    }
    EXPECT_GT(worst, 0);
    EXPECT_LT(worst, 0.2);
  }
}

// Rows filled with their own number: whichever block of the fused matrix they went to shows.
TEST(CheckpointNames, FusedRowsAreQThenKThenV) {
  Weights weights = seeded_weights(kMoe);
  Weight& fused = weights.at("model.layers.0.attention.query_key_value.weight");
  for (int64_t row = 0; row < fused.shape[0]; ++row) {
    std::fill_n(fused.values.begin() + row * 64, 64, static_cast<float>(row) * 1e-4f);
  }
  const TempFolder whole;
  write_folder(whole, kMoe, weights);
  split_qkv(weights);
  const TempFolder split;
  write_folder(split, kMoe, weights);
  EXPECT_EQ(logits_of(split), logits_of(whole));
  std::swap(weights.at("model.layers.0.self_attn.k_proj.weight"), weights.at("model.layers.0.self_attn.v_proj.weight"));
  const TempFolder swapped;
  write_folder(swapped, kMoe, weights);
  EXPECT_NE(logits_of(swapped), logits_of(whole));
}

void expect_error(const TempFolder& folder, std::initializer_list<std::string_view> words) {
  const auto model = load_folder(folder);
  ASSERT_FALSE(model.ok());
  for (const std::string_view word : words) {
    EXPECT_NE(model.error().message.find(word), std::string::npos) << word << " not in: " << model.error().message;
  }
}

TEST(CheckpointNames, FaultsOfAFolderAreNamed) {
  const auto changed = [](const std::function<void(Weights&)>& change, std::initializer_list<std::string_view> words) {
    Weights weights = seeded_weights(kMoe);
    change(weights);
    const TempFolder folder;
    write_folder(folder, kMoe, weights);
    expect_error(folder, words);
  };
  for (const char* name : {"model.norm.weight", "lm_head.weight", "model.layers.1.mlp.experts.5.up_proj.weight",
                           "model.layers.1.mlp.gate.expert_bias"}) {
    changed([&](Weights& w) { w.erase(name); }, {name, "missing"});
  }
  changed([](Weights& w) { w["model.embed_tokens.weight"] = w.at("model.word_embeddings.weight"); },
          {"model.word_embeddings.weight", "model.embed_tokens.weight", "two spellings"});
  changed(
      [](Weights& w) {
        w["model.layers.1.mlp.experts.8.up_proj.weight"] = {{32, 64}, std::vector<float>(32 * 64)};
      },
      {"model.layers.1.mlp.experts.8.up_proj.weight", "not part"});
  changed(
      [](Weights& w) {
        w["model.layers.2.input_layernorm.weight"] = {{64}, std::vector<float>(64)};
      },
      {"model.layers.2.input_layernorm.weight"});
  changed(
      [](Weights& w) {
        w.at("model.layers.1.mlp.gate.weight").shape = {64, 8};
      },
      {"model.layers.1.mlp.gate.weight", "(64, 8)", "(8, 64)"});
  changed([](Weights& w) { w.at("model.layers.1.mlp.gate.expert_bias").values[3] = NAN; },
          {"model.layers.1.mlp.gate.expert_bias", "finite"});
}

TEST(CheckpointNames, ConfigAndWeightsMustAgree) {
  const auto with_config = [](std::string_view from, std::string_view to,
                              std::initializer_list<std::string_view> words) {
    std::string config = kMoe;
    config.replace(config.find(from), from.size(), to);
    const TempFolder folder;
    write_folder(folder, config, seeded_weights(kMoe));
    expect_error(folder, words);
  };
  with_config("\"vocab_size\": 64", "\"vocab_size\": 65", {"word_embeddings", "(64, 64)", "(65, 64)"});
  with_config("\"num_experts\": 8", "\"num_experts\": 9", {"mlp.gate.weight", "(8, 64)", "(9, 64)"});
  with_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", {"model.layers.2."});
  with_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", {"model.layers.1."});
  with_config("\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 9", {"config.json", "num_experts_per_tok"});
  with_config("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", {"num_attention_heads"});
  with_config("\"rope_theta\": 8000000", "\"rope_scaling\": {\"rope_type\": \"longrope\"}",
              {"rope_scaling", "longrope"});
  with_config("\"rope_theta\": 8000000", "\"use_qkv_bias\": true", {"use_qkv_bias"});
  with_config("\"rope_theta\": 8000000", "\"score_function\": \"softmax\"", {"score_function", "softmax"});
  with_config("\"model_type\": \"sarvam_moe\"", "\"model_type\": \"llama\"", {"model_type", "llama"});
  with_config("SarvamMoEForCausalLM", "NovelForCausalLM", {"architectures", "NovelForCausalLM", "known"});
  with_config("\"rope_theta\": 8000000", "\"n_group\": 3", {"n_group"});
}

}  // namespace
}  // namespace vayu::model
