#include "loader/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "loader/safetensors_writer.h"
#include "loader/testing/temp_folder.h"

namespace vayu::loader {
namespace {

using Opened = Result<std::shared_ptr<const Checkpoint>>;

struct Declared {
  std::string name;
  std::vector<int64_t> shape;
  DataFormat format;
  std::vector<float> values;
};

std::vector<float> ramp(int64_t n, float from = 0) {
  std::vector<float> out(n);
  for (int64_t i = 0; i < n; ++i) out[i] = from + static_cast<float>(i % 16) * 0.25f;
  return out;
}

void write(const TempFolder& folder, const std::vector<Declared>& declared, int64_t max_shard_bytes = 1 << 30) {
  std::vector<CheckpointTensor> tensors;
  for (const Declared& t : declared) tensors.push_back({t.name, t.shape, t.format});
  auto writer = SafetensorsWriter::create(folder.path(), tensors, max_shard_bytes);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  for (size_t i = 0; i < declared.size(); ++i) {
    const int64_t stride = row_bytes(tensors[i].format, tensors[i].cols());
    std::vector<std::byte> row(stride);
    for (int64_t r = 0; r < tensors[i].rows(); ++r) {
      quantize_row(tensors[i].format, declared[i].values.data() + r * tensors[i].cols(), row.data(), tensors[i].cols());
      ASSERT_TRUE(writer->write_rows(i, r, 1, row.data()).ok());
    }
  }
  const Status status = writer->finish();
  ASSERT_TRUE(status.ok()) << status.error().message;
}

std::vector<float> read(const Checkpoint& checkpoint, std::string_view name, int64_t step = 1 << 20) {
  const CheckpointTensor* tensor = checkpoint.find_tensor(name);
  if (!tensor) return {};
  std::vector<float> out(tensor->rows() * tensor->cols());
  std::vector<std::byte> staging(tensor->bytes);
  for (int64_t row = 0; row < tensor->rows(); row += step) {
    const int64_t rows = std::min(step, tensor->rows() - row);
    EXPECT_TRUE(checkpoint.read_floats(*tensor, row, rows, staging.data(), out.data() + row * tensor->cols()).ok());
  }
  return out;
}

const std::vector<Declared> kModel = {{"a", {2, 8}, DataFormat::kF32, ramp(16)},
                                      {"b", {4, 4}, DataFormat::kBF16, ramp(16, 1)},
                                      {"c", {16}, DataFormat::kF16, ramp(16, 2)}};

TEST(Safetensors, SingleFile) {
  const TempFolder folder;
  write(folder, kModel);
  const Opened opened = open_safetensors(folder.path(), {});
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const Checkpoint& checkpoint = **opened;
  EXPECT_EQ(checkpoint.tensors().size(), 3u);
  for (const Declared& t : kModel) {
    EXPECT_EQ(read(checkpoint, t.name, 1), t.values) << t.name;
    EXPECT_EQ(checkpoint.find_tensor(t.name)->format, t.format);
    EXPECT_FALSE(checkpoint.has_scales(*checkpoint.find_tensor(t.name)));
  }
  EXPECT_EQ(checkpoint.find_tensor("d"), nullptr);
  EXPECT_TRUE(checkpoint.check_unchanged().ok());
}

class Shards : public testing::Test {
 protected:
  void SetUp() override { write(folder_, kModel, 64); }
  Opened open() const { return open_safetensors(folder_.path(), {}); }
  void replace_in_index(std::string_view from, std::string_view to) const {
    std::string text = folder_.read("model.safetensors.index.json");
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << text;
    folder_.write("model.safetensors.index.json", text.replace(at, from.size(), to));
  }
  static constexpr const char* kFirst = "model-00001-of-00002.safetensors";
  static constexpr const char* kSecond = "model-00002-of-00002.safetensors";
  TempFolder folder_;
};

TEST_F(Shards, AreOneCheckpoint) {
  const Opened opened = open();
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  for (const Declared& t : kModel) EXPECT_EQ(read(**opened, t.name), t.values);
}

TEST_F(Shards, MissingRenamedCut) {
  const std::string first = folder_.read(kFirst);
  folder_.remove(kFirst);
  expect_fault(open(), ErrorKind::kIo, {kFirst, "missing"});
  folder_.write("model-00007-of-00002.safetensors", first);
  expect_fault(open(), ErrorKind::kIo, {kFirst, "missing"});
  folder_.remove("model-00007-of-00002.safetensors");
  for (const size_t size : {first.size() - 1, first.size() - 40, size_t{30}, size_t{8}, size_t{3}}) {
    folder_.write(kFirst, first.substr(0, size));
    expect_fault(open(), ErrorKind::kCorrupt, {kFirst});
  }
  folder_.write(kFirst, "");
  expect_fault(open(), ErrorKind::kCorrupt, {kFirst, "empty"});
  folder_.write(kFirst, first + "x");
  expect_fault(open(), ErrorKind::kCorrupt, {kFirst, "holds"});
  folder_.write(kFirst, folder_.read(kSecond));  // swapped
  expect_fault(open(), ErrorKind::kCorrupt, {kFirst, "is not where"});
}

TEST_F(Shards, IndexAndShardsContradict) {
  const std::string index = folder_.read("model.safetensors.index.json");
  replace_in_index("\"a\": \"model-00001", "\"a\": \"model-00002");
  expect_fault(open(), ErrorKind::kCorrupt, {"'a'", "index"});
  folder_.write("model.safetensors.index.json", index);
  replace_in_index("\"b\"", "\"z\"");
  expect_fault(open(), ErrorKind::kCorrupt, {"'b'", "is not where"});
  folder_.write("model.safetensors.index.json", index);
  replace_in_index("\"c\"", std::string("\"z\": \"") + kSecond + "\", \"c\"");
  expect_fault(open(), ErrorKind::kCorrupt, {kSecond, "'z'", "missing"});
  folder_.write("model.safetensors.index.json", index);
  folder_.write("model-00003-of-00003.safetensors", folder_.read(kSecond));
  expect_fault(open(), ErrorKind::kCorrupt, {"model-00003-of-00003", "not listed"});
  folder_.remove("model-00003-of-00003.safetensors");
  folder_.write("adapter_model.safetensors", "not ours");
  EXPECT_TRUE(open().ok());
  folder_.write("model.safetensors", folder_.read(kSecond));
  expect_fault(open(), ErrorKind::kCorrupt, {"model.safetensors", "not listed"});
}

TEST_F(Shards, OneTensorInTwoShards) {
  folder_.write(kSecond, safetensors_file(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                          R"("c":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                          "dd"));
  expect_fault(open(), ErrorKind::kCorrupt, {kSecond, "'a'", "also stands in", kFirst});
}

TEST_F(Shards, WithoutIndex) {
  folder_.remove("model.safetensors.index.json");
  expect_fault(open(), ErrorKind::kCorrupt, {kFirst, "index.json is missing"});
}

TEST_F(Shards, IndexOfOtherShapes) {
  for (const char* text : {"", "[]", "{}", "{\"weight_map\":[]}", "{\"weight_map\":{}}", "{\"weight_map\":{\"a\":1}}",
                           "{\"model_type\":\"llama\"}", "{\"weight_map\":{\"a\":\"x.safetensors\"},"}) {
    folder_.write("model.safetensors.index.json", text);
    expect_fault(open(), ErrorKind::kCorrupt, {"model.safetensors.index.json"});
  }
}

TEST_F(Shards, NamesThatAreNotOfTheFolder) {
  for (const std::string name : {"../x.safetensors", "/etc/x.safetensors", "a\\\\b.safetensors", "x\\u0000.safetensors",
                                 ".x.safetensors", "%2e%2e/x.safetensors", "", ".", "x.bin", "config.json"}) {
    folder_.write("model.safetensors.index.json", fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", name));
    expect_fault(open(), ErrorKind::kCorrupt, {"index.json", "no name of a shard"});
  }
  folder_.write("model.safetensors.index.json",
                fmt::format(R"({{"weight_map":{{"a":"{}.safetensors"}}}})", std::string(5000, 'x')));
  expect_fault(open(), ErrorKind::kCorrupt, {"index.json", "no name of a shard"});
}

TEST_F(Shards, LinksAndDevices) {
  const TempFolder outside;
  outside.write("w.safetensors", folder_.read(kFirst));
  std::filesystem::rename(folder_ / kFirst, folder_ / "inside");
  std::filesystem::create_symlink("inside", folder_ / kFirst);
  EXPECT_TRUE(open().ok());
  for (const std::string& target : {outside / "w.safetensors", std::string("/dev/zero"), std::string("/nonexistent")}) {
    folder_.remove(kFirst);
    std::filesystem::create_symlink(target, folder_ / kFirst);
    const Opened opened = open();
    ASSERT_FALSE(opened.ok()) << target;
    EXPECT_NE(opened.error().message.find(kFirst), std::string::npos) << opened.error().message;
  }
}

TEST_F(Shards, CutOrReplacedAfterOpen) {
  const Opened opened = open();
  ASSERT_TRUE(opened.ok());
  ASSERT_EQ(::truncate((folder_ / kFirst).c_str(), 16), 0);
  const CheckpointTensor& tensor = *(*opened)->find_tensor("a");
  std::vector<std::byte> bytes(tensor.bytes);
  expect_fault((*opened)->read_rows(tensor, 0, 2, bytes.data()), ErrorKind::kIo, {kFirst, "'a'"});
  expect_fault((*opened)->check_unchanged(), ErrorKind::kIo, {kFirst});
}

TEST(Safetensors, DtypesThatAreNoWeights) {
  for (const char* dtype : {"F64", "I64", "U64"}) {
    const TempFolder folder;
    const auto file = [&](std::string_view name) {
      return safetensors_file(fmt::format(R"({{"{}":{{"dtype":"{}","shape":[1],"data_offsets":[0,8]}}}})", name, dtype),
                              "12345678");
    };
    folder.write("model.safetensors", file("q.weight_packed"));
    expect_fault(open_safetensors(folder.path(), {}), ErrorKind::kUnsupported, {"'q.weight_packed'", dtype});
    folder.write("model.safetensors", file("model.layers.0.self_attn.rotary_emb.inv_freq"));
    const Opened opened = open_safetensors(folder.path(), {});
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    EXPECT_TRUE((*opened)->tensors().empty());
  }
}

TEST(Safetensors, WeightWithoutElements) {
  const TempFolder folder;
  folder.write("model.safetensors", safetensors_file(R"({"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", ""));
  expect_fault(open_safetensors(folder.path(), {}), ErrorKind::kCorrupt, {"'w'", "without elements"});
}

// FP8 weights of 5 x 7, and of a stack of two, in blocks of 2 x 3.
constexpr ScaleBlocks kBlocks{.rows = 2, .cols = 3};

struct ScaleCase {
  const char* name;
  std::vector<int64_t> weight;
  std::vector<int64_t> scale;
  int64_t (*index)(int64_t matrix, int64_t row, int64_t col);  // of the scale
};

const ScaleCase kScaleCases[] = {
    {"scalar", {5, 7}, {}, [](int64_t, int64_t, int64_t) { return int64_t{0}; }},
    {"one", {5, 7}, {1}, [](int64_t, int64_t, int64_t) { return int64_t{0}; }},
    {"rows", {5, 7}, {5}, [](int64_t, int64_t r, int64_t) { return r; }},
    {"rows_1", {5, 7}, {5, 1}, [](int64_t, int64_t r, int64_t) { return r; }},
    {"blocks", {5, 7}, {3, 3}, [](int64_t, int64_t r, int64_t c) { return r / 2 * 3 + c / 3; }},
    {"stack_one", {2, 5, 7}, {1}, [](int64_t, int64_t, int64_t) { return int64_t{0}; }},
    {"stack_each", {2, 5, 7}, {2}, [](int64_t m, int64_t, int64_t) { return m; }},
    {"stack_each_1_1", {2, 5, 7}, {2, 1, 1}, [](int64_t m, int64_t, int64_t) { return m; }},
    {"stack_rows", {2, 5, 7}, {2, 5, 1}, [](int64_t m, int64_t r, int64_t) { return m * 5 + r; }},
    {"stack_blocks", {2, 5, 7}, {2, 3, 3}, [](int64_t m, int64_t r, int64_t c) { return m * 9 + r / 2 * 3 + c / 3; }},
};

int64_t count(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  return n;
}

TEST(Safetensors, Fp8ScalesOfEveryShapeAndSpelling) {
  for (const ScaleCase& c : kScaleCases) {
    for (const DataFormat format : {DataFormat::kF8E4M3, DataFormat::kF8E5M2}) {
      for (const DataFormat scale_format : {DataFormat::kF32, DataFormat::kBF16, DataFormat::kF16}) {
        for (const char* spelling : {"w.weight_scale", "w.weight_scale_inv"}) {
          SCOPED_TRACE(fmt::format("{} {} {}", c.name, spelling, format_info(scale_format).name));
          const TempFolder folder;
          std::vector<float> scales(count(c.scale));
          for (size_t i = 0; i < scales.size(); ++i) scales[i] = 0.25f * static_cast<float>(i + 1);
          const std::vector<float> stored = ramp(count(c.weight), -2);  // exact in both formats' three upper bits
          write(folder, {{"w.weight", c.weight, format, stored}, {spelling, c.scale, scale_format, scales}});
          const Opened opened = open_safetensors(folder.path(), kBlocks);
          ASSERT_TRUE(opened.ok()) << opened.error().message;
          ASSERT_EQ((*opened)->tensors().size(), 1u);
          EXPECT_TRUE((*opened)->has_scales((*opened)->tensors()[0]));
          std::vector<float> expected(stored.size());
          std::vector<std::byte> code(1);
          for (size_t i = 0; i < stored.size(); ++i) {
            quantize_row(format, &stored[i], code.data(), 1);
            dequantize_row(format, code.data(), &expected[i], 1);
            expected[i] *= scales[c.index(i / 35, i / 7 % 5, i % 7)];
          }
          EXPECT_EQ(read(**opened, "w.weight"), expected);
          EXPECT_EQ(read(**opened, "w.weight", 2), expected);
        }
      }
    }
  }
}

TEST(Safetensors, PartsKeepTheirOwnScales) {
  const TempFolder folder;
  const std::vector<float> ones(6, 1);
  write(folder, {{"gate.weight", {2, 3}, DataFormat::kF8E4M3, ones},
                 {"gate.weight_scale", {}, DataFormat::kF32, {0.5}},
                 {"gate.input_scale", {}, DataFormat::kF32, {0}},
                 {"up.weight", {2, 3}, DataFormat::kF8E4M3, ones},
                 {"up.weight_scale", {}, DataFormat::kF32, {2}},
                 {"attn.k_scale", {}, DataFormat::kF32, {7}},
                 {"fused.weight", {4, 3}, DataFormat::kF8E4M3, std::vector<float>(12, 1)},
                 {"fused.weight_scale", {4, 1}, DataFormat::kF32, {0.5, 0.5, 2, 2}}});
  const Opened opened = open_safetensors(folder.path(), {});
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_EQ((*opened)->tensors().size(), 3u);
  EXPECT_EQ(read(**opened, "gate.weight"), std::vector<float>(6, 0.5));
  EXPECT_EQ(read(**opened, "up.weight"), std::vector<float>(6, 2));
  EXPECT_EQ(read(**opened, "fused.weight"), (std::vector<float>{.5, .5, .5, .5, .5, .5, 2, 2, 2, 2, 2, 2}));
}

void expect_scale_fault(const std::vector<Declared>& tensors, ErrorKind kind, std::string_view name,
                        std::string_view word) {
  const TempFolder folder;
  write(folder, tensors);
  expect_fault(open_safetensors(folder.path(), kBlocks), kind, {"model.safetensors", name, word});
}

TEST(Safetensors, UnusableScales) {
  const Declared weight = {"w", {5, 7}, DataFormat::kF8E4M3, std::vector<float>(35, 1)};
  const auto scale = [](std::vector<int64_t> shape, std::vector<float> values, std::string name = "w_scale") {
    return Declared{std::move(name), std::move(shape), DataFormat::kF32, std::move(values)};
  };
  expect_scale_fault({weight}, ErrorKind::kCorrupt, "'w'", "without a scale");
  for (const float bad : {0.0f, -1.0f, NAN, INFINITY}) {
    expect_scale_fault({weight, scale({}, {bad})}, ErrorKind::kCorrupt, "'w_scale'", "not usable");
    expect_scale_fault({weight, scale({5}, {1, 1, bad, 1, 1})}, ErrorKind::kCorrupt, "'w_scale'", "scale 2 is");
  }
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{7}, {1, 7}, {2, 3}, {3, 2}, {5, 7}}) {
    const std::vector<float> values(count(shape), 1);
    expect_scale_fault({weight, scale(shape, values)}, ErrorKind::kCorrupt, "'w_scale'", "fits neither");
  }
  expect_scale_fault({weight, scale({}, {1}), scale({}, {1}, "w_scale_inv")}, ErrorKind::kCorrupt, "'w_scale_inv'",
                     "two scales");
  expect_scale_fault({scale({}, {1})}, ErrorKind::kCorrupt, "'w_scale'", "without its weight");
  expect_scale_fault({{"w", {1}, DataFormat::kBF16, {1}}, scale({}, {1})}, ErrorKind::kUnsupported, "'w_scale'",
                     "BF16");
  expect_scale_fault({weight, {"w_scale", {}, DataFormat::kF8E4M3, {1}}}, ErrorKind::kUnsupported, "'w_scale'",
                     "F8_E4M3");
}

TEST(SafetensorsWriter, RefusesWhatItCannotKeep) {
  const TempFolder folder;
  expect_fault(SafetensorsWriter::create(folder.path(), {{"q", {1, 32}, DataFormat::kQ8_0}}), ErrorKind::kUnsupported,
               {"'q'", "Q8_0"});
  expect_fault(SafetensorsWriter::create(folder.path(), {{"a", {2}, DataFormat::kF32}, {"a", {2}, DataFormat::kF32}}),
               ErrorKind::kInvalidArgument, {"'a'", "twice"});
  expect_fault(SafetensorsWriter::create(folder / "nothing", {}), ErrorKind::kIo, {"nothing"});
  folder.write("model.safetensors", "old");
  expect_fault(SafetensorsWriter::create(folder.path(), {}), ErrorKind::kInvalidArgument, {"already"});
  EXPECT_EQ(folder.read("model.safetensors"), "old");
}

TEST(SafetensorsWriter, LeavesNothingBehindUnfinished) {
  const TempFolder folder;
  {
    auto writer = SafetensorsWriter::create(folder.path(), {{"a", {2, 2}, DataFormat::kF32}});
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->write_rows(0, 1, 1, std::vector<std::byte>(8).data()).ok());
    EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors"));
    expect_fault(writer->finish(), ErrorKind::kInvalidArgument, {"8 bytes were not written"});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace vayu::loader
