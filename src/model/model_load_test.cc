// What a checkpoint may get wrong: each fault is an error that names the file and the thing, before or during the load.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>

#include "model/model.h"
#include "model/registry.h"
#include "model/testing/load_gguf.h"
#include "model/testing/tiny_llama.h"

namespace vayu::model {
namespace {

using testing::TinyLlama;

ModelLoadOptions reference_options() {
  ModelLoadOptions options;
  options.ops.backend = ops::Backend::kReference;
  options.num_pages = 4;
  return options;
}

Result<std::unique_ptr<Model>> load(const std::vector<std::byte>& bytes, const ModelLoadOptions& options) {
  const auto file = loader::GgufFile::parse(bytes, "tiny.gguf");
  EXPECT_TRUE(file.ok());
  return testing::load_gguf(**file, options);
}

void expect_error(TinyLlama spec, ErrorKind kind, std::initializer_list<std::string_view> words) {
  const auto model = load(spec.build(), reference_options());
  ASSERT_FALSE(model.ok());
  const Error& error = model.error();
  EXPECT_EQ(error.kind, kind) << error.message;
  EXPECT_EQ(error.message.rfind("tiny.gguf: ", 0), 0u) << error.message;
  for (const std::string_view word : words) EXPECT_NE(error.message.find(word), std::string::npos) << error.message;
}

TinyLlama with(std::function<void(loader::GgufWriter&)> extra) {
  TinyLlama spec;
  spec.extra = std::move(extra);
  return spec;
}

TEST(ModelLoad, EachMissingTensorIsNamed) {
  TinyLlama complete;
  complete.build();
  for (const auto& [name, values] : complete.weights) {
    TinyLlama spec;
    spec.without = name;
    expect_error(spec, ErrorKind::kCorrupt, {name, "missing"});
  }
}

TEST(ModelLoad, UnexpectedTensorsAreNamed) {
  const std::vector<float> bias(64, 0.0f);
  expect_error(
      with([&](auto& w) { w.add_tensor("blk.1.attn_q.bias", std::vector<int64_t>{64}, DataFormat::kF32, bias); }),
      ErrorKind::kUnsupported, {"blk.1.attn_q.bias", "llama"});
  TinyLlama fewer_layers;
  fewer_layers.extra = [](auto& w) {
    w.add_tensor("blk.2.attn_norm.weight", std::vector<int64_t>{64}, DataFormat::kF32, std::vector<float>(64, 1.0f));
  };
  expect_error(fewer_layers, ErrorKind::kUnsupported, {"blk.2.attn_norm.weight"});
}

TEST(ModelLoad, ShapesAreChecked) {
  TinyLlama spec;
  spec.without = "blk.0.ffn_down.weight";
  spec.extra = [](auto& w) {
    w.add_tensor("blk.0.ffn_down.weight", std::vector<int64_t>{96, 64}, DataFormat::kF32, std::vector<float>(96 * 64));
  };
  expect_error(spec, ErrorKind::kCorrupt, {"blk.0.ffn_down.weight", "(96, 64)", "(64, 96)"});
}

TEST(ModelLoad, NonFiniteNormsAreRefused) {
  TinyLlama spec;
  spec.without = "blk.1.ffn_norm.weight";
  spec.extra = [](auto& w) {
    std::vector<float> norm(64, 1.0f);
    norm[17] = std::numeric_limits<float>::quiet_NaN();
    w.add_tensor("blk.1.ffn_norm.weight", std::vector<int64_t>{64}, DataFormat::kF32, norm);
  };
  expect_error(spec, ErrorKind::kCorrupt, {"blk.1.ffn_norm.weight", "finite"});
}

TEST(ModelLoad, UnknownKeysAndKindsAreNamed) {
  expect_error(with([](auto& w) { w.add_u32("llama.attention.sliding_window", 64); }), ErrorKind::kUnsupported,
               {"llama.attention.sliding_window"});
  expect_error(with([](auto& w) { w.add_u32("llama.expert_count", 8); }), ErrorKind::kUnsupported,
               {"llama.expert_count"});
  expect_error(with([](auto& w) { w.add_bool("llama.attention.causal", false); }), ErrorKind::kUnsupported, {"causal"});
  for (const char* kind : {"longrope", "dynamic", "su", ""}) {
    expect_error(with([&](auto& w) { w.add_string("llama.rope.scaling.type", kind); }), ErrorKind::kUnsupported,
                 {"llama.rope.scaling.type"});
  }
  expect_error(with([](auto& w) { w.add_string("llama.rope.scaling.type", "yarn"); }), ErrorKind::kCorrupt,
               {"llama.rope.scaling.factor", "missing"});
  expect_error(with([](auto& w) { w.add_u32("llama.vocab_size", 81); }), ErrorKind::kCorrupt,
               {"llama.vocab_size", "80"});
}

TEST(ModelLoad, ImpossibleNumbersAreNamed) {
  const auto changed = [](auto&& change) {
    TinyLlama spec;
    change(spec);
    return spec;
  };
  expect_error(changed([](TinyLlama& s) { s.kv_heads = 3; }), ErrorKind::kCorrupt, {"llama.attention.head_count"});
  expect_error(changed([](TinyLlama& s) { s.context = 0; }), ErrorKind::kCorrupt, {"llama.context_length"});
  expect_error(changed([](TinyLlama& s) { s.rope_base = 0; }), ErrorKind::kCorrupt, {"RoPE", "base"});
  expect_error(changed([](TinyLlama& s) { s.rotary_dim = 7; }), ErrorKind::kCorrupt, {"llama.rope.dimension_count"});
  expect_error(changed([](TinyLlama& s) { s.rotary_dim = 32; }), ErrorKind::kCorrupt, {"llama.rope.dimension_count"});
}

TEST(ModelLoad, UnknownArchitecture) {
  for (const char* name : {"gpt2", "", "llama\x1b"}) {
    loader::GgufWriter writer;
    writer.add_string("general.architecture", name);
    const auto bytes = writer.bytes();
    const auto file = loader::GgufFile::parse(bytes, "x.gguf");
    ASSERT_TRUE(file.ok());
    const auto recipe = recipe_of(**file);
    ASSERT_FALSE(recipe.ok());
    EXPECT_EQ(recipe.error().kind, ErrorKind::kUnsupported);
    EXPECT_NE(recipe.error().message.find("known: llama"), std::string::npos);
    EXPECT_EQ(recipe.error().message.find('\x1b'), std::string::npos);
  }
}

TEST(ModelLoad, OptionsAreChecked) {
  TinyLlama spec;
  const auto bytes = spec.build();
  const auto expect_field = [&](std::string_view field, auto&& change) {
    ModelLoadOptions options = reference_options();
    change(options);
    const auto model = load(bytes, options);
    ASSERT_FALSE(model.ok()) << field;
    EXPECT_EQ(model.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_EQ(model.error().field, field);
  };
  expect_field("num_pages", [](auto& o) { o.num_pages = 0; });
  expect_field("num_pages", [](auto& o) { o.num_pages = INT32_MAX; });
  expect_field("page_size", [](auto& o) { o.page_size = 0; });
  expect_field("max_step_tokens", [](auto& o) { o.max_step_tokens = 0; });
  expect_field("max_rows", [](auto& o) { o.max_rows = o.max_step_tokens + 1; });
  expect_field("max_logits", [](auto& o) { o.max_logits = 0; });
  expect_field("max_context", [](auto& o) { o.max_context = 257; });
}

TEST(ModelLoad, FileCutBetweenOpenAndLoadIsAnError) {
  TinyLlama spec;
  const auto bytes = spec.build();
  char path[] = "/tmp/vayu_model_test_XXXXXX";
  const int fd = ::mkstemp(path);
  ASSERT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  const auto file = loader::GgufFile::open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(testing::load_gguf(**file, reference_options()).ok());
  ASSERT_EQ(::ftruncate(fd, static_cast<off_t>(bytes.size() / 2)), 0);
  const auto model = testing::load_gguf(**file, reference_options());
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().kind, ErrorKind::kIo);
  ::close(fd);
  ::unlink(path);
}

// Any single byte of the header changed: an error or a model, never a crash (run under sanitisers in CI).
TEST(ModelLoad, DamagedHeadersNeverCrash) {
  TinyLlama spec;
  spec.layers = 1;
  spec.vocab = 8;
  const auto good = spec.build();
  constexpr size_t kHeaderBytes = 1100;  // beyond it lie the weights
  int loaded = 0;
  for (size_t at = 0; at < kHeaderBytes; ++at) {
    auto bytes = good;
    bytes[at] ^= static_cast<std::byte>(1 << (at % 8));
    const auto file = loader::GgufFile::parse(bytes, "damaged.gguf");
    if (file.ok() && testing::load_gguf(**file, reference_options()).ok()) ++loaded;
  }
  EXPECT_LT(loaded, 120);  // a few bytes carry no structure: the name, low bits of the base and of the epsilon
}

}  // namespace
}  // namespace vayu::model
