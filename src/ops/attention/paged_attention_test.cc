#include "ops/attention/paged_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/attention/kv_element.h"
#include "ops/cpu/op_test_util.h"

namespace vayu::ops {
namespace {

struct FormatTolerance {
  KvFormat format;
  float absolute;  // both backends read the same rounded K and V: what differs is the order of float sums
};
constexpr FormatTolerance kFormats[] = {{KvFormat::kF32, 1e-5f}, {KvFormat::kF16, 1e-5f}, {KvFormat::kBF16, 1e-5f}};

struct Shape {
  int num_kv_heads;
  int group;
  int head_dim;
  int page_size;
  int latent_dim = 0;  // > 0: V is the beginning of K
  int num_q_heads() const { return num_kv_heads * group; }
  int v_dim() const { return latent_dim > 0 ? latent_dim : head_dim; }
  KvLayer layer(KvFormat format) const {
    KvLayer kv;
    kv.format = format;
    kv.num_kv_heads = num_kv_heads;
    kv.head_dim = head_dim;
    kv.latent_dim = latent_dim;
    kv.page_size = page_size;
    return kv;
  }
};

// One sequence: K and V of every token as floats, and a query for every token.
struct Sequence {
  std::vector<float> q, k, v;  // (tokens, heads, head_dim)
  int32_t tokens = 0;
};

Sequence random_sequence(TestRandom& random, const Shape& shape, int32_t tokens) {
  const int64_t kv_size = int64_t{tokens} * shape.num_kv_heads * shape.head_dim;
  return {random.normals(kv_size * shape.group, 2), random.normals(kv_size), random.normals(kv_size), tokens};
}

// A batch over pages filled with NaN wherever no token of it has been written.
class TestBatch {
 public:
  TestBatch(const Shape& shape, KvFormat format, int64_t max_pages, TestRandom& random)
      : shape_(shape),
        memory_(max_pages * shape.layer(format).page_bytes(), 0xFF),
        kv_(shape.layer(format)),
        free_pages_(max_pages) {
    kv_.pages = memory_.data();
    std::iota(free_pages_.begin(), free_pages_.end(), 0);
    std::shuffle(free_pages_.begin(), free_pages_.end(), random.engine());
  }

  // The row computes the last q_len of the first kv_len tokens. `written` >= kv_len tokens are in the pages.
  void add_row(const Sequence& s, int32_t q_len, int32_t kv_len, int32_t written = 0) {
    const int64_t first_page = static_cast<int64_t>(page_table_.size());
    const int32_t in_cache = std::max(kv_len, written);
    for (int32_t t = 0; t < in_cache; ++t) {
      if (t % shape_.page_size == 0) {
        page_table_.push_back(free_pages_.back());
        free_pages_.pop_back();
      }
      const int64_t page = page_table_[first_page + t / shape_.page_size];
      for (int h = 0; h < shape_.num_kv_heads; ++h) {
        for (int d = 0; d < shape_.head_dim; ++d) {
          const int64_t i = (int64_t{t} * shape_.num_kv_heads + h) * shape_.head_dim + d;
          store_kv(kv_, k_index(kv_, page, h, t % shape_.page_size, d), s.k[i]);
          if (shape_.latent_dim == 0) store_kv(kv_, v_index(kv_, page, h, t % shape_.page_size, d), s.v[i]);
        }
      }
    }
    const int64_t width = int64_t{shape_.num_q_heads()} * shape_.head_dim;
    for (int32_t t = kv_len - q_len; t < kv_len; ++t) {
      q_.insert(q_.end(), s.q.begin() + t * width, s.q.begin() + (t + 1) * width);
      q_.insert(q_.end(), kGap, kNaN);
    }
    kv_lens_.push_back(kv_len);
    qo_indptr_.push_back(qo_indptr_.back() + q_len);
    kv_indptr_.push_back(static_cast<int32_t>(page_table_.size()));
  }

