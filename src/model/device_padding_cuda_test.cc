// Decode steps of 1 to 33 rows from graphs of the next captured size, against the same steps kernel by kernel and
// without padding: the results of the rows are the same to the bit, and padding leaves no trace.
//
// To the bit, because nothing that a row's sums depend on changes between a number of rows and the size it is padded
// to. Kernels widen their tiles at 8, 16, 32 and 64 rows, and the router halves its groups of columns at 16 and 32: all
// of them captured sizes. Attention cuts keys into runs of 256, latent attention into tiles of 64, as long as there are
// blocks for all of them, which for these contexts there are.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "loader/json_config.h"
#include "model/device_model.h"
#include "model/dummy_checkpoint.h"
#include "model/registry.h"
#include "model/testing/batch_builder.h"
#include "model/testing/golden.h"
#include "model/testing/open_device_model.h"
#include "ops/cuda/cuda_test_util.h"

namespace vayu::model {
namespace {

using ops::TestRandom;
using ops::unless_short;
using testing::OpenDeviceModel;
using testing::TestSequence;

constexpr int32_t kPages = 320, kMaxRows = 40, kMaxTokens = 512, kMostRows = 33;
constexpr int32_t kCaptured[] = {1, 2, 4, 8, 12, 16, 24, 32, 40};  // of DeviceModel, up to kMaxRows

struct Case {
  const char* config;
  bool f8;  // weights, activations and KV
};

Recipe recipe_of_config(const char* name) {
  const std::string text = testing::read_whole(testing::golden_path(std::string("configs/") + name + ".json"));
  auto recipe = recipe_of(**loader::JsonConfig::parse(text, "config.json"));
  EXPECT_TRUE(recipe.ok()) << recipe.error().message;
  return std::move(*recipe);
}

DeviceModelOptions options_of(const Case& c) {
  DeviceModelOptions options;
  options.f8_weights = c.f8;
  options.kv_format = c.f8 ? ops::DeviceKvFormat::kF8E4M3 : ops::DeviceKvFormat::kBF16;
  options.num_pages = kPages;
  options.max_step_tokens = kMaxTokens;
  options.max_rows = options.max_logits = kMaxRows;
  options.max_context = 256;
  return options;
}

// Sequences over pages of their own among [first_page, end_page), of which they leave some; all but the last token is
// to be computed first. The first page is the first one's.
std::vector<TestSequence> make_sequences(TestRandom& random, int32_t vocab, PageId first_page, PageId end_page) {
  std::vector<PageId> pages(end_page - first_page);
  std::iota(pages.rbegin(), pages.rend(), first_page);
  std::shuffle(pages.begin(), pages.end() - 1, random.engine());
  std::vector<TestSequence> sequences;
  for (int32_t i = 0; i < kMaxRows; ++i) {
    const int64_t edges[] = {17, 16, 2, 1};
    const int64_t length = i < 4 ? edges[i] : random.integer(1, unless_short(90, 20));
    TestSequence& s = sequences.emplace_back();
    for (int64_t t = 0; t < length; ++t) s.tokens.push_back(static_cast<TokenId>(random.integer(0, vocab - 1)));
    for (int64_t p = 0; p * kDevicePageSize < length; ++p) {
      s.pages.push_back(pages.back());
      pages.pop_back();
    }
  }
  return sequences;
}

// Steps that compute all but the last tokens.
std::vector<Batch> prompts_of(std::vector<TestSequence>& sequences) {
  std::vector<Batch> batches(1);
  for (TestSequence& s : sequences) {
    const auto count = static_cast<int32_t>(s.tokens.size()) - 1;
    if (count == 0) continue;
    if (batches.back().num_tokens() + count > kMaxTokens) batches.emplace_back();
    append_row(batches.back(), s, count, kDevicePageSize, false);
  }
  return batches;
}

// The last tokens of some of the sequences, in any order.
Batch decode_batch(TestRandom& random, std::vector<TestSequence> sequences, int32_t rows) {
  std::shuffle(sequences.begin(), sequences.end(), random.engine());
  Batch batch;
  for (int32_t i = 0; i < rows; ++i) append_row(batch, sequences[i], 1, kDevicePageSize, true);
  return batch;
}

// In an order in which large steps come before and after small ones.
std::vector<int32_t> row_counts(TestRandom& random) {
  std::vector<int32_t> counts = {kMostRows, 1, 3, 7, 9, 13};
  if (!ops::short_tests()) {
    counts.resize(kMostRows);
    std::iota(counts.begin(), counts.end(), 1);
    std::shuffle(counts.begin(), counts.end(), random.engine());
  }
  return counts;
}

int32_t captured_rows(int32_t rows) { return *std::lower_bound(std::begin(kCaptured), std::end(kCaptured), rows); }

bool same_bits(const std::vector<float>& a, const std::vector<float>& b, int64_t count) {
  return std::memcmp(a.data(), b.data(), count * sizeof(float)) == 0;
}

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

void expect_same_pages(const std::vector<std::byte>& got, const std::vector<std::byte>& want, int64_t page_bytes,
                       const char* what) {
  const auto differ = std::mismatch(got.begin(), got.end(), want.begin());
  if (differ.first == got.end()) return;
  const int64_t page = (differ.first - got.begin()) / page_bytes;
  ADD_FAILURE() << what << ": layer " << page / kPages << ", page " << page % kPages << ", byte "
                << (differ.first - got.begin()) % page_bytes;
}

// What a step leaves behind.
struct Outcome {
  std::vector<float> logits;  // (rows, vocab)
  std::vector<std::byte> pages;
  std::vector<int32_t> expert_ids, expert_indptr;  // of the last layer
};

class PaddedSteps : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(DeviceModelCuda, PaddedSteps,
                         ::testing::Values(Case{"qwen3", false}, Case{"sarvam_moe_base", true},
                                           Case{"sarvam_moe_experts128", true}, Case{"qwen3_moe", false},
                                           Case{"sarvam_mla_flat", true}),
                         [](const auto& info) {
                           return std::string(info.param.config) + (info.param.f8 ? "_f8" : "_bf16");
                         });

class PaddingTest {
 public:
  explicit PaddingTest(const Case& c) : options_(options_of(c)), model_(make(c)) {
    const ModelConfig& config = model_->config();
    kv_ = device_kv_shape(config, options_.kv_format);
    // Page 0, where a slot that is taken for one would lie, belongs to nobody, like many others.
    std::vector<TestSequence> sequences = make_sequences(random_, config.vocab_size, 1, kPages);
    model_->set_pages(std::vector<std::byte>(config.num_layers * kPages * kv_.page_bytes(), std::byte{0xFF}));
    for (const Batch& batch : prompts_of(sequences)) model_->step(batch);
    sequences_ = std::move(sequences);
    before_ = model_->pages();
  }

