#include "ops/attention/mla_expanded_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/attention/kv_element.h"
#include "ops/cpu/op_test_util.h"

namespace vayu::ops {
namespace {

constexpr int kGap = 3;  // floats between the queries of two tokens

struct Sequence {
  std::vector<float> q;     // (tokens, heads * (nope + rope))
  std::vector<float> keys;  // (tokens, latent + rope), as cached
};

struct Weights {
  std::vector<float> k, v;  // (heads * nope, latent), (heads * v_dim, latent)
};

// Rows over pages of NaN wherever no token has been written.
class TestBatch {
 public:
  TestBatch(const MlaExpandedShape& shape, KvFormat format, int page_size, int64_t num_pages, TestRandom& random)
      : shape_(shape), free_pages_(num_pages) {
    kv_.format = format;
    kv_.num_kv_heads = 1;
    kv_.head_dim = shape.latent_dim + shape.rope_dim;
    kv_.latent_dim = shape.latent_dim;
    kv_.page_size = page_size;
    memory_.assign(num_pages * kv_.page_bytes(), 0xFF);
    kv_.pages = memory_.data();
    std::iota(free_pages_.begin(), free_pages_.end(), 0);
    std::shuffle(free_pages_.begin(), free_pages_.end(), random.engine());
  }

  // The row computes the last q_len of the first kv_len tokens.
  void add_row(const Sequence& s, int32_t q_len, int32_t kv_len) {
    const int64_t first_page = static_cast<int64_t>(page_table_.size());
    for (int32_t t = 0; t < kv_len; ++t) {
      if (t % kv_.page_size == 0) {
        page_table_.push_back(free_pages_.back());
        free_pages_.pop_back();
      }
      const int64_t page = page_table_[first_page + t / kv_.page_size];
      for (int d = 0; d < kv_.head_dim; ++d) {
        store_kv(kv_, k_index(kv_, page, 0, t % kv_.page_size, d), s.keys[int64_t{t} * kv_.head_dim + d]);
      }
    }
    for (int32_t t = kv_len - q_len; t < kv_len; ++t) {
      q_.insert(q_.end(), s.q.begin() + t * q_width(), s.q.begin() + (t + 1) * q_width());
      q_.insert(q_.end(), kGap, kNaN);
    }
    kv_lens_.push_back(kv_len);
    qo_indptr_.push_back(qo_indptr_.back() + q_len);
    kv_indptr_.push_back(static_cast<int32_t>(page_table_.size()));
  }

  std::vector<float> run(const OpContext& ctx, const Weights& weights) const {
    const int64_t k_rows = int64_t{shape_.num_q_heads} * shape_.nope_dim;
    const int64_t v_rows = int64_t{shape_.num_q_heads} * shape_.v_dim;
    const MatrixView k{weights.k.data(), DataFormat::kF32, k_rows, shape_.latent_dim, "k"};
    const MatrixView v{weights.v.data(), DataFormat::kF32, v_rows, shape_.latent_dim, "v"};
    const auto k_matrix = *pack_matrix(ctx, std::span(&k, 1));
    const auto v_matrix = *pack_matrix(ctx, std::span(&v, 1));
    std::vector<float> out(qo_indptr_.back() * v_rows, kNaN);
    TestScratch scratch(mla_expanded_scratch_bytes(ctx, shape_, qo_indptr_.back() + 3));
    MlaExpandedArgs args;
    args.shape = shape_;
    args.q = q_.data();
    args.q_stride = q_width() + kGap;
    args.latent_to_k = k_matrix.get();
    args.latent_to_v = v_matrix.get();
    args.out = out.data();
    args.qo_indptr = qo_indptr_.data();
    args.kv_indptr = kv_indptr_.data();
    args.page_table = page_table_.data();
    args.kv_lens = kv_lens_.data();
    args.num_rows = static_cast<int32_t>(kv_lens_.size());
    args.scale = 1 / std::sqrt(static_cast<float>(shape_.nope_dim + shape_.rope_dim));
    args.kv = kv_;
    args.scratch = scratch.get();
    mla_expanded_attention(ctx, args);
    return out;
  }

 private:
  int64_t q_width() const { return int64_t{shape_.num_q_heads} * (shape_.nope_dim + shape_.rope_dim); }