  std::vector<float> run(const OpContext& ctx) const {
    const int64_t width = int64_t{shape_.num_q_heads()} * shape_.head_dim;
    std::vector<float> out(int64_t{qo_indptr_.back()} * shape_.num_q_heads() * shape_.v_dim(), kNaN);
    const int64_t max_context = *std::max_element(kv_lens_.begin(), kv_lens_.end());
    TestScratch scratch(
        paged_attention_scratch_bytes(ctx, shape_.num_q_heads(), kv_, qo_indptr_.back() + 3, max_context + 300));
    PagedAttentionArgs args;
    args.q = q_.data();
    args.q_stride = width + kGap;
    args.out = out.data();
    args.qo_indptr = qo_indptr_.data();
    args.kv_indptr = kv_indptr_.data();
    args.page_table = page_table_.data();
    args.kv_lens = kv_lens_.data();
    args.num_rows = static_cast<int32_t>(kv_lens_.size());
    args.num_q_heads = shape_.num_q_heads();
    args.scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim));
    args.kv = kv_;
    args.scratch = scratch.get();
    paged_attention(ctx, args);
    return out;
  }

  std::vector<float>& queries() { return q_; }

 private:
  static constexpr int kGap = 5;  // floats between the queries of two tokens
  Shape shape_;
  std::vector<uint8_t> memory_;
  KvLayer kv_;
  std::vector<int32_t> free_pages_;
  std::vector<float> q_;
  std::vector<int32_t> qo_indptr_ = {0}, kv_indptr_ = {0}, page_table_, kv_lens_;
};

void expect_near(const std::vector<float>& out, const std::vector<float>& expected, float absolute,
                 const std::string& what) {
  ASSERT_EQ(out.size(), expected.size());
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_NEAR(out[i], expected[i], absolute * (1 + std::abs(expected[i]))) << what << " at " << i;
  }
}

TEST(PagedAttention, ReferenceOnAKnownCase) {
  TestRandom random;
  const Shape shape{1, 1, 1, 2};
  const Sequence s{{0, 0, std::log(2.0f)}, {5, 0, 1}, {1, 2, 6}, 3};
  TestBatch batch(shape, KvFormat::kF32, 4, random);
  batch.add_row(s, 3, 3);
  const std::vector<float> out = batch.run({Backend::kReference, nullptr});
  EXPECT_FLOAT_EQ(out[0], 1);
  EXPECT_FLOAT_EQ(out[1], 1.5f);
  EXPECT_FLOAT_EQ(out[2], (32 * 1 + 1 * 2 + 2 * 6) / 35.0f);  // weights 2^5, 2^0, 2^1
}

TEST(PagedAttention, CpuMatchesReferenceOnRaggedBatches) {
  TestRandom random;
  const Shape shapes[] = {{3, 3, 64, 16},  {2, 1, 32, 16},  {1, 4, 80, 64},  {1, 16, 96, 16},
                          {1, 2, 128, 32}, {1, 2, 256, 16}, {2, 3, 20, 16},  {1, 3, 64, 1},
                          {2, 4, 64, 24},  {1, 7, 64, 48},  {1, 110, 16, 16}};
  for (auto [format, absolute] : kFormats) {
    if (kSanitized && format != KvFormat::kF16) continue;
    for (const Shape& shape : shapes) {
      const int64_t max_rows = shape.group > 8 ? 4 : 12;
      const int64_t rows = random.integer(1, max_rows);
      TestBatch batch(shape, format, rows * (600 / shape.page_size + 2), random);
      for (int64_t r = 0; r < rows; ++r) {
        const int32_t q_len = random.integer(0, 2) ? 1 : static_cast<int32_t>(random.integer(1, 70));
        const int32_t kv_len = std::max(q_len, static_cast<int32_t>(random.integer(1, 600)));
        batch.add_row(random_sequence(random, shape, kv_len), q_len, kv_len);
      }
      const std::vector<float> expected = batch.run({Backend::kReference, nullptr});
      for_each_cpu_variant([&](const OpContext& ctx, const std::string& name) {
        expect_near(batch.run(ctx), expected, absolute, name + " dim " + std::to_string(shape.head_dim));
      });
    }
  }
}

