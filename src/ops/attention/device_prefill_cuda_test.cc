// Prompt attention on the device against the plain reference: every token of ragged batches, sampled tokens of long
// ones. Pages are poisoned (0xFF: NaN in both formats), only what the rows cached is written.
#include "ops/attention/device_prefill.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <thread>

#include "ops/cuda/cuda_test_util.h"
#include "ops/cuda/num_sms.h"

namespace vayu::ops {
namespace {

struct Shape {
  int32_t num_q_heads, num_kv_heads, head_dim;
  int32_t group() const { return num_q_heads / num_kv_heads; }
  PrefillHeads heads() const { return {group(), num_kv_heads, head_dim}; }
};
struct Row {
  int32_t q_len, kv_len;
};

// One batch on the host and on the device.
class PrefillCase {
 public:
  PrefillCase(TestRandom& random, const Shape& shape, DeviceKvFormat format, std::vector<Row> rows, float sigma = 1)
      : shape_(shape), format_(format), rows_(std::move(rows)) {
    for (const Row& row : rows_) {
      qo_indptr_.push_back(qo_indptr_.back() + row.q_len);
      kv_indptr_.push_back(kv_indptr_.back() + (row.kv_len + 15) / 16);
      kv_lens_.push_back(row.kv_len);
    }
    const int32_t num_pages = kv_indptr_.back() + 5;
    std::vector<int32_t> order(num_pages);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random.engine());
    page_table_.assign(order.begin(), order.begin() + kv_indptr_.back());
    q_stride_ = int64_t{shape.num_q_heads + 2 * shape.num_kv_heads} * shape.head_dim;
    // Drawing every number would take longer than the tests: pieces of a pool, from random places.
    const std::vector<float> pool = random.normals(1 << 16, sigma);
    const auto draw = [&](int64_t count) {
      std::vector<float> values;
      while (static_cast<int64_t>(values.size()) < count) {
        const int64_t piece = std::min<int64_t>(count - static_cast<int64_t>(values.size()), 64);
        const auto from = pool.begin() + random.integer(0, static_cast<int64_t>(pool.size()) - piece);
        values.insert(values.end(), from, from + piece);
      }
      return values;
    };
    q_ = as_bf16(draw(num_tokens() * q_stride_));
    pages_.assign(int64_t{num_pages} * layer(nullptr).page_bytes(), 0xFF);
    for (size_t r = 0; r < rows_.size(); ++r) {
      for (int32_t i = 0; i < rows_[r].kv_len; ++i) {
        for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
          for (int plane = 0; plane < 2; ++plane) set_kv(r, i, head, plane, draw(shape.head_dim));
        }
      }
    }
  }

  void set_kv(size_t row, int32_t position, int32_t head, int plane, const std::vector<float>& values) {
    const int64_t page = page_table_[kv_indptr_[row] + position / 16];
    const int64_t element =
        (((page * shape_.num_kv_heads + head) * 2 + plane) * 16 + position % 16) * int64_t{shape_.head_dim};
    uint8_t* at = pages_.data() + element * layer(nullptr).element_bytes();
    if (format_ == DeviceKvFormat::kBF16) {
      std::memcpy(at, as_bf16(values).data(), values.size() * 2);
    } else {
      std::memcpy(at, as_f8(values).data(), values.size());
    }
  }

