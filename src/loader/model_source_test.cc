#include "loader/model_source.h"

#include <gtest/gtest.h>

#include "loader/gguf_writer.h"
#include "loader/quantization_config.h"
#include "loader/safetensors_writer.h"
#include "loader/testing/temp_folder.h"

namespace vayu::loader {
namespace {

constexpr std::string_view kConfig = R"({"model_type":"llama"})";

void write_weights(const TempFolder& folder) {
  auto writer = SafetensorsWriter::create(folder.path(), {{"w", {4}, DataFormat::kF32}});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->write_rows(0, 0, 1, std::vector<float>(4, 1).data()).ok());
  ASSERT_TRUE(writer->finish().ok());
}

void write_gguf(const std::string& path, uint32_t parts = 1) {
  GgufWriter writer;
  writer.add_string("general.architecture", "llama");
  if (parts > 1) writer.add_u32("split.count", parts);
  writer.add_tensor("w", std::vector<int64_t>{4}, DataFormat::kF32, std::vector<float>(4, 1));
  ASSERT_TRUE(writer.write(path).ok());
}

class ModelFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_.write("config.json", kConfig);
    write_weights(folder_);
  }
  Result<ModelSource> open(bool weights = true) const { return open_model(folder_.path(), {.weights = weights}); }
  TempFolder folder_;
};

TEST_F(ModelFolder, Minimal) {
  const auto source = open();
  ASSERT_TRUE(source.ok()) << source.error().message;
  EXPECT_NE(source->weights->find_tensor("w"), nullptr);
  EXPECT_EQ(source->gguf, nullptr);
  EXPECT_EQ(source->config_text, kConfig);
  EXPECT_EQ(*source->config->text("model_type"), "llama");
  EXPECT_TRUE(source->tokenizer_json.empty());
  EXPECT_TRUE(source->chat_template.empty());
}

TEST_F(ModelFolder, TextsAreRead) {
  folder_.write("generation_config.json", R"({"eos_token_id":1})");
  folder_.write("tokenizer_config.json", R"({"chat_template":"from tokenizer_config"})");
  folder_.write("tokenizer.json", "{}");
  auto source = open();
  ASSERT_TRUE(source.ok()) << source.error().message;
  EXPECT_EQ(source->generation_config, R"({"eos_token_id":1})");
  EXPECT_EQ(source->tokenizer_json, folder_ / "tokenizer.json");
  EXPECT_EQ(source->chat_template, "from tokenizer_config");
  folder_.write("chat_template.json", R"({"chat_template":[{"name":"tool_use","template":"t"},)"
                                      R"({"name":"default","template":"from list"}]})");
  EXPECT_EQ(open()->chat_template, "from list");
  folder_.write("chat_template.jinja", "from jinja");
  EXPECT_EQ(open()->chat_template, "from jinja");
}

TEST_F(ModelFolder, BrokenTextsAreNamed) {
  for (const char* name : {"generation_config.json", "tokenizer_config.json", "chat_template.json", "config.json"}) {
    const std::string before = folder_.read(name);
    folder_.write(name, R"({"cut":)");
    expect_fault(open(), ErrorKind::kCorrupt, {name});
    folder_.write(name, "");
    expect_fault(open(), ErrorKind::kCorrupt, {name, "empty"});
    if (before.empty()) {
      folder_.remove(name);
    } else {
      folder_.write(name, before);
    }
  }
  folder_.write("tokenizer_config.json", R"({"chat_template":5})");
  expect_fault(open(), ErrorKind::kCorrupt, {"tokenizer_config.json", "'chat_template'"});
  folder_.write("tokenizer_config.json", R"({"chat_template":[{"name":"x","template":"y"}]})");
  expect_fault(open(), ErrorKind::kCorrupt, {"tokenizer_config.json", "'chat_template'"});
}

TEST_F(ModelFolder, SwappedFiles) {
  const std::string index = R"({"metadata":{},"weight_map":{"w":"model.safetensors"}})";
  folder_.write("config.json", index);
  expect_fault(open(), ErrorKind::kCorrupt, {"config.json", "'weight_map'", "index"});
  folder_.write("config.json", R"({"bos_token":"x"})");
  expect_fault(open(), ErrorKind::kCorrupt, {"config.json", "'model_type'"});
  folder_.write("config.json", kConfig);
  folder_.write("model.safetensors.index.json", kConfig);
  expect_fault(open(), ErrorKind::kCorrupt, {"model.safetensors.index.json", "'weight_map'"});
  folder_.remove("model.safetensors.index.json");
  folder_.write("model.safetensors", kConfig);
  expect_fault(open(), ErrorKind::kCorrupt, {"model.safetensors", "header length"});
}

TEST_F(ModelFolder, MissingFiles) {
  folder_.remove("config.json");
  expect_fault(open(), ErrorKind::kIo, {"config.json"});
  folder_.write("config.json", kConfig);
  folder_.remove("model.safetensors");
  expect_fault(open(), ErrorKind::kIo, {"no safetensors"});
  folder_.write("pytorch_model.bin", "x");
  expect_fault(open(), ErrorKind::kIo, {"no safetensors", "never read"});
  const auto source = open(false);
  ASSERT_TRUE(source.ok());
  EXPECT_EQ(source->weights, nullptr);
  expect_fault(open_model(folder_ / "nothing"), ErrorKind::kIo, {"nothing"});
  expect_fault(open_model(folder_ / "pytorch_model.bin"), ErrorKind::kUnsupported, {"never read"});
  expect_fault(open_model(folder_ / "x.safetensors"), ErrorKind::kInvalidArgument, {"folder"});
}