// Latent attention: one KV head whose V is the beginning of its K. The last shapes are those of a 105B model, and the
// many heads of its decode rows.
TEST(PagedAttention, CpuMatchesReferenceOnLatents) {
  TestRandom random;
  const Shape shapes[] = {{1, 8, 160, 16, 128}, {1, 5, 48, 24, 32},    {1, 3, 26, 1, 20},
                          {1, 4, 576, 64, 512}, {1, 64, 576, 16, 512}, {1, 130, 40, 16, 16}};
  for (auto [format, absolute] : kFormats) {
    if (kSanitized && format != KvFormat::kF16) continue;
    for (const Shape& shape : shapes) {
      const bool large = shape.group * shape.head_dim > 4000;
      if (large && (kSanitized || format != KvFormat::kF16)) continue;
      TestBatch batch(shape, format, 3 * (600 / shape.page_size + 2), random);
      for (int32_t q_len : {1, large ? 2 : 40, 1}) {
        const int32_t kv_len = q_len + static_cast<int32_t>(random.integer(0, large ? 270 : 540));
        batch.add_row(random_sequence(random, shape, kv_len), q_len, kv_len);
      }
      const std::vector<float> expected = batch.run({Backend::kReference, nullptr});
      for_each_cpu_variant([&](const OpContext& ctx, const std::string& name) {
        expect_near(batch.run(ctx), expected, absolute, name + " dim " + std::to_string(shape.head_dim));
      });
    }
  }
}

TEST(PagedAttention, ManyRows) {
  TestRandom random;
  const Shape shape{3, 3, 64, 16};
  TestBatch batch(shape, KvFormat::kF16, 40 * 40, random);
  for (int r = 0; r < 40; ++r) {
    const int32_t kv_len = static_cast<int32_t>(random.integer(1, 530));
    batch.add_row(random_sequence(random, shape, kv_len), 1, kv_len);
  }
  const std::vector<float> expected = batch.run({Backend::kReference, nullptr});
  for_each_cpu_variant(
      [&](const OpContext& ctx, const std::string& name) { expect_near(batch.run(ctx), expected, 1e-5f, name); });
}

TEST(PagedAttention, PageEdges) {
  TestRandom random;
  const Shape shape{1, 3, 64, 16};
  TestBatch batch(shape, KvFormat::kBF16, 400, random);
  for (int32_t kv_len : {1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 512, 513}) {
    for (int32_t q_len : {1, 2, 16, 33}) {
      if (q_len <= kv_len && kv_len * q_len < 4000)
        batch.add_row(random_sequence(random, shape, kv_len), q_len, kv_len);
    }
  }
  const std::vector<float> expected = batch.run({Backend::kReference, nullptr});
  for_each_cpu_variant(
      [&](const OpContext& ctx, const std::string& name) { expect_near(batch.run(ctx), expected, 1e-5f, name); });
}

