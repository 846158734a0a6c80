// Decode attention on the device against its plain reference. The reference works in double; the device rounds the
// weights of the softmax to BF16 (BF16 pages) or FP16 (FP8 pages) and the output to BF16 or E4M3.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>

#include "ops/attention/device_decode.h"
#include "ops/cuda/cuda_test_util.h"
#include "ops/cuda/flush.h"
#include "ops/cuda/host_rows.h"
#include "ops/rope/device_rope.h"

namespace vayu::ops {
namespace {

struct Shape {
  int32_t num_kv_heads, group, head_dim;
  DeviceKvFormat format;
  bool f8_out;
  float q_sigma = 1;
};

// kv_lens and new tokens of the rows of a batch; rows with one new token (or none cached) decode.
struct RowLens {
  int32_t kv_len, new_tokens;
};

// A batch in host and device memory. Pages are dealt in random order out of a pool; whatever belongs to no key is NaN.
class Fixture {
 public:
  Fixture(const Shape& shape, const std::vector<RowLens>& rows, TestRandom& random, int32_t max_context = 0)
      : shape_(shape) {
    std::vector<int32_t> pool;
    int64_t num_pages = 3;
    for (const RowLens& row : rows) {
      const int32_t i = static_cast<int32_t>(kv_lens_.size());
      kv_lens_.push_back(row.kv_len);
      qo_indptr_.push_back(qo_indptr_.back() + row.new_tokens);
      num_pages += (row.kv_len + 15) / 16;
      kv_indptr_.push_back(kv_indptr_.back() + (row.kv_len + 15) / 16);
      if (row.new_tokens == 1) decode_rows_.push_back(i);
      max_context = std::max(max_context, row.kv_len);
    }
    std::shuffle(decode_rows_.begin(), decode_rows_.end(), random.engine());
    pool.resize(num_pages);
    std::iota(pool.begin(), pool.end(), 0);
    std::shuffle(pool.begin(), pool.end(), random.engine());
    page_table_.assign(pool.begin(), pool.begin() + kv_indptr_.back());
    page_table_.push_back(1 << 30);  // nobody may follow this one

    num_tokens_ = qo_indptr_.back();
    q_stride_ = (shape.group + 2) * shape.num_kv_heads * shape.head_dim;
    q_ = as_bf16(random.normals(num_tokens_ * q_stride_, shape.q_sigma));
    kv_ = {.format = shape.format, .num_kv_heads = shape.num_kv_heads, .head_dim = shape.head_dim};
    pages_.assign(num_pages * kv_.page_bytes(), 0xFF);
    for (size_t row = 0; row < rows.size(); ++row) fill_keys(static_cast<int32_t>(row), random);

    args_.keys_settled = random.integer(0, 1) == 1;
    args_.max_context = max_context;
    args_.q_stride = q_stride_;
    args_.num_q_heads = shape.group * shape.num_kv_heads;
    args_.scale = 1 / (std::sqrt(static_cast<float>(shape.head_dim)) * shape.q_sigma);
    args_.out.cols = args_.num_q_heads * shape.head_dim;
  }

  // Byte offset of element d of a key (part 0) or value (part 1) of a row.
  int64_t byte_of(int32_t row, int32_t j, int32_t head, int part, int32_t d) const {
    const int64_t page = page_table_[kv_indptr_[row] + j / 16];
    return ((((page * kv_.num_kv_heads + head) * 2 + part) * 16 + j % 16) * kv_.head_dim + d) * kv_.element_bytes();
  }

  // The last key of every decode row becomes what the token's K and V columns say, as the step before attention
  // writes it.
  void take_last_keys_from_queries() {
    const int64_t width = kv_.head_dim;
    for (int32_t row : decode_rows_) {
      for (int32_t i = 0; i < 2 * kv_.num_kv_heads && kv_lens_[row] > 0; ++i) {
        const Bf16* from = q_.data() + qo_indptr_[row] * q_stride_ + (args_.num_q_heads + i) * width;
        uint8_t* to = pages_.data() + byte_of(row, kv_lens_[row] - 1, i % kv_.num_kv_heads, i / kv_.num_kv_heads, 0);
        if (kv_.format == DeviceKvFormat::kBF16) {
          std::memcpy(to, from, width * 2);
        } else {
          std::memcpy(to, as_f8(as_floats(std::vector<Bf16>(from, from + width))).data(), width);
        }
      }
    }
  }

