#include "model/blocks/mla_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "ops/cpu/op_test_util.h"
#include "ops/gemm/linear.h"

namespace vayu::model {
namespace {

using ops::TestRandom;

constexpr int32_t kMaxTokens = 24;
constexpr int32_t kPageSize = 16;
constexpr int32_t kNumPages = 4;

ModelConfig test_config(int32_t heads, int32_t nope, int32_t rope, int32_t v_dim, int32_t latent) {
  ModelConfig config;
  config.num_layers = 1;
  config.hidden = 64;
  config.num_q_heads = heads;
  config.num_kv_heads = 1;
  config.head_dim = latent + rope;
  config.mla = {latent, nope, rope, v_dim, MlaForm::kAbsorbed};
  config.rope.pairing = ops::RopePairing::kInterleaved;
  config.rope.rotary_dim = rope;
  config.attention_scale = static_cast<float>(1.8738542 / std::sqrt(double(nope + rope)));
  return config;
}

// Weights of one layer as a checkpoint has them.
struct TestWeights {
  std::vector<float> attention_norm, qkv, latent_norm, k, v, output;
};

TestWeights random_weights(TestRandom& random, const ModelConfig& config) {
  const auto linear = [&](int64_t rows, int64_t cols) {
    return random.normals(rows * cols, 1 / std::sqrt(static_cast<float>(cols)));
  };
  const auto norm = [&](int64_t n) {
    std::vector<float> w = random.normals(n, 0.3f);
    for (float& v : w) v += 1;
    return w;
  };
  const int64_t heads = config.num_q_heads;
  return {norm(config.hidden),
          linear(config.qkv_width(), config.hidden),
          norm(config.mla.latent_dim),
          linear(heads * config.mla.nope_dim, config.mla.latent_dim),
          linear(heads * config.mla.v_dim, config.mla.latent_dim),
          linear(config.hidden, heads * config.mla.v_dim)};
}

std::unique_ptr<ops::Matrix> pack(const ops::OpContext& ctx, const std::vector<float>& data, int64_t parts,
                                  int64_t cols) {
  std::vector<ops::MatrixView> views;
  const int64_t rows = static_cast<int64_t>(data.size()) / parts / cols;
  for (int64_t p = 0; p < parts; ++p) {
    views.push_back({data.data() + p * rows * cols, DataFormat::kF32, rows, cols, "part"});
  }
  return *ops::pack_matrix(ctx, views);
}

// The transpose of each head's part, side by side over the rows.
std::vector<float> transposed_parts(const std::vector<float>& data, int64_t parts, int64_t cols) {
  const int64_t rows = static_cast<int64_t>(data.size()) / parts / cols;
  std::vector<float> out(data.size());
  for (int64_t p = 0; p < parts; ++p) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) out[(p * cols + c) * rows + r] = data[(p * rows + r) * cols + c];
    }
  }
  return out;
}

LayerWeights pack_layer(const ops::OpContext& ctx, const ModelConfig& config, const TestWeights& w) {
  const int64_t heads = config.num_q_heads;
  const int64_t latent = config.mla.latent_dim;
  LayerWeights layer;
  layer.attention_norm = w.attention_norm;
  layer.latent_norm = w.latent_norm;
  layer.qkv = pack(ctx, w.qkv, 1, config.hidden);
  layer.latent_to_k = config.mla.form == MlaForm::kExpanded
                          ? pack(ctx, w.k, heads, latent)
                          : pack(ctx, transposed_parts(w.k, heads, latent), heads, config.mla.nope_dim);
  layer.latent_to_v = pack(ctx, w.v, heads, latent);
  layer.attention_output = pack(ctx, w.output, 1, heads * config.mla.v_dim);
  return layer;
}

struct RunOptions {
  ops::Backend backend = ops::Backend::kCpu;
  ops::KvFormat format = ops::KvFormat::kF32;
  int32_t chunk = kMaxTokens;  // tokens a step
  int32_t first_position = 0;
};