// The promise of the header, to the last bit: one token's result alone, in chunks of any size, among other rows, on
// other pages, of other page sizes, and by one thread or more.
TEST(PagedAttention, ResultsDoNotDependOnTheBatch) {
  TestRandom random;
  for (auto [format, absolute] : kFormats) {
    if (kSanitized && format != KvFormat::kF16) continue;
    const Shape shapes[] = {{2, 1, 64, 16}, {1, 3, 64, 16}, {1, 16, 64, 16}, {1, 4, 80, 16, 48}};
    for (const Shape& shape : shapes) {
      const int32_t tokens = static_cast<int32_t>(random.integer(520, 560));  // three chunks of keys
      const Sequence s = random_sequence(random, shape, tokens);
      const int64_t width = int64_t{shape.num_q_heads()} * shape.v_dim();
      for_each_cpu_variant([&](const OpContext& ctx, const std::string& name) {
        TestBatch whole(shape, format, 100, random);
        whole.add_row(s, tokens, tokens);
        const std::vector<float> expected = whole.run(ctx);
        for (int page_size : {16, 64, 1}) {
          Shape other = shape;
          other.page_size = page_size;
          for (int trial = 0; trial < 4; ++trial) {
            const int32_t q_len = trial % 2 ? 1 : static_cast<int32_t>(random.integer(2, 120));
            const int32_t done = static_cast<int32_t>(random.integer(trial == 0 ? tokens - q_len : 0, tokens - q_len));
            TestBatch batch(other, format, (done + q_len + 40) / page_size + 6, random);
            const int32_t neighbours = static_cast<int32_t>(random.integer(0, 2));
            const Sequence neighbour = random_sequence(random, other, 20);
            for (int32_t n = 0; n < neighbours; ++n) batch.add_row(neighbour, 10, 20);
            batch.add_row(s, q_len, done + q_len);
            const std::vector<float> out = batch.run(ctx);
            ASSERT_TRUE(std::equal(out.begin() + neighbours * 10 * width, out.end(), expected.begin() + done * width))
                << name << ", group " << shape.group << ", page " << page_size << ", tokens " << done << " + " << q_len;
          }
        }
      });
    }
  }
}

TEST(PagedAttention, MaskedLatentsDoNotLeak) {
  TestRandom random;
  const Shape shape{1, 8, 80, 16, 64};
  Sequence s = random_sequence(random, shape, 120);
  for (int64_t i = 100 * shape.head_dim; i < 120 * shape.head_dim; ++i) s.k[i] = kNaN;
  for_each_cpu_variant([&](const OpContext& ctx, const std::string& name) {
    TestBatch clean(shape, KvFormat::kBF16, 20, random);
    clean.add_row(s, 40, 100);
    const std::vector<float> expected = clean.run(ctx);
    TestBatch batch(shape, KvFormat::kBF16, 20, random);
    batch.add_row(s, 60, 120);
    const std::vector<float> out = batch.run(ctx);
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), out.begin())) << name;
    ASSERT_TRUE(std::all_of(out.begin() + expected.size(), out.end(), [](float v) { return std::isnan(v); })) << name;
  });
}

// Tokens after the one computed are in the same page with garbage, and a query with NaN spoils its own token only.
TEST(PagedAttention, NothingLeaksFromMaskedTokensOrNeighbours) {
  TestRandom random;
  const Shape shape{1, 3, 64, 16};
  Sequence s = random_sequence(random, shape, 120);
  for (int64_t i = 100 * shape.head_dim; i < 120 * shape.head_dim; ++i) s.k[i] = s.v[i] = kNaN;
  for_each_cpu_variant([&](const OpContext& ctx, const std::string& name) {
    TestBatch clean(shape, KvFormat::kF16, 20, random);
    clean.add_row(s, 40, 100);
    const std::vector<float> expected = clean.run(ctx);
    TestBatch batch(shape, KvFormat::kF16, 20, random);
    batch.add_row(s, 60, 120);
    const std::vector<float> out = batch.run(ctx);
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), out.begin())) << name;
    ASSERT_TRUE(std::all_of(out.begin() + 40 * 192, out.end(), [](float v) { return std::isnan(v); })) << name;

    clean.queries()[7 * (192 + 5) + 64] = kNaN;  // token 7, head 1
    const std::vector<float> spoilt = clean.run(ctx);
    for (size_t i = 0; i < spoilt.size(); ++i) {
      const bool hit = i / 192 == 7 && i % 192 / 64 == 1;
      ASSERT_EQ(std::isnan(spoilt[i]), hit) << name << ' ' << i;
      ASSERT_TRUE(hit || spoilt[i] == expected[i]) << name << ' ' << i;
    }
  });
}

}  // namespace
}  // namespace vayu::ops