  MlaExpandedShape shape_;
  KvLayer kv_;
  std::vector<uint8_t> memory_;
  std::vector<int32_t> free_pages_;
  std::vector<float> q_;
  std::vector<int32_t> qo_indptr_ = {0}, kv_indptr_ = {0}, page_table_, kv_lens_;
};

Sequence random_sequence(TestRandom& random, const MlaExpandedShape& s, int32_t tokens) {
  return {random.normals(int64_t{tokens} * s.num_q_heads * (s.nope_dim + s.rope_dim)),
          random.normals(int64_t{tokens} * (s.latent_dim + s.rope_dim))};
}

Weights random_weights(TestRandom& random, const MlaExpandedShape& s) {
  const float sigma = 1 / std::sqrt(static_cast<float>(s.latent_dim));
  return {random.normals(int64_t{s.num_q_heads} * s.nope_dim * s.latent_dim, sigma),
          random.normals(int64_t{s.num_q_heads} * s.v_dim * s.latent_dim, sigma)};
}

// softmax(q [U_K c | key]^T * scale) U_V c of the last token of a sequence, in double.
std::vector<double> plain_attention(const MlaExpandedShape& s, const Sequence& sequence, const Weights& w,
                                    int32_t tokens) {
  const int32_t cached = s.latent_dim + s.rope_dim;
  const auto expand = [&](const std::vector<float>& matrix, int32_t row, int32_t token) {
    double sum = 0;
    for (int32_t i = 0; i < s.latent_dim; ++i) {
      sum += double{matrix[int64_t{row} * s.latent_dim + i]} * sequence.keys[int64_t{token} * cached + i];
    }
    return sum;
  };
  std::vector<double> out;
  for (int32_t h = 0; h < s.num_q_heads; ++h) {
    const float* q = sequence.q.data() + (int64_t{tokens - 1} * s.num_q_heads + h) * (s.nope_dim + s.rope_dim);
    std::vector<double> weights(tokens);
    double sum = 0;
    for (int32_t t = 0; t < tokens; ++t) {
      double dot = 0;
      for (int32_t d = 0; d < s.nope_dim; ++d) dot += q[d] * expand(w.k, h * s.nope_dim + d, t);
      for (int32_t d = 0; d < s.rope_dim; ++d) {
        dot += double{q[s.nope_dim + d]} * sequence.keys[int64_t{t} * cached + s.latent_dim + d];
      }
      sum += weights[t] = std::exp(dot / std::sqrt(double(s.nope_dim + s.rope_dim)));
    }
    for (int32_t d = 0; d < s.v_dim; ++d) {
      double value = 0;
      for (int32_t t = 0; t < tokens; ++t) value += weights[t] * expand(w.v, h * s.v_dim + d, t);
      out.push_back(value / sum);
    }
  }
  return out;
}

TEST(MlaExpandedAttention, ReferenceMatchesThePlainSum) {
  TestRandom random;
  const MlaExpandedShape shape{3, 8, 4, 6, 16};
  const Weights weights = random_weights(random, shape);
  for (int32_t tokens : {1, 2, 255, 256, 257, 530}) {
    const Sequence s = random_sequence(random, shape, tokens);
    TestBatch batch(shape, KvFormat::kF32, 16, 40, random);
    batch.add_row(s, std::min(tokens, 3), tokens);
    const std::vector<float> out = batch.run({Backend::kReference, nullptr}, weights);
    const std::vector<double> expected = plain_attention(shape, s, weights, tokens);
    const size_t last = out.size() - expected.size();
    for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(out[last + i], expected[i], 1e-5) << tokens << ' ' << i;
  }
}

TEST(MlaExpandedAttention, CpuMatchesReference) {
  TestRandom random;
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kF16, KvFormat::kBF16}) {
    if (kSanitized && format != KvFormat::kF16) continue;
    for (const MlaExpandedShape& shape :
         {MlaExpandedShape{8, 64, 32, 64, 128}, MlaExpandedShape{2, 128, 64, 128, 512}, {3, 10, 6, 9, 20}}) {
      const Weights weights = random_weights(random, shape);
      const int page_size = static_cast<int>(16 * random.integer(1, 2) - 8 * random.integer(0, 1));
      TestBatch batch(shape, format, page_size, 3 * (330 / page_size + 2), random);
      for (int32_t q_len : {1, 13, 1}) {
        const int32_t kv_len = q_len + static_cast<int32_t>(random.integer(0, 300));
        batch.add_row(random_sequence(random, shape, kv_len), q_len, kv_len);
      }
      const std::vector<float> expected = batch.run({Backend::kReference, nullptr}, weights);
      for_each_cpu_variant([&](const OpContext& ctx, const std::string& name) {
        const std::vector<float> out = batch.run(ctx, weights);
        ASSERT_EQ(out.size(), expected.size());
        for (size_t i = 0; i < out.size(); ++i) {
          ASSERT_NEAR(out[i], expected[i], 1e-5f * (1 + std::abs(expected[i]))) << name << ' ' << i;
        }
      });
    }
  }
}

// To the last bit: one token's result alone, in chunks of any size, among other rows, on other pages.
TEST(MlaExpandedAttention, ResultsDoNotDependOnTheBatch) {
  TestRandom random;
  const MlaExpandedShape shape{2, 24, 8, 20, 32};
  const Weights weights = random_weights(random, shape);
  const int32_t tokens = static_cast<int32_t>(random.integer(520, 560));  // three chunks of context
  const Sequence s = random_sequence(random, shape, tokens);
  const Sequence neighbour = random_sequence(random, shape, 20);
  const int64_t width = int64_t{shape.num_q_heads} * shape.v_dim;
  for_each_cpu_variant([&](const OpContext& ctx, const std::string& name) {
    TestBatch whole(shape, KvFormat::kF16, 16, 100, random);
    whole.add_row(s, tokens, tokens);
    const std::vector<float> expected = whole.run(ctx, weights);
    for (int page_size : {16, 64, 1}) {
      for (int32_t q_len : {1, 2, 77}) {
        const int32_t done = static_cast<int32_t>(random.integer(0, tokens - q_len));
        TestBatch batch(shape, KvFormat::kF16, page_size, (done + q_len + 20) / page_size + 4, random);
        batch.add_row(neighbour, 10, 20);
        batch.add_row(s, q_len, done + q_len);
        const std::vector<float> out = batch.run(ctx, weights);
        ASSERT_TRUE(std::equal(out.begin() + 10 * width, out.end(), expected.begin() + done * width))
            << name << ", page " << page_size << ", tokens " << done << " + " << q_len;
      }
    }
  });
}

}  // namespace
}  // namespace vayu::ops