TEST_F(ModelFolder, LinksStayInside) {
  const TempFolder outside;
  outside.write("secret", R"({"model_type":"llama"})");
  folder_.remove("config.json");
  std::filesystem::create_symlink(outside / "secret", folder_ / "config.json");
  expect_fault(open(), ErrorKind::kCorrupt, {"config.json", "out of the model's folder"});
  folder_.remove("config.json");
  std::filesystem::create_symlink("/dev/zero", folder_ / "config.json");
  expect_fault(open(), ErrorKind::kCorrupt, {"config.json", "out of the model's folder"});
}

TEST(ModelSource, HubCacheLinksToItsBlobs) {
  const TempFolder cache;
  std::filesystem::create_directories(cache / "snapshots/rev");
  std::filesystem::create_directories(cache / "blobs");
  cache.write("blobs/1", kConfig);
  std::filesystem::create_symlink("../../blobs/1", cache / "snapshots/rev/config.json");
  EXPECT_TRUE(open_model(cache / "snapshots/rev", {.weights = false}).ok());
  cache.write("elsewhere", kConfig);
  std::filesystem::remove(cache / "snapshots/rev/config.json");
  std::filesystem::create_symlink("../../elsewhere", cache / "snapshots/rev/config.json");
  EXPECT_FALSE(open_model(cache / "snapshots/rev", {.weights = false}).ok());
}

TEST(ModelSource, Gguf) {
  const TempFolder folder;
  write_gguf(folder / "m.gguf");
  for (const std::string& path : {folder / "m.gguf", folder.path()}) {
    const auto source = open_model(path);
    ASSERT_TRUE(source.ok()) << source.error().message;
    EXPECT_EQ(source->weights, source->gguf);
    EXPECT_EQ(source->config, nullptr);
  }
  write_gguf(folder / "n.gguf");
  expect_fault(open_model(folder.path()), ErrorKind::kIo, {"more than one .gguf"});
}

TEST(ModelSource, SplitGguf) {
  const TempFolder folder;
  write_gguf(folder / "m-00001-of-00003.gguf");
  expect_fault(open_model(folder / "m-00001-of-00003.gguf"), ErrorKind::kUnsupported, {"split"});
  write_gguf(folder / "renamed.gguf", 3);
  expect_fault(open_model(folder / "renamed.gguf"), ErrorKind::kUnsupported, {"split.count", "3"});
}

Result<ScaleBlocks> blocks(std::string_view quantization) {
  const auto config = JsonConfig::parse(fmt::format(R"({{"quantization_config":{}}})", quantization), "config.json");
  EXPECT_TRUE(config.ok());
  return scale_blocks(**config);
}

TEST(QuantizationConfig, BlockSizes) {
  EXPECT_EQ(blocks("null")->rows, 128);
  const auto fp8 = blocks(R"({"quant_method":"fp8","weight_block_size":[64,32]})");
  ASSERT_TRUE(fp8.ok());
  EXPECT_EQ(fp8->rows, 64);
  EXPECT_EQ(fp8->cols, 32);
  const auto groups =
      blocks(R"({"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"group_0":{"weights":)"
             R"({"num_bits":8,"type":"float","strategy":"block","block_structure":[16,8]}}}})");
  ASSERT_TRUE(groups.ok()) << groups.error().message;
  EXPECT_EQ(groups->rows, 16);
  EXPECT_TRUE(blocks(R"({"quant_method":"modelopt","quant_algo":"FP8"})").ok());
}

TEST(QuantizationConfig, OtherKindsAreNamed) {
  const auto fault = [](std::string_view text, ErrorKind kind, std::string_view field, std::string_view word) {
    expect_fault(blocks(text), kind, {"config.json", field, word});
  };
  fault(R"({"quant_method":"gptq"})", ErrorKind::kUnsupported, "'quantization_config.quant_method'", "gptq");
  fault(R"({})", ErrorKind::kUnsupported, "'quantization_config.quant_method'", "");
  fault(R"({"quant_method":"modelopt","quant_algo":"NVFP4"})", ErrorKind::kUnsupported, "quant_algo", "NVFP4");
  fault(R"({"quant_method":"compressed-tensors","format":"pack-quantized"})", ErrorKind::kUnsupported, "format",
        "pack-quantized");
  fault(R"({"quant_method":"compressed-tensors","config_groups":{"g":{"weights":{"num_bits":4}}}})",
        ErrorKind::kUnsupported, "config_groups.g.weights.num_bits", "4 bits");
  fault(R"({"quant_method":"fp8","weight_block_size":[0,128]})", ErrorKind::kCorrupt, "weight_block_size", "pair");
  fault(R"({"quant_method":"fp8","weight_block_size":[128]})", ErrorKind::kCorrupt, "weight_block_size", "pair");
}

}  // namespace
}  // namespace vayu::loader