  // Output rows, scales applied; the device's begin poisoned (NaN). write_last: the last keys are NaN in the pages and
  // written by the kernel before.
  std::vector<float> run_device(bool write_last = false) {
    const DeviceArray<uint8_t> pages(write_last ? pages_without_last_keys() : pages_);
    const DeviceArray<Bf16> q(q_);
    const DeviceArray<int32_t> qo(qo_indptr_), kvi(kv_indptr_), table(page_table_), lens(kv_lens_), rows(decode_rows_);
    const int64_t scratch_bytes = decode_attention_scratch_bytes(kv_, static_cast<int32_t>(decode_rows_.size()));
    const DeviceArray<uint8_t> scratch(scratch_bytes + 256);
    DecodeAttentionArgs args = args_;
    args.kv = kv_;
    args.kv.pages = pages.get();
    args.batch = {nullptr, nullptr, qo.get(), kvi.get(), table.get(), lens.get(), num_tokens_, num_rows()};
    args.decode_rows = rows.get();
    args.num_decode_rows = static_cast<int32_t>(decode_rows_.size());
    args.q = q.get();
    args.scratch = scratch.get();
    const DeviceArray<int32_t> positions(std::vector<int32_t>(num_tokens_, 0)), slots(last_slots());
    const DeviceArray<float> frequencies(std::vector<float>(kv_.head_dim / 2, 1));
    if (write_last) {
      device_rope_kv_write_cuda(nullptr, {.qkv = q.get(),
                                          .positions = positions.get(),  // 0: nothing turns
                                          .slot_mapping = slots.get(),
                                          .rotation = {.inv_freq = frequencies.get(), .rotary_dim = kv_.head_dim},
                                          .num_q_heads = args.num_q_heads,
                                          .num_tokens = num_tokens_,
                                          .kv = args.kv});
    }
    const int64_t count = num_tokens_ * args.out.cols;
    std::vector<float> out(count);
    if (shape_.f8_out) {
      const DeviceArray<F8E4M3> data(count);
      const DeviceArray<float> scales(num_tokens_);
      args.out.data = data.get();
      args.out.scales = scales.get();
      decode_attention_cuda(nullptr, args);
      scales_ = scales.host();
      const std::vector<F8E4M3> host = data.host();
      for (int64_t i = 0; i < count; ++i) out[i] = as_float(host[i]) * scales_[i / args.out.cols];
    } else {
      const DeviceArray<Bf16> data(count);
      args.out.data = data.get();
      decode_attention_cuda(nullptr, args);
      out = as_floats(data.host());
    }
    EXPECT_TRUE(last_launch("decode attention").ok());
    const std::vector<uint8_t> scratch_host = scratch.host();
    for (int64_t i = scratch_bytes; i < scratch.bytes(); ++i) EXPECT_EQ(scratch_host[i], 0xFF) << "scratch overrun";
    return out;
  }

  // In float: the reference's rows before any rounding of the output would need another path; BF16 output of a wider
  // row is near enough, so FP8 shapes are compared with the BF16 reference and the FP8 tolerance.
  std::vector<float> run_reference() {
    DecodeAttentionArgs args = args_;
    args.kv = kv_;
    args.kv.pages = pages_.data();
    args.batch = {nullptr,         nullptr,     qo_indptr_.data(), kv_indptr_.data(), page_table_.data(),
                  kv_lens_.data(), num_tokens_, num_rows()};
    args.decode_rows = decode_rows_.data();
    args.num_decode_rows = static_cast<int32_t>(decode_rows_.size());
    args.q = q_.data();
    std::vector<Bf16> data(num_tokens_ * args.out.cols, Bf16{0xFFFF});
    args.out.data = data.data();
    decode_attention_ref(args);
    return as_floats(data);
  }