  TestRandom& random() { return random_; }

  void check(int32_t rows) {
    const int32_t padded = captured_rows(rows);
    SCOPED_TRACE(::testing::Message() << rows << " rows in a graph of " << padded);
    const Batch batch = decode_batch(random_, sequences_, rows);
    const Outcome want = run(batch, 0), got = run(batch, padded);
    const int64_t vocab = model_->config().vocab_size;
    EXPECT_TRUE(all_finite(want.logits));
    EXPECT_TRUE(all_finite(got.logits)) << "those of padding among them";
    EXPECT_TRUE(same_bits(got.logits, want.logits, rows * vocab));
    check_pages(batch, want.pages, got.pages);
    if (model_->config().has_moe()) check_routing(want, got, rows);
  }

 private:
  std::unique_ptr<OpenDeviceModel> make(const Case& c) {
    Recipe recipe = recipe_of_config(c.config);
    const auto weights = dummy_checkpoint(recipe, 1234, "dummy");
    return std::make_unique<OpenDeviceModel>(std::move(recipe), *weights, options_);
  }

  // All of it poisoned before. graph_rows 0: kernel by kernel.
  Outcome run(const Batch& batch, int32_t graph_rows) {
    model_->set_pages(before_);
    model_->poison_activations();
    if (graph_rows == 0) {
      model_->step(batch);
    } else {
      model_->capture(graph_rows);
      expect_same_pages(model_->pages(), before_, kv_.page_bytes(), "padding alone wrote a page");
      model_->poison_activations();
      model_->replay(batch, graph_rows);
    }
    const int32_t rows = std::max(graph_rows, batch.num_rows());
    const ModelConfig& config = model_->config();
    Outcome out;
    out.logits = model_->get<float>(model_->act().logits, rows * int64_t{config.vocab_size});
    out.pages = model_->pages();
    if (config.has_moe()) {
      const ops::RouterShape& router = config.moe.router;
      out.expert_ids = model_->get<int32_t>(model_->act().expert_ids, int64_t{rows} * router.top_k);
      out.expert_indptr = model_->get<int32_t>(model_->act().expert_indptr, router.num_experts + 1);
    }
    return out;
  }