  // Output of the device; poison where nothing was written.
  std::vector<Bf16> run(PrefillRows select) {
    upload(select);
    device_prefill_cuda(nullptr, *args_);
    expect_no_overrun();
    return out_->host();
  }
  void upload(PrefillRows select) {
    const auto num_rows = static_cast<int64_t>(rows_.size());
    std::vector<PrefillTile> tiles(max_device_prefill_tiles(num_tokens(), num_rows, shape_.heads()));
    std::vector<PrefillItem> items(max_device_prefill_items(num_tokens(), num_rows, shape_.heads()));
    std::vector<PrefillMerge> merges(kPrefillMaxBlocks);
    std::vector<int32_t> sources(page_table_.size());
    passes_.resize(rows_.size());
    PrefillPlan plan{.num_blocks = std::min(num_sms(), kPrefillMaxBlocks),
                     .may_split = may_split,
                     .tiles = tiles.data(),
                     .max_tiles = static_cast<int64_t>(tiles.size()),
                     .items = items.data(),
                     .max_items = static_cast<int64_t>(items.size()),
                     .merges = merges.data(),
                     .max_merges = static_cast<int32_t>(merges.size()),
                     .passes = passes_.data(),
                     .max_passes = static_cast<int32_t>(passes_.size()),
                     .wide_capacity = format_ == DeviceKvFormat::kBF16 ? 0 : wide_capacity(),
                     .wide_sources = sources.data(),
                     .max_sources = static_cast<int64_t>(sources.size())};
    plan_device_prefill({.qo_indptr = qo_indptr_.data(),
                         .kv_indptr = kv_indptr_.data(),
                         .page_table = page_table_.data(),
                         .kv_lens = kv_lens_.data(),
                         .num_rows = static_cast<int32_t>(rows_.size())},
                        select, shape_.heads(), plan);
    num_merges_ = plan.num_merges;
    device_sources_ = std::make_unique<DeviceArray<int32_t>>(sources);
    wide_pages_ = std::make_unique<DeviceArray<Bf16>>(plan.wide_capacity * layer(nullptr).page_elements() + 1024);
    device_items_ = std::make_unique<DeviceArray<PrefillItem>>(items);
    device_merges_ = std::make_unique<DeviceArray<PrefillMerge>>(merges);
    parts_ = std::make_unique<DeviceArray<float>>(device_prefill_scratch_bytes(shape_.head_dim) / 4 + 1024);
    device_q_ = std::make_unique<DeviceArray<Bf16>>(q_);
    device_pages_ = std::make_unique<DeviceArray<uint8_t>>(pages_);
    device_table_ = std::make_unique<DeviceArray<int32_t>>(page_table_);
    out_ = std::make_unique<DeviceArray<Bf16>>(num_tokens() * shape_.num_q_heads * shape_.head_dim);
    args_ = std::make_unique<DevicePrefill>();
    args_->q = device_q_->get();
    args_->q_stride = q_stride_;
    args_->out = out_->get();
    args_->kv = layer(device_pages_->get());
    args_->batch.page_table = device_table_->get();
    args_->num_q_heads = shape_.num_q_heads;
    args_->scale = scale();
    args_->rows = select;
    args_->passes = passes_.data();
    args_->num_passes = plan.num_passes;
    args_->items = device_items_->get();
    args_->merges = device_merges_->get();
    args_->parts = parts_->get();
    args_->wide_sources = device_sources_->get();
    args_->wide_pages = wide_pages_->get();
  }
  void expect_no_overrun() const {
    const std::vector<Bf16> wide = wide_pages_->host();
    for (size_t i = wide.size() - 1024; i < wide.size(); ++i) ASSERT_EQ(wide[i].bits, 0xFFFF) << "scratch overrun";
    const std::vector<float> parts = parts_->host();
    for (size_t i = parts.size() - 1024; i < parts.size(); ++i) ASSERT_TRUE(std::isnan(parts[i])) << "parts overrun";
  }
  bool may_split = true;
  int32_t num_merges() const { return num_merges_; }  // of the last upload
  bool one_pass = true;                               // else the least scratch, which holds the longest row alone
  DevicePrefill& args() const { return *args_; }
  std::vector<Bf16> out() const { return out_->host(); }