  // Every value of every token: decoded rows within tolerance, others as poisoned.
  void expect_near(const std::vector<float>& actual, const std::vector<float>& expected) const {
    const int64_t cols = args_.out.cols;
    std::vector<bool> decodes(num_tokens_, false);
    for (int32_t row : decode_rows_) {
      if (row >= 0) decodes[qo_indptr_[row]] = true;
    }
    for (int64_t token = 0; token < num_tokens_; ++token) {
      double peak = 0, squares = 0;
      for (int64_t i = token * cols; i < (token + 1) * cols; ++i) {
        peak = std::max(peak, std::fabs(double{expected[i]}));
        squares += double{expected[i]} * expected[i];
      }
      const double rms = std::sqrt(squares / cols);
      int wrong = 0;
      for (int64_t i = token * cols; i < (token + 1) * cols && wrong < 3; ++i) {
        if (!decodes[token]) {
          if (!std::isnan(actual[i])) ++wrong, ADD_FAILURE() << "token " << token << " was written";
          continue;
        }
        // Roundings: output 2^-9 (BF16, twice: the reference too) or 2^-4 and half a subnormal step (E4M3) of the
        // value; weights 2^-9 each, which add up like noise.
        const double relative = shape_.f8_out ? 0.0625 + 0.008 : 0.008;
        const double absolute = 0.012 * rms + (shape_.f8_out ? peak / 448 / 1024 : 0);
        if (!(std::fabs(double{actual[i]} - expected[i]) <= relative * std::fabs(expected[i]) + absolute)) {
          ++wrong;
          ADD_FAILURE() << "token " << token << " column " << i % cols << ": " << actual[i] << ", expected "
                        << expected[i] << ", rms " << rms;
        }
      }
      if (decodes[token] && shape_.f8_out && peak > 0) {
        EXPECT_NEAR(scales_[token], peak / 448, 0.02 * peak / 448) << "token " << token;
      }
    }
  }

  int32_t num_rows() const { return static_cast<int32_t>(kv_lens_.size()); }

  Shape shape_;
  DeviceKvLayer kv_;
  DecodeAttentionArgs args_;
  std::vector<int32_t> qo_indptr_ = {0}, kv_indptr_ = {0}, kv_lens_, page_table_, decode_rows_;
  std::vector<Bf16> q_;
  std::vector<uint8_t> pages_;
  std::vector<float> scales_;
  int64_t q_stride_ = 0;
  int32_t num_tokens_ = 0;

 private:
  std::vector<int32_t> last_slots() const {
    std::vector<int32_t> slots(num_tokens_, -1);
    for (int32_t row : decode_rows_) {
      if (row < 0 || kv_lens_[row] == 0) continue;
      const int32_t last = kv_lens_[row] - 1;
      slots[qo_indptr_[row]] = page_table_[kv_indptr_[row] + last / 16] * 16 + last % 16;
    }
    return slots;
  }
  std::vector<uint8_t> pages_without_last_keys() const {
    std::vector<uint8_t> pages = pages_;
    for (int32_t row : decode_rows_) {
      for (int32_t i = 0; i < 2 * kv_.num_kv_heads && kv_lens_[row] > 0; ++i) {
        std::memset(pages.data() + byte_of(row, kv_lens_[row] - 1, i / 2, i % 2, 0), 0xFF,
                    kv_.head_dim * kv_.element_bytes());
      }
    }
    return pages;
  }
  void fill_keys(int32_t row, TestRandom& random) {
    const int64_t width = kv_.head_dim;
    for (int32_t j = 0; j < kv_lens_[row]; ++j) {
      for (int32_t head = 0; head < kv_.num_kv_heads; ++head) {
        for (int part = 0; part < 2; ++part) {
          const std::vector<float> values = random.normals(width);
          uint8_t* to = pages_.data() + byte_of(row, j, head, part, 0);
          if (kv_.format == DeviceKvFormat::kBF16) {
            std::memcpy(to, as_bf16(values).data(), width * 2);
          } else {
            std::memcpy(to, as_f8(values).data(), width);
          }
        }
      }
    }
  }
};

constexpr auto kBF16 = DeviceKvFormat::kBF16;
constexpr auto kF8 = DeviceKvFormat::kF8E4M3;
const Shape kShapes[] = {
    {4, 16, 64, kF8, true},   {4, 16, 64, kBF16, true}, {4, 16, 64, kF8, false},  {4, 16, 64, kBF16, false},
    {3, 3, 64, kBF16, true},  {2, 4, 32, kF8, true},    {2, 4, 32, kBF16, false}, {8, 4, 128, kF8, true},
    {4, 8, 128, kBF16, true}, {1, 16, 128, kF8, false}, {8, 1, 64, kF8, true},
};
std::string name_of(const Shape& s) {
  return std::to_string(s.num_kv_heads) + "x" + std::to_string(s.group) + "x" + std::to_string(s.head_dim) +
         (s.format == kF8 ? " f8" : " bf16") + (s.f8_out ? " to f8" : " to bf16");
}

TEST(DeviceDecodeCuda, RaggedMixedBatchesAndPageEdges) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const int32_t edges[] = {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1025};
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(name_of(shape));
    std::vector<RowLens> rows;
    for (int32_t edge : edges) rows.push_back({edge, 1});
    for (int i = 0; i < 6; ++i) rows.push_back({static_cast<int32_t>(random.integer(1, 900)), 1});
    for (int i = 0; i < 3; ++i) rows.push_back({static_cast<int32_t>(random.integer(20, 90)), 20});  // prefill chunks
    for (int i = 0; i < 3; ++i) rows.push_back({0, 1});                                              // padded
    std::shuffle(rows.begin(), rows.end(), random.engine());
    Fixture fixture(shape, rows, random, static_cast<int32_t>(random.integer(1025, 40000)));
    fixture.decode_rows_.insert(fixture.decode_rows_.begin() + 5, -1);
    fixture.expect_near(fixture.run_device(), fixture.run_reference());
  }
}