  // The batch's slots were written, and nothing else: neither other slots of their pages, nor other pages.
  void check_pages(const Batch& batch, const std::vector<std::byte>& want, const std::vector<std::byte>& got) {
    const int64_t line = kv_.head_dim * kv_.element_bytes(), page_bytes = kv_.page_bytes();
    const int64_t lines = page_bytes / (kv_.page_size * line);  // of a token in a page: K and V of every head
    std::vector<std::byte> expected = before_;
    for (int64_t layer = 0; layer < model_->config().num_layers; ++layer) {
      for (const int64_t slot : batch.slot_mapping) {
        for (int64_t i = 0; i < lines; ++i) {
          const int64_t at =
              (layer * kPages + slot / kv_.page_size) * page_bytes + (i * kv_.page_size + slot % kv_.page_size) * line;
          EXPECT_NE(std::memcmp(&want[at], &before_[at], line), 0) << "slot " << slot << " is as it was";
          std::memcpy(&expected[at], &want[at], line);
        }
      }
    }
    expect_same_pages(want, expected, page_bytes, "without padding something else was written");
    expect_same_pages(got, expected, page_bytes, "with padding the pages differ");
  }

  void check_routing(const Outcome& want, const Outcome& got, int32_t rows) {
    const auto pairs = int64_t{rows} * model_->config().moe.router.top_k;
    EXPECT_EQ(got.expert_indptr, want.expert_indptr);
    EXPECT_EQ(got.expert_indptr.back(), pairs);
    EXPECT_TRUE(std::equal(want.expert_ids.begin(), want.expert_ids.end(), got.expert_ids.begin()));
    EXPECT_TRUE(std::all_of(got.expert_ids.begin() + pairs, got.expert_ids.end(), [](int32_t id) { return id == -1; }));
  }

  TestRandom random_;
  DeviceModelOptions options_;
  std::unique_ptr<OpenDeviceModel> model_;
  ops::DeviceKvLayer kv_;
  std::vector<TestSequence> sequences_;
  std::vector<std::byte> before_;
};

TEST_P(PaddedSteps, LeaveNoTrace) {
  VAYU_NEEDS_DEVICE();
  PaddingTest test(GetParam());
  for (const int32_t rows : row_counts(test.random())) test.check(rows);
}

// The same through DeviceModel, which pads and picks graphs itself. Before every step from a graph come as many rows as
// there may be, of ids that no token has, whose remains then lie where the padding is.
class Model {
 public:
  Model(const Case& c, bool graphs) {
    Recipe recipe = recipe_of_config(c.config);
    const auto weights = dummy_checkpoint(recipe, 1234, "dummy");
    auto model = DeviceModel::load(std::move(recipe), *weights, options_of(c));
    EXPECT_TRUE(model.ok()) << model.error().message;
    model_ = std::move(*model);
    stream_ = ops::create_stream().value();
    if (graphs) testing::expect_ok(model_->capture_graphs(stream_));
  }
  ~Model() { ops::destroy_stream(stream_); }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  int32_t vocab() const { return model_->config().vocab_size; }
  std::vector<float> step(const Batch& batch) {
    testing::expect_ok(model_->launch(batch, stream_));
    std::vector<float> logits(batch.num_logits() * int64_t{vocab()});
    const auto bytes = static_cast<int64_t>(logits.size() * sizeof(float));
    testing::expect_ok(ops::copy_to_host(logits.data(), model_->logits(), bytes, stream_));
    testing::expect_ok(ops::synchronize(stream_));
    return logits;
  }
  int32_t experts_touched() const { return model_->experts_touched(stream_).value(); }

 private:
  std::unique_ptr<DeviceModel> model_;
  ops::CudaStream stream_ = nullptr;
};

Batch wild_batch(int32_t vocab) {
  Batch batch;
  for (int32_t i = 0; i < kMaxRows; ++i) {
    TestSequence one{{i % 2 ? vocab + i : -2 - i}, {kPages - kMaxRows + i}, 0};
    append_row(batch, one, 1, kDevicePageSize, true);
  }
  return batch;
}

TEST_P(PaddedSteps, AreTheUnpaddedOnes) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  Model eager(GetParam(), false), graphs(GetParam(), true);
  std::vector<TestSequence> sequences = make_sequences(random, eager.vocab(), 0, kPages - kMaxRows);
  for (const Batch& batch : prompts_of(sequences)) ASSERT_EQ(eager.step(batch), graphs.step(batch));
  for (const int32_t rows : row_counts(random)) {
    SCOPED_TRACE(::testing::Message() << rows << " rows");
    const Batch batch = decode_batch(random, sequences, rows);
    graphs.step(wild_batch(eager.vocab()));
    const std::vector<float> want = eager.step(batch), got = graphs.step(batch);
    EXPECT_TRUE(all_finite(want));
    EXPECT_EQ(graphs.experts_touched(), eager.experts_touched());
    ASSERT_TRUE(same_bits(got, want, static_cast<int64_t>(want.size())));
  }
}

}  // namespace
}  // namespace vayu::model
