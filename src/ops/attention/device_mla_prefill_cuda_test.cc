// Expanded latent attention on the device against the plain reference: every token of ragged batches, sampled tokens of
// long ones. What belongs to no key of a row is poison (0xFF: NaN).
#include "ops/attention/device_mla_prefill.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <thread>

#include "ops/attention/device_mla_gather.h"
#include "ops/cuda/cuda_test_util.h"
#include "ops/cuda/num_sms.h"
#include "ops/gemm/device_gemm.h"

namespace vayu::ops {
namespace {

struct Row {
  int32_t q_len, kv_len;
};

// One batch on the host and on the device; rows of one token are left to the absorbed form.
class MlaPrefillCase {
 public:
  MlaPrefillCase(TestRandom& random, int32_t num_heads, std::vector<Row> rows, float sigma = 1, int32_t num_blocks = 0)
      : num_heads_(num_heads), rows_(std::move(rows)) {
    for (const Row& row : rows_) {
      qo_indptr_.push_back(qo_indptr_.back() + row.q_len);
      kv_indptr_.push_back(kv_indptr_.back() + (row.kv_len + 15) / 16);
      kv_lens_.push_back(row.kv_len);
    }
    make_plan(num_blocks > 0 ? num_blocks : std::min(num_sms(), kPrefillMaxBlocks));
    pool_ = random.normals(1 << 16, sigma);
    q_stride_ = int64_t{num_heads} * 192 + 576;
    q_.assign(num_tokens() * q_stride_, Bf16{0xFFFF});  // what lies behind the queries is not read
    for (int64_t t = 0; t < num_tokens(); ++t) draw(random, q_.data() + t * q_stride_, int64_t{num_heads} * 192);
    const int64_t context = pass().num_pages * 16;
    kv_.assign(context * kv_width(), Bf16{0xFFFF});
    rope_.assign(context * 64, Bf16{0xFFFF});
    for (const MlaPrefillRow& row : plan_rows_) {
      draw(random, kv_.data() + row.kv_first * kv_width(), row.kv_len * kv_width());
      draw(random, rope_.data() + row.kv_first * int64_t{64}, row.kv_len * int64_t{64});
    }
  }

  // Element d of a key (0 to 127 its head's own, 128 to 191 that of all heads) or a value.
  Bf16& key(size_t row, int32_t position, int32_t head, int32_t d) {
    const int64_t at = plan_rows_[place_[row]].kv_first + position;
    return d < 128 ? kv_[at * kv_width() + head * 128 + d] : rope_[at * 64 + d - 128];
  }
  Bf16& value(size_t row, int32_t position, int32_t head, int32_t d) {
    return kv_[(plan_rows_[place_[row]].kv_first + position) * kv_width() + (num_heads_ + head) * 128 + d];
  }

  // Output of the device; poison where nothing was written.
  std::vector<Bf16> run() {
    upload();
    device_mla_prefill_cuda(nullptr, args_);
    const Status launched = last_launch("expanded latent attention");
    EXPECT_TRUE(launched.ok()) << launched.error().message;
    return out_->host();
  }
  void upload() {
    device_items_ = std::make_unique<DeviceArray<MlaPrefillItem>>(items_);
    device_q_ = std::make_unique<DeviceArray<Bf16>>(q_);
    device_kv_ = std::make_unique<DeviceArray<Bf16>>(kv_);
    device_rope_ = std::make_unique<DeviceArray<Bf16>>(rope_);
    out_ = std::make_unique<DeviceArray<Bf16>>(num_tokens() * num_heads_ * 128);
    args_ = host_args();
    args_.q = device_q_->get();
    args_.kv = device_kv_->get();
    args_.rope = device_rope_->get();
    args_.out = out_->get();
    args_.items = device_items_->get();
    args_.num_blocks = pass().num_blocks;
  }
  const DeviceMlaPrefill& args() const { return args_; }
  const MlaPrefillPass& pass() const { return passes_.front(); }