TEST(DeviceDecodeCuda, AnyNumberOfRows) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (int32_t count : unless_short({1, 2, 31, 32, 33, 127, 128, 129, 300}, {1, 32, 33, 129, 300})) {
    const Shape shape = {2, 4, 64, count % 2 ? kF8 : kBF16, count % 3 != 0};
    SCOPED_TRACE(std::to_string(count) + " rows, " + name_of(shape));
    std::vector<RowLens> rows;
    for (int32_t i = 0; i < count; ++i) rows.push_back({static_cast<int32_t>(random.integer(0, 200)), 1});
    Fixture fixture(shape, rows, random);
    fixture.expect_near(fixture.run_device(), fixture.run_reference());
  }
}

TEST(DeviceDecodeCuda, ManySplitsOfALongRow) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const Shape& shape :
       {Shape{4, 16, 64, kF8, true}, Shape{4, 16, 64, kBF16, false}, Shape{1, 8, 128, kF8, true}}) {
    SCOPED_TRACE(name_of(shape));
    const auto length = static_cast<int32_t>(unless_short(random.integer(15000, 20000), random.integer(6000, 7000)));
    Fixture fixture(shape, {{length, 1}, {3, 1}, {static_cast<int32_t>(random.integer(1, 4000)), 1}}, random);
    fixture.expect_near(fixture.run_device(), fixture.run_reference());
  }
}

TEST(DeviceDecodeCuda, PeakedWeightsAndQueriesBeyondFp16) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (float sigma : {1e-20f, 3e4f, 1e20f}) {
    for (DeviceKvFormat format : {kF8, kBF16}) {
      Fixture fixture({2, 16, 64, format, false, sigma}, {{100, 1}, {700, 1}, {1, 1}}, random);
      fixture.args_.scale *= 4;  // scores of deviation 4: a few keys carry the weight
      fixture.expect_near(fixture.run_device(), fixture.run_reference());
    }
  }
}

TEST(DeviceDecodeCuda, AllPaddedGivesZeros) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  Fixture fixture({4, 16, 64, kF8, true}, {{0, 1}, {0, 1}}, random, 4096);
  for (float v : fixture.run_device()) EXPECT_EQ(v, 0.0f);
  EXPECT_EQ(fixture.scales_, (std::vector<float>{1, 1}));
}