  // The reference for some tokens of a row, each as a row of its own: (tokens, num_q_heads * head_dim).
  std::vector<Bf16> expected(size_t row, const std::vector<int32_t>& tokens) {
    if (const auto found = known_.find({row, tokens}); found != known_.end()) return found->second;
    const auto count = static_cast<int64_t>(tokens.size());
    const int64_t width = int64_t{shape_.num_q_heads} * shape_.head_dim;
    std::vector<Bf16> q(count * q_stride_), out(count * width);
    std::vector<int32_t> qo_indptr(count + 1), kv_indptr(count, kv_indptr_[row]), kv_lens(count);
    std::iota(qo_indptr.begin(), qo_indptr.end(), 0);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(q_.begin() + (qo_indptr_[row] + tokens[i]) * q_stride_, q_stride_, q.begin() + i * q_stride_);
      kv_lens[i] = rows_[row].kv_len - rows_[row].q_len + tokens[i] + 1;
    }
    const int64_t share = (count + 15) / 16;
    std::vector<std::thread> threads;
    for (int64_t begin = 0; begin < count; begin += share) {
      DevicePrefill args;
      args.q = q.data() + begin * q_stride_;
      args.q_stride = q_stride_;
      args.out = out.data() + begin * width;
      args.kv = layer(pages_.data());
      args.batch.qo_indptr = qo_indptr.data();
      args.batch.kv_indptr = kv_indptr.data();
      args.batch.page_table = page_table_.data();
      args.batch.kv_lens = kv_lens.data() + begin;
      args.batch.num_rows = static_cast<int32_t>(std::min(share, count - begin));
      args.num_q_heads = shape_.num_q_heads;
      args.scale = scale();
      threads.emplace_back([args] { device_prefill_ref(args); });
    }
    for (std::thread& thread : threads) thread.join();
    return known_[{row, tokens}] = out;
  }

  // Every head of these tokens: weights are rounded to BF16 (2^-9 each, independently) and so is the output, of both
  // sides: about 2e-3 of the norm of an output vector, tolerance 1e-2 a vector.
  void check(const std::vector<Bf16>& got, size_t row, const std::vector<int32_t>& tokens) {
    const int64_t dim = shape_.head_dim, width = shape_.num_q_heads * dim;
    const std::vector<float> reference = as_floats(expected(row, tokens));
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (int32_t head = 0; head < shape_.num_q_heads; ++head) {
        const auto at = got.begin() + (qo_indptr_[row] + tokens[i]) * width + head * dim;
        const std::vector<float> a = as_floats(std::vector<Bf16>(at, at + dim));
        const auto b = reference.begin() + i * width + head * dim;
        ASSERT_LT(relative_error(a, {b, b + dim}), 1e-2)
            << "row " << row << " (" << rows_[row].q_len << " of " << rows_[row].kv_len << ") token " << tokens[i]
            << " head " << head;
      }
    }
  }
  void check_all(const std::vector<Bf16>& got, PrefillRows select) {
    for (size_t r = 0; r < rows_.size(); ++r) {
      std::vector<int32_t> tokens(rows_[r].q_len);
      std::iota(tokens.begin(), tokens.end(), 0);
      if (rows_[r].q_len == 1 && select == PrefillRows::kMultiToken) {
        const int64_t width = int64_t{shape_.num_q_heads} * shape_.head_dim;
        for (int64_t i = 0; i < width; ++i) ASSERT_EQ(got[qo_indptr_[r] * width + i].bits, 0xFFFF) << "row " << r;
      } else {
        check(got, r, tokens);
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  int64_t num_tokens() const { return qo_indptr_.back(); }
  int32_t q_begin(size_t row) const { return qo_indptr_[row]; }
  double flops() const {
    double sum = 0;
    for (const Row& row : rows_) sum += row.q_len * (row.kv_len - 0.5 * (row.q_len - 1));
    return sum * 4 * shape_.head_dim * shape_.num_q_heads;
  }

 private:
  int32_t wide_capacity() const {
    int32_t longest = 0;
    for (const Row& row : rows_) longest = std::max(longest, (row.kv_len + 15) / 16);
    return one_pass ? kv_indptr_.back() : longest;
  }
  DeviceKvLayer layer(void* pages) const {
    return {.pages = pages, .format = format_, .num_kv_heads = shape_.num_kv_heads, .head_dim = shape_.head_dim};
  }
  float scale() const { return 1 / std::sqrt(static_cast<float>(shape_.head_dim)); }

  Shape shape_;
  DeviceKvFormat format_;
  std::vector<Row> rows_;
  std::vector<int32_t> qo_indptr_ = {0}, kv_indptr_ = {0}, kv_lens_, page_table_;
  int64_t q_stride_ = 0;
  std::vector<Bf16> q_;
  std::vector<uint8_t> pages_;
  std::map<std::pair<size_t, std::vector<int32_t>>, std::vector<Bf16>> known_;  // references
  std::unique_ptr<DeviceArray<PrefillItem>> device_items_;
  std::unique_ptr<DeviceArray<PrefillMerge>> device_merges_;
  std::unique_ptr<DeviceArray<float>> parts_;
  int32_t num_merges_ = 0;
  std::unique_ptr<DeviceArray<Bf16>> device_q_, out_, wide_pages_;
  std::unique_ptr<DeviceArray<uint8_t>> device_pages_;
  std::unique_ptr<DeviceArray<int32_t>> device_table_, device_sources_;
  std::vector<PrefillPass> passes_;
  std::unique_ptr<DevicePrefill> args_;
};

constexpr DeviceKvFormat kFormats[] = {DeviceKvFormat::kBF16, DeviceKvFormat::kF8E4M3};
constexpr PrefillRows kSelects[] = {PrefillRows::kAll, PrefillRows::kMultiToken};

// Of a short run: every other combination, so that both choices of rows meet both formats.
bool left_out(const Shape& shape, DeviceKvFormat format, PrefillRows select) {
  const bool grouped = shape.num_q_heads > 2 * shape.num_kv_heads;
  return short_tests() && (grouped != (format == DeviceKvFormat::kBF16)) != (select == PrefillRows::kAll);
}

TEST(DevicePrefillCuda, RaggedBatches) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const Shape& shape :
       {Shape{64, 4, 64}, Shape{9, 3, 64}, Shape{7, 1, 64}, Shape{16, 4, 128}, Shape{16, 2, 128}}) {
    for (DeviceKvFormat format : kFormats) {
      // Page edges, tile edges (12 tokens of 16 heads), blocks of 128 keys, continued chunks; and random rows.
      std::vector<Row> rows = {{1, 1},   {1, 16},    {2, 17},   {15, 15},  {16, 16},  {17, 33}, {12, 12}, {13, 128},
                               {1, 129}, {129, 129}, {33, 161}, {5, 1000}, {64, 256}, {4, 4},   {1, 300}, {127, 255}};
      for (int i = 0; i < 4; ++i) {
        const auto q_len = static_cast<int32_t>(random.integer(1, 200));
        rows.push_back({q_len, q_len + static_cast<int32_t>(random.integer(0, 300))});
      }
      std::shuffle(rows.begin(), rows.end(), random.engine());
      SCOPED_TRACE(testing::Message() << shape.num_q_heads << "/" << shape.num_kv_heads << " heads of "
                                      << shape.head_dim << ", format " << static_cast<int>(format));
      PrefillCase batch(random, shape, format, rows);
      for (PrefillRows select : kSelects) {
        if (left_out(shape, format, select)) continue;
        batch.one_pass = select == PrefillRows::kAll;
        const std::vector<Bf16> got = batch.run(select);
        batch.check_all(got, select);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Some ten tiles a block and more, short and long, whose warpgroups skip blocks of keys here and there or have no rows.
TEST(DevicePrefillCuda, ManyTilesABlock) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const Shape& shape : {Shape{64, 4, 64}, Shape{48, 16, 64}, Shape{64, 16, 128}}) {
    std::vector<Row> rows;
    for (int i = 0; i < unless_short(100, 50); ++i) {
      const auto q_len = static_cast<int32_t>(random.integer(1, random.integer(0, 3) ? 30 : 90));
      rows.push_back({q_len, q_len + static_cast<int32_t>(random.integer(0, random.integer(0, 1) ? 140 : 420))});
    }
    PrefillCase batch(random, shape, DeviceKvFormat::kBF16, rows);
    batch.check_all(batch.run(PrefillRows::kAll), PrefillRows::kAll);
    if (HasFatalFailure()) return;
  }
}

// Few tokens behind long contexts, which are split over keys: all in one part of the blocks of keys, in many, and rows
// that are not split among them; beside the same batch in one piece.
TEST(DevicePrefillCuda, SplitOverKeys) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const Shape& shape :
       {Shape{64, 4, 64}, Shape{9, 3, 64}, Shape{7, 1, 64}, Shape{1, 1, 64}, Shape{16, 4, 128}, Shape{2, 2, 128}}) {
    for (DeviceKvFormat format : kFormats) {
      SCOPED_TRACE(testing::Message() << shape.num_q_heads << "/" << shape.num_kv_heads << " heads of "
                                      << shape.head_dim << ", format " << static_cast<int>(format));
      std::vector<Row> rows = {{2, 9}, {3, 5000}, {40, 40}, {1, 1500}, {25, 1025}};
      for (int i = 0; i < 3; ++i) {
        const auto q_len = static_cast<int32_t>(random.integer(1, 40));
        rows.push_back({q_len, q_len + static_cast<int32_t>(random.integer(0, 4000))});
      }
      std::shuffle(rows.begin(), rows.end(), random.engine());
      PrefillCase batch(random, shape, format, rows, static_cast<float>(random.integer(1, 3)));
      for (PrefillRows select : kSelects) {
        if (left_out(shape, format, select)) continue;
        batch.one_pass = select == PrefillRows::kAll;
        batch.may_split = true;
        const std::vector<Bf16> got = batch.run(select);
        EXPECT_GT(batch.num_merges(), 0);
        batch.check_all(got, select);
        if (HasFatalFailure()) return;
        if (short_tests()) continue;
        const std::vector<Bf16> again = batch.run(select);
        EXPECT_EQ(std::memcmp(got.data(), again.data(), got.size() * sizeof(Bf16)), 0) << "not the same twice";
        batch.may_split = false;
        const std::vector<Bf16> whole = batch.run(select);
        EXPECT_EQ(batch.num_merges(), 0);
        batch.check_all(whole, select);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Logits of 16 times the usual spread: bases rise by far more than the slack, weights are nearly 0 or 1.
TEST(DevicePrefillCuda, WideLogits) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (DeviceKvFormat format : kFormats) {
    for (const Shape& shape : {Shape{32, 2, 64}, Shape{8, 2, 128}}) {
      for (const std::vector<Row>& rows : {std::vector<Row>{{200, 700}, {150, 150}}, {{20, 3000}}}) {
        PrefillCase batch(random, shape, format, rows, 4);
        batch.check_all(batch.run(PrefillRows::kAll), PrefillRows::kAll);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// A prompt of our model and longer, with a chunk that continues one; sampled tokens of each.
TEST(DevicePrefillCuda, LongPrompts) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const Shape& shape : {Shape{64, 4, 64}, Shape{32, 8, 128}}) {
    for (DeviceKvFormat format : kFormats) {
      const std::vector<Row> rows = short_tests() ? std::vector<Row>{{700, 700}, {200, 1500}, {1000, 1000}}
                                                  : std::vector<Row>{{3584, 3584}, {1000, 6000}, {5000, 5000}};
      PrefillCase batch(random, shape, format, rows);
      const std::vector<Bf16> got = batch.run(PrefillRows::kMultiToken);
      for (size_t r = 0; r < rows.size(); ++r) {
        std::vector<int32_t> tokens = {0, rows[r].q_len - 1};
        for (int i = 0; i < 6; ++i) tokens.push_back(static_cast<int32_t>(random.integer(1, rows[r].q_len - 2)));
        batch.check(got, r, tokens);
        if (HasFatalFailure()) return;
      }
      EXPECT_TRUE(std::none_of(got.begin(), got.end(), [](Bf16 v) { return v.bits == 0xFFFF; })) << "not all written";
      const std::vector<Bf16> again = batch.run(PrefillRows::kMultiToken);
      EXPECT_EQ(std::memcmp(got.data(), again.data(), got.size() * sizeof(Bf16)), 0) << "not the same twice";
    }
  }
}

// NaN in a key: the tokens that see it and the heads of its group are NaN, everything else is as ever. In a value: NaN
// in its dimension, for the tokens that see it; other rows and KV heads keep their numbers.
TEST(DevicePrefillCuda, NanStaysWhereItIs) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (DeviceKvFormat format : kFormats) {
    for (const Shape& shape : {Shape{32, 2, 64}, Shape{8, 2, 128}}) {
      for (int i = 0; i < 4; ++i) {
        const int plane = i % 2;
        const bool split = i / 2 == 1;
        const int32_t bad_position = static_cast<int32_t>(split ? random.integer(0, 2190) : random.integer(90, 140));
        const int32_t bad_dim = 37;
        const std::vector<Row> rows = split ? std::vector<Row>{{4, 700}, {15, 2200}, {6, 900}, {1, 77}}
                                            : std::vector<Row>{{40, 40}, {150, 200}, {60, 60}, {1, 77}};
        PrefillCase batch(random, shape, format, rows);
        std::vector<float> values = random.normals(shape.head_dim);
        values[bad_dim] = kNaN;
        batch.set_kv(1, bad_position, 1, plane, values);
        const std::vector<Bf16> got = batch.run(PrefillRows::kAll);
        EXPECT_TRUE(!split || batch.num_merges() > 0);
        for (size_t r : {size_t{0}, size_t{2}, size_t{3}}) {
          std::vector<int32_t> tokens(rows[r].q_len);
          std::iota(tokens.begin(), tokens.end(), 0);
          batch.check(got, r, tokens);
          if (HasFatalFailure()) return;
        }
        for (int32_t t = 0; t < rows[1].q_len; ++t) {
          const bool sees = rows[1].kv_len - rows[1].q_len + t >= bad_position;
          for (int32_t head = 0; head < shape.num_q_heads; ++head) {
            const bool bad_head = head / shape.group() == 1;
            for (int32_t d = 0; d < shape.head_dim; ++d) {
              const int64_t at = (int64_t{batch.q_begin(1) + t} * shape.num_q_heads + head) * shape.head_dim + d;
              const bool nan = std::isnan(as_float(got[at]));
              const bool expected = sees && bad_head && (plane == 0 || d == bad_dim);
              const bool may = plane == 1 && bad_head && d == bad_dim;  // an earlier token of the same row
              ASSERT_TRUE(nan == expected || (nan && may)) << "plane " << plane << " token " << t << " head " << head;
            }
          }
        }
      }
    }
  }
}

TEST(DevicePrefillCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (std::getenv("VAYU_SPEED") == nullptr) GTEST_SKIP() << "VAYU_SPEED is not set";
  TestRandom random;
  const Shape sarvam = {64, 4, 64}, llama = {32, 8, 128};
  struct Timed {
    Shape shape;
    std::vector<Row> rows;
    const char* name;
  };
  for (const Timed& timed :
       {Timed{sarvam, {{3584, 3584}}, "64/4x64 1x3584"}, Timed{sarvam, {{8192, 8192}}, "64/4x64 1x8192"},
        Timed{sarvam, std::vector<Row>(16, Row{896, 896}), "64/4x64 16x896"},
        Timed{sarvam, {{512, 512}}, "64/4x64 512 of 512"}, Timed{sarvam, {{512, 3584}}, "64/4x64 512 of 3584"},
        Timed{sarvam, {{1280, 1280}}, "64/4x64 1280 of 1280"}, Timed{sarvam, {{1280, 2560}}, "64/4x64 1280 of 2560"},
        Timed{sarvam, {{1216, 3584}}, "64/4x64 1216 of 3584"}, Timed{sarvam, {{100, 8192}}, "64/4x64 100 of 8192"},
        Timed{llama, {{512, 4096}}, "32/8x128 512 of 4096"}, Timed{llama, {{4096, 4096}}, "32/8x128 1x4096"}}) {
    for (DeviceKvFormat format : kFormats) {
      if (format == DeviceKvFormat::kF8E4M3 && timed.rows.back().kv_len != 3584) continue;  // 3 us more, see widen
      PrefillCase batch(random, timed.shape, format, timed.rows);
      for (const bool may_split : {false, true}) {
        batch.may_split = may_split;
        batch.upload(PrefillRows::kMultiToken);
        if (may_split && batch.num_merges() == 0) break;
        const auto call = [&](CudaStream stream) { device_prefill_cuda(stream, batch.args()); };
        const double alone = median_us(call).value();
        const double us = chained_us([&](CudaStream stream, int) { call(stream); }, 8, 4).value();
        const double tflops = batch.flops() / us * 1e-6;
        std::printf("SPEED device_prefill %s %s %s alone %.1f us, chained %.1f us %.0f TFLOP/s %.0f %%\n", timed.name,
                    format == DeviceKvFormat::kBF16 ? "bf16" : "fp8", may_split ? "split" : "whole", alone, us, tflops,
                    tflops / 800 * 100);
      }
    }
  }
}

}  // namespace
}  // namespace vayu::ops