  // Every head of these tokens: weights are rounded to BF16 (2^-9 each, independently) and so is the output, of both
  // sides: about 2e-3 of the norm of an output vector, tolerance 1e-2 a vector.
  void check(const std::vector<Bf16>& got, size_t row, const std::vector<int32_t>& tokens) {
    std::vector<Bf16> want(num_tokens() * num_heads_ * 128);
    std::vector<MlaPrefillRow> singles;
    for (const int32_t t : tokens) {
      singles.push_back({.q_begin = qo_indptr_[row] + t,
                         .q_len = 1,
                         .kv_len = rows_[row].kv_len - rows_[row].q_len + t + 1,
                         .kv_first = plan_rows_[place_[row]].kv_first});
    }
    const bool whole = static_cast<int32_t>(tokens.size()) == rows_[row].q_len;
    if (whole) singles = {plan_rows_[place_[row]]};
    DeviceMlaPrefill args = host_args();
    args.out = want.data();
    run_reference(args, singles);
    for (const int32_t t : tokens) {
      for (int64_t head = 0; head < num_heads_; ++head) {
        const int64_t at = ((qo_indptr_[row] + t) * int64_t{num_heads_} + head) * 128;
        const std::vector<float> a = as_floats(std::vector<Bf16>(got.begin() + at, got.begin() + at + 128));
        const std::vector<float> b = as_floats(std::vector<Bf16>(want.begin() + at, want.begin() + at + 128));
        ASSERT_LT(relative_error(a, b), 1e-2) << "row " << row << " (" << rows_[row].q_len << " of "
                                              << rows_[row].kv_len << ") token " << t << " head " << head;
      }
    }
  }
  void check_row(const std::vector<Bf16>& got, size_t row) {
    std::vector<int32_t> tokens(rows_[row].q_len);
    std::iota(tokens.begin(), tokens.end(), 0);
    check(got, row, tokens);
  }
  void check_all(const std::vector<Bf16>& got) {
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (rows_[r].q_len > 1) {
        check_row(got, r);
      } else {
        const int64_t width = num_heads_ * int64_t{128};
        for (int64_t i = 0; i < rows_[r].q_len * width; ++i) {
          ASSERT_EQ(got[qo_indptr_[r] * width + i].bits, 0xFFFF) << "row " << r << " is not of this form";
        }
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  int64_t num_tokens() const { return qo_indptr_.back(); }
  int32_t q_begin(size_t row) const { return qo_indptr_[row]; }
  double flops() const {
    double sum = 0;
    for (const Row& row : rows_) sum += row.q_len * (row.kv_len - 0.5 * (row.q_len - 1));
    return sum * 2 * (192 + 128) * num_heads_;
  }

 private:
  int64_t kv_width() const { return num_heads_ * int64_t{256}; }
  // Drawing every number would take longer than the tests: pieces of a pool, from random places.
  void draw(TestRandom& random, Bf16* to, int64_t count) {
    for (int64_t i = 0; i < count; i += 64) {
      const int64_t piece = std::min<int64_t>(count - i, 64);
      const auto from = random.integer(0, static_cast<int64_t>(pool_.size()) - piece);
      quantize_row(DataFormat::kBF16, pool_.data() + from, to + i, piece);
    }
  }
  void make_plan(int32_t num_blocks) {
    const auto num_rows = static_cast<int32_t>(rows_.size());
    std::vector<uint8_t> chosen(num_rows);
    std::vector<int32_t> page_table(kv_indptr_.back()), sources(kv_indptr_.back());
    std::vector<MlaPrefillItem> tiles(max_mla_prefill_tiles(num_tokens(), num_rows));
    plan_rows_.resize(num_rows);
    items_.resize(tiles.size() * num_heads_);
    passes_.resize(num_rows);
    MlaPrefillPlan plan{.num_blocks = num_blocks,
                        .num_heads = num_heads_,
                        .capacity = kv_indptr_.back() * 16,
                        .choice = MlaPrefillChoice::kAlways,
                        .chosen = chosen.data(),
                        .rows = plan_rows_.data(),
                        .max_rows = num_rows,
                        .tiles = tiles.data(),
                        .max_tiles = static_cast<int64_t>(tiles.size()),
                        .items = items_.data(),
                        .max_items = static_cast<int64_t>(items_.size()),
                        .passes = passes_.data(),
                        .sources = sources.data(),
                        .max_sources = static_cast<int64_t>(sources.size())};
    plan_mla_prefill({qo_indptr_.data(), kv_indptr_.data(), page_table.data(), kv_lens_.data(), num_rows}, plan);
    ASSERT_EQ(plan.num_passes, 1);
    plan_rows_.resize(plan.num_rows);
    for (int32_t r = 0, at = 0; r < num_rows; ++r) place_.push_back(chosen[r] ? at++ : -1);
  }
  DeviceMlaPrefill host_args() const {
    return {.q = q_.data(),
            .q_stride = q_stride_,
            .num_tokens = static_cast<int32_t>(num_tokens()),
            .kv = kv_.data(),
            .rope = rope_.data(),
            .num_context = pass().num_pages * 16,
            .num_heads = num_heads_,
            .scale = 1 / std::sqrt(192.0f)};
  }
  // Several tokens of a row side by side.
  static void run_reference(const DeviceMlaPrefill& args, const std::vector<MlaPrefillRow>& rows) {
    std::vector<MlaPrefillRow> pieces;
    for (const MlaPrefillRow& row : rows) {
      const int32_t share = (row.q_len + 15) / 16;
      for (int32_t first = 0; first < row.q_len; first += share) {
        MlaPrefillRow& piece = pieces.emplace_back(row);
        piece.q_begin += first;
        piece.q_len = std::min(share, row.q_len - first);
        piece.kv_len -= row.q_len - first - piece.q_len;
      }
    }
    std::vector<std::thread> threads;
    for (const MlaPrefillRow& piece : pieces) {
      threads.emplace_back([&args, &piece] {
        DeviceMlaPrefill mine = args;
        mine.rows = &piece;
        mine.num_rows = 1;
        device_mla_prefill_ref(mine);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  int32_t num_heads_;
  std::vector<Row> rows_;
  std::vector<int32_t> qo_indptr_ = {0}, kv_indptr_ = {0}, kv_lens_, place_;
  std::vector<MlaPrefillRow> plan_rows_;
  std::vector<MlaPrefillItem> items_;
  std::vector<MlaPrefillPass> passes_;
  std::vector<float> pool_;
  int64_t q_stride_ = 0;
  std::vector<Bf16> q_, kv_, rope_;
  std::unique_ptr<DeviceArray<MlaPrefillItem>> device_items_;
  std::unique_ptr<DeviceArray<Bf16>> device_q_, device_kv_, device_rope_, out_;
  DeviceMlaPrefill args_;
};

// Page edges, edges of warpgroups (64 tokens), tiles and blocks of keys (128), continued chunks; and random rows. On
// one thread block after the other, and on as many as there are.
TEST(DeviceMlaPrefillCuda, RaggedBatches) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const int32_t heads : {1, 5, 16}) {
    std::vector<Row> rows = {{2, 2},     {2, 17},    {15, 15}, {16, 16},   {17, 33},   {1, 1},
                             {63, 63},   {64, 64},   {65, 65}, {127, 127}, {128, 128}, {129, 129},
                             {130, 400}, {64, 1000}, {1, 300}, {3, 129},   {5, 256},   {257, 300}};
    for (int i = 0; i < unless_short(6, 2); ++i) {
      const auto q_len = static_cast<int32_t>(random.integer(2, 300));
      rows.push_back({q_len, q_len + static_cast<int32_t>(random.integer(0, 400))});
    }
    std::shuffle(rows.begin(), rows.end(), random.engine());
    if (short_tests()) rows.resize(heads == 16 ? 6 : 14);
    for (const int32_t blocks : unless_short({0, 7, 1}, {0, 3})) {
      SCOPED_TRACE(testing::Message() << heads << " heads, " << blocks << " thread blocks");
      MlaPrefillCase batch(random, heads, rows, 1, blocks);
      batch.check_all(batch.run());
      if (HasFatalFailure()) return;
    }
  }
}

// The published number of heads.
TEST(DeviceMlaPrefillCuda, AllHeads) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  MlaPrefillCase batch(random, 64, unless_short<Row>({{150, 150}, {1, 40}, {70, 333}, {90, 90}}, {{70, 133}, {1, 40}}));
  batch.check_all(batch.run());
}

// Logits of 16 times the usual spread: bases rise by far more than the slack, weights are nearly 0 or 1.
TEST(DeviceMlaPrefillCuda, WideLogits) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  MlaPrefillCase batch(random, 3, {{200, 700}, {150, 150}, {20, 1500}}, 4);
  batch.check_all(batch.run());
}

// Prompts up to 4,000 tokens, with a chunk that continues one; sampled tokens of each, and all written.
TEST(DeviceMlaPrefillCuda, LongPrompts) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const std::vector<Row> rows =
      unless_short<Row>({{3584, 3584}, {1000, 6000}, {4000, 4000}}, {{700, 700}, {200, 1500}});
  MlaPrefillCase batch(random, 8, rows);
  const std::vector<Bf16> got = batch.run();
  for (size_t r = 0; r < rows.size(); ++r) {
    std::vector<int32_t> tokens = {0, rows[r].q_len - 1};
    for (int i = 0; i < 6; ++i) tokens.push_back(static_cast<int32_t>(random.integer(1, rows[r].q_len - 2)));
    batch.check(got, r, tokens);
    if (HasFatalFailure()) return;
  }
  EXPECT_TRUE(std::none_of(got.begin(), got.end(), [](Bf16 v) { return v.bits == 0xFFFF; })) << "not all written";
  const std::vector<Bf16> again = batch.run();
  EXPECT_EQ(std::memcmp(got.data(), again.data(), got.size() * sizeof(Bf16)), 0) << "not the same twice";
}

// NaN in a head's own key: the tokens that see it are NaN in that head; in the rotated key, in every head; in a value,
// in its dimension. Everything else is as ever.
TEST(DeviceMlaPrefillCuda, NanStaysWhereItIs) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  constexpr int32_t kHeads = 4, kBadHead = 1, kBadDim = 37;
  enum Place { kKey, kRope, kValue };
  for (const Place place : {kKey, kRope, kValue}) {
    const std::vector<Row> rows = {{40, 40}, {150, 290}, {60, 60}, {70, 200}};
    MlaPrefillCase batch(random, kHeads, rows, 1, static_cast<int32_t>(random.integer(1, 20)));
    const auto bad_position = static_cast<int32_t>(random.integer(100, 280));
    (place == kKey    ? batch.key(1, bad_position, kBadHead, kBadDim)
     : place == kRope ? batch.key(1, bad_position, kBadHead, 128 + kBadDim)
                      : batch.value(1, bad_position, kBadHead, kBadDim)) = Bf16{0x7FC0};
    const std::vector<Bf16> got = batch.run();
    for (const size_t r : {size_t{0}, size_t{2}, size_t{3}}) {
      batch.check_row(got, r);
      if (HasFatalFailure()) return;
    }
    for (int32_t t = 0; t < rows[1].q_len; ++t) {
      const bool sees = rows[1].kv_len - rows[1].q_len + t >= bad_position;
      for (int32_t head = 0; head < kHeads; ++head) {
        for (int32_t d = 0; d < 128; ++d) {
          const bool nan = std::isnan(as_float(got[((batch.q_begin(1) + t) * int64_t{kHeads} + head) * 128 + d]));
          const bool bad = (place == kRope || head == kBadHead) && (place != kValue || d == kBadDim);
          const bool may = place == kValue && bad;  // an earlier token of the same row
          ASSERT_TRUE(nan == (sees && bad) || (nan && may)) << "place " << place << " token " << t << " head " << head;
        }
      }
    }
  }
}

// 64 heads; beside the attention what goes before it: the latents of the context gathered and expanded.
TEST(DeviceMlaPrefillCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (std::getenv("VAYU_SPEED") == nullptr) GTEST_SKIP() << "VAYU_SPEED is not set";
  TestRandom random;
  struct Timed {
    std::vector<Row> rows;
    const char* name;
  };
  for (const Timed& timed : {Timed{{{3584, 3584}}, "3584 of 3584"}, Timed{{{8192, 8192}}, "8192 of 8192"},
                             Timed{std::vector<Row>(4, Row{896, 896}), "4x 896 of 896"},
                             Timed{{{512, 3584}}, "512 of 3584"}, Timed{{{64, 3584}}, "64 of 3584"}}) {
    MlaPrefillCase batch(random, 64, timed.rows);
    batch.upload();
    const auto attend = [&](CudaStream stream) { device_mla_prefill_cuda(stream, batch.args()); };
    const double us = chained_us([&](CudaStream stream, int) { attend(stream); }, 4, 4).value();
    std::printf("SPEED mla_prefill %s alone %.1f us, chained %.1f us %.0f TFLOP/s %.0f %%\n", timed.name,
                median_us(attend).value(), us, batch.flops() / us * 1e-6, batch.flops() / us * 1e-6 / 800 * 100);

    const int32_t context = batch.pass().num_pages * 16;
    const DeviceArray<Bf16> latents(as_bf16(random.normals(context * int64_t{512})));
    const DeviceArray<Bf16> weight(as_bf16(random.normals(16384 * int64_t{512}, 0.05f)));
    const DeviceArray<Bf16> kv(context * int64_t{16384});
    DeviceGemmArgs gemm{.weight = {.data = weight.get(), .rows = 16384, .cols = 512}, .num_rows = context};
    gemm.x = {.data = latents.get(), .cols = 512};
    gemm.out = {.data = kv.get(), .cols = 16384};
    const double gemm_us = chained_us([&](CudaStream s, int) { device_gemm_cuda(s, gemm); }, 4, 4).value();
    const double gemm_tflops = 2.0 * context * 16384 * 512 / gemm_us * 1e-6;
    std::printf("SPEED mla_expand %s context %d %.1f us %.0f TFLOP/s %.0f %%\n", timed.name, context, gemm_us,
                gemm_tflops, gemm_tflops / 800 * 100);
  }
}

}  // namespace
}  // namespace vayu::ops