// NaN or infinity of one row shows in that row and changes no bit of the others.
TEST(DeviceDecodeCuda, NaNStaysInItsRow) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (DeviceKvFormat format : {kF8, kBF16}) {
    for (bool f8_out : {false, true}) {
      Fixture fixture({4, 16, 64, format, f8_out}, {{600, 1}, {601, 1}, {602, 1}, {603, 1}, {604, 1}}, random);
      const std::vector<float> clean = fixture.run_device();
      const int64_t cols = fixture.args_.out.cols;
      fixture.q_[1 * fixture.q_stride_ + 5 * 64 + 3] = Bf16{0x7FC0};  // row 1: head 5
      fixture.q_[4 * fixture.q_stride_ + 33 * 64] = Bf16{0x7F80};     // row 4: head 33, infinity
      std::memset(fixture.pages_.data() + fixture.byte_of(2, 301, 1, 0, 7), 0xFF, fixture.kv_.element_bytes());
      std::memset(fixture.pages_.data() + fixture.byte_of(3, 602, 2, 1, 9), 0xFF, fixture.kv_.element_bytes());
      const std::vector<float> dirty = fixture.run_device();
      for (int64_t i = 0; i < static_cast<int64_t>(dirty.size()); ++i) {
        const int64_t token = i / cols, head = i % cols / 64, dim = i % 64;
        const bool nan = token > 0 && f8_out ? true
                         : token == 1        ? head == 5
                         : token == 2        ? head / 16 == 1
                         : token == 3        ? head / 16 == 2 && dim == 9
                                             : token == 4 && head == 33;
        if (nan) {
          ASSERT_TRUE(std::isnan(dirty[i])) << "token " << token << " head " << head << " dim " << dim;
        } else {
          ASSERT_EQ(dirty[i], clean[i]) << "token " << token << " head " << head << " dim " << dim;
        }
      }
    }
  }
}

// The kernel starts before the one that writes the last keys and the queries has ended, and reads the other keys then.
TEST(DeviceDecodeCuda, LastKeysWrittenByTheKernelBefore) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const Shape& shape : {kShapes[0], kShapes[1], kShapes[7]}) {
    SCOPED_TRACE(name_of(shape));
    std::vector<RowLens> rows = {{1, 1}, {16, 1}, {17, 1}, {32, 1}, {33, 1}, {128, 1}, {129, 1}, {0, 1}};
    for (int i = 0; i < 30; ++i) rows.push_back({static_cast<int32_t>(random.integer(1, 1500)), 1});
    Fixture fixture(shape, rows, random);
    fixture.args_.keys_settled = true;
    fixture.take_last_keys_from_queries();
    const std::vector<float> expected = fixture.run_reference();
    for (int i = 0; i < unless_short(5, 2); ++i) fixture.expect_near(fixture.run_device(true), expected);
  }
}

// The work split depends on nothing but lengths: two runs agree to the last bit.
TEST(DeviceDecodeCuda, Repeats) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  std::vector<RowLens> rows;
  for (int i = 0; i < 40; ++i) rows.push_back({static_cast<int32_t>(random.integer(1, 1500)), 1});
  Fixture fixture({4, 16, 64, kF8, true}, rows, random);
  const std::vector<float> once = fixture.run_device();
  for (int i = 0; i < unless_short(3, 2); ++i) {
    fixture.args_.keys_settled = !fixture.args_.keys_settled;
    EXPECT_EQ(fixture.run_device(), once);
  }
}