// The residual stream after the block for tokens whose residual before it is x (num_tokens, hidden).
std::vector<float> run_block(const ModelConfig& config, const TestWeights& w, const std::vector<float>& x,
                             const RunOptions& options) {
  ThreadPool pool(2);
  const ops::OpContext ctx{options.backend, options.backend == ops::Backend::kCpu ? &pool : nullptr};
  const LayerWeights layer = pack_layer(ctx, config, w);
  ops::KvLayer kv;
  kv.format = options.format;
  kv.num_kv_heads = 1;
  kv.head_dim = config.head_dim;
  kv.latent_dim = config.mla.latent_dim;
  kv.page_size = kPageSize;
  std::vector<uint8_t> pages(kNumPages * kv.page_bytes(), 0xFF);
  kv.pages = pages.data();

  RopeFrequencies rope;
  for (int i = 0; i < config.mla.rope_dim / 2; ++i) {
    rope.inv_freq.push_back(std::pow(1e4f, -2.0f * i / config.mla.rope_dim));
  }
  const int64_t heads = config.num_q_heads;
  std::vector<std::unique_ptr<ops::TestScratch>> memory;
  const auto floats = [&](int64_t n) {
    memory.push_back(std::make_unique<ops::TestScratch>(n * sizeof(float)));
    return static_cast<float*>(memory.back()->get());
  };
  const int64_t max_cols = std::max<int64_t>(config.hidden, config.attention_width());
  const int64_t scratch_bytes = std::max(ops::linear_scratch_bytes(ctx, kMaxTokens, max_cols),
                                         mla_scratch_bytes(ctx, config, kv, kMaxTokens, kNumPages * kPageSize));
  Activations act;
  act.residual = floats(kMaxTokens * config.hidden);
  act.normed = floats(kMaxTokens * config.hidden);
  act.qkv = floats(kMaxTokens * config.qkv_width());
  act.attention = floats(kMaxTokens * config.attention_width());
  act.scratch = floats(scratch_bytes / sizeof(float) + 1);
  std::vector<int32_t> head_indptr(heads + 1), head_rows(heads * kMaxTokens), head_queries(heads * kMaxTokens);
  if (config.mla.form == MlaForm::kAbsorbed) {
    act.latent_q = floats(kMaxTokens * heads * config.head_dim);
    act.latent_out = floats(kMaxTokens * heads * config.mla.latent_dim);
    act.head_indptr = head_indptr.data();
    act.head_rows = head_rows.data();
    act.head_queries = head_queries.data();
  }

  std::vector<float> out;
  const auto num_tokens = static_cast<int32_t>(x.size() / config.hidden);
  for (int32_t first = 0; first < num_tokens; first += options.chunk) {
    const int32_t count = std::min(options.chunk, num_tokens - first);
    Batch batch;
    batch.clear();
    for (int32_t t = first; t < first + count; ++t) {
      batch.token_ids.push_back(0);
      batch.positions.push_back(options.first_position + t);
      batch.slot_mapping.push_back((kNumPages - 1 - t / kPageSize) * kPageSize + t % kPageSize);
    }
    batch.qo_indptr = {0, count};
    for (int32_t p = 0; p * kPageSize < first + count; ++p) batch.page_table.push_back(kNumPages - 1 - p);
    batch.kv_indptr = {0, static_cast<int32_t>(batch.page_table.size())};
    batch.kv_lens = {first + count};
    std::copy_n(x.begin() + first * config.hidden, count * config.hidden, act.residual);
    mla_attention(Step{ctx, config, batch, act, rope}, layer, kv);
    out.insert(out.end(), act.residual, act.residual + count * config.hidden);
  }
  return out;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) || std::isnan(b[i])) return INFINITY;
    largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  }
  return largest;
}

class MlaAttention : public ::testing::TestWithParam<bool> {
 protected:
  MlaAttention()
      : config_(GetParam() ? test_config(4, 128, 64, 128, 512) : test_config(8, 64, 32, 64, 128)),
        weights_(random_weights(random_, config_)),
        x_(random_.normals(int64_t{kMaxTokens} * config_.hidden)) {}

  std::vector<float> run(const RunOptions& options, MlaForm form = MlaForm::kAbsorbed) {
    ModelConfig config = config_;
    config.mla.form = form;
    return run_block(config, weights_, x_, options);
  }

  TestRandom random_;
  ModelConfig config_;
  TestWeights weights_;
  std::vector<float> x_;
};

constexpr double kFloat = 3e-5;  // outputs are around 1: float sums in another order

TEST_P(MlaAttention, FormsAndBackendsAgree) {
  for (const ops::KvFormat format : {ops::KvFormat::kF32, ops::KvFormat::kF16, ops::KvFormat::kBF16}) {
    // Two backends may round one cached value to two sides of a tie.
    const double tolerance = format == ops::KvFormat::kF32 ? kFloat : format == ops::KvFormat::kF16 ? 2e-3 : 1.6e-2;
    const RunOptions reference{ops::Backend::kReference, format};
    const std::vector<float> expected = run(reference);
    EXPECT_GT(largest_difference(expected, x_), 0.1);
    EXPECT_LT(largest_difference(run(reference, MlaForm::kExpanded), expected), kFloat);
    EXPECT_LT(largest_difference(run({ops::Backend::kCpu, format}), expected), tolerance);
    EXPECT_LT(largest_difference(run({ops::Backend::kCpu, format}, MlaForm::kExpanded), expected), tolerance);
  }
}

TEST_P(MlaAttention, ChunksGiveTheSameBits) {
  for (const MlaForm form : {MlaForm::kAbsorbed, MlaForm::kExpanded}) {
    const std::vector<float> whole = run({.format = ops::KvFormat::kBF16}, form);
    for (const int32_t chunk : {1, 7}) EXPECT_EQ(run({.format = ops::KvFormat::kBF16, .chunk = chunk}, form), whole);
  }
}

TEST_P(MlaAttention, OnlyDistancesCount) {
  const std::vector<float> expected = run({});
  EXPECT_LT(largest_difference(run({.first_position = 100}), expected), 1e-4);
  config_.rope.pairing = ops::RopePairing::kHalfSplit;
  EXPECT_GT(largest_difference(run({}), expected), 1e-2);
}

TEST_P(MlaAttention, ScaleCounts) {
  const std::vector<float> expected = run({});
  config_.attention_scale /= 1.8738542f;  // the temperature of YaRN left out
  EXPECT_GT(largest_difference(run({}), expected), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(Shapes, MlaAttention, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Large" : "Small"; });

}  // namespace
}  // namespace vayu::model