// `sets` batches of the same lengths over pages of their own.
class SpeedCase {
 public:
  SpeedCase(DeviceKvFormat format, int32_t count, int32_t sets, TestRandom& random)
      : table_(pages(count) * sets), qo_(count + 1), kvi_(count + 1), lens_(count), rows_(count) {
    args_.kv = {.format = format, .num_kv_heads = kHeads, .head_dim = kDim};
    // A megabyte of random elements, repeated.
    const std::vector<float> normals = random.normals(1 << 20);
    const std::vector<Bf16> bf16 = as_bf16(normals);
    const std::vector<F8E4M3> f8 = as_f8(normals);
    const auto* source =
        format == kF8 ? reinterpret_cast<const uint8_t*>(f8.data()) : reinterpret_cast<const uint8_t*>(bf16.data());
    const size_t source_bytes = (1 << 20) * args_.kv.element_bytes();
    std::vector<uint8_t> pages_host(pages(count) * sets * args_.kv.page_bytes());
    for (size_t at = 0; at < pages_host.size(); at += source_bytes) {
      std::memcpy(&pages_host[at], source, std::min(source_bytes, pages_host.size() - at));
    }
    pages_ = std::make_unique<DeviceArray<uint8_t>>(pages_host);
    std::vector<int32_t> qo(count + 1), kvi(count + 1), table(pages(count) * sets), rows(count);
    for (int32_t i = 0; i <= count; ++i) qo[i] = i, kvi[i] = static_cast<int32_t>(pages(i));
    std::iota(rows.begin(), rows.end(), 0);
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), random.engine());
    table_.set(table), qo_.set(qo), kvi_.set(kvi), rows_.set(rows), lens_.set(std::vector<int32_t>(count, kContext));
    args_.q_stride = (kGroup + 2) * kHeads * kDim;
    q_ = std::make_unique<DeviceArray<Bf16>>(as_bf16(random.normals(count * args_.q_stride)));
    scratch_ = std::make_unique<DeviceArray<uint8_t>>(decode_attention_scratch_bytes(args_.kv, count));
    out_ = std::make_unique<DeviceArray<F8E4M3>>(count * kHeads * kGroup * kDim);
    scales_ = std::make_unique<DeviceArray<float>>(count);
    args_.kv.pages = pages_->get();
    args_.batch = {nullptr, nullptr, qo_.get(), kvi_.get(), nullptr, lens_.get(), count, count};
    args_.decode_rows = rows_.get();
    args_.num_decode_rows = count;
    args_.max_context = 8192;  // of the step's graph
    args_.q = q_->get();
    args_.num_q_heads = kHeads * kGroup;
    args_.scale = 0.125f;
    args_.keys_settled = true;
    args_.out = {.data = out_->get(), .scales = scales_->get(), .cols = kHeads * kGroup * kDim};
    args_.scratch = scratch_->get();
  }
  void run(CudaStream stream, int32_t set) const {
    DecodeAttentionArgs args = args_;
    args.batch.page_table = table_.get() + set * pages(args.num_decode_rows);
    decode_attention_cuda(stream, args);
  }
  double bytes() const { return 2.0 * args_.num_decode_rows * kContext * kHeads * kDim * args_.kv.element_bytes(); }

  static constexpr int32_t kHeads = 4, kGroup = 16, kDim = 64, kContext = 3650;

 private:
  static int64_t pages(int32_t count) { return int64_t{count} * ((kContext + 15) / 16); }
  DecodeAttentionArgs args_;
  DeviceArray<int32_t> table_, qo_, kvi_, lens_, rows_;
  std::unique_ptr<DeviceArray<uint8_t>> pages_, scratch_;
  std::unique_ptr<DeviceArray<Bf16>> q_;
  std::unique_ptr<DeviceArray<F8E4M3>> out_;
  std::unique_ptr<DeviceArray<float>> scales_;
};

// Alone on cold caches; in a chain, where only the pages are cold; and in a chain between reads of 96 MiB, after which
// lists and code are cold as well, as between two layers (less the time of those reads).
TEST(DeviceDecodeCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (!std::getenv("VAYU_SPEED")) GTEST_SKIP() << "set VAYU_SPEED";
  TestRandom random;
  const DeviceArray<uint8_t> other(int64_t{96} << 20);
  const auto read_other = [&](CudaStream stream) { read_memory_cuda(stream, other.get(), other.bytes()); };
  const double reads = chained_us([&](CudaStream stream, int) { read_other(stream); }, 24).value();
  for (DeviceKvFormat format : {kF8, kBF16}) {
    for (int32_t count : {1, 8, 32, 64}) {
      const int32_t sets = std::max(2, 64 / count);  // 120 MB of FP8, more than twice the second-level cache
      const SpeedCase speed(format, count, sets, random);
      const double alone = median_us([&](CudaStream stream) { speed.run(stream, 0); }).value();
      const double chained = chained_us([&](CudaStream stream, int i) { speed.run(stream, i % sets); }, 64).value();
      const auto between = [&](CudaStream stream, int i) {
        read_other(stream);
        speed.run(stream, i % sets);
      };
      const double in_step = chained_us(between, 24).value() - reads;
      std::printf(
          "SPEED decode_attention %d rows %d tokens %s alone %.1f us, chained %.1f us, between reads %.1f us, chained "
          "%.0f GB/s %.2f of the read ceiling\n",
          count, SpeedCase::kContext, format == kF8 ? "f8" : "bf16", alone, chained, in_step,
          speed.bytes() / chained * 1e-3, speed.bytes() / chained * 1e-3 / read_ceiling_gb_s());
    }
  }
}

}  // namespace
}  // namespace vayu::ops
