// Latent attention on the device against its plain reference. The reference works in double; the device rounds the
// weights of the softmax, the results of splits and the output to BF16.
#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "ops/attention/device_mla.h"
#include "ops/cuda/cuda_test_util.h"

namespace vayu::ops {
namespace {

constexpr auto kBF16 = DeviceKvFormat::kBF16;
constexpr auto kF8 = DeviceKvFormat::kF8E4M3;

struct Shape {
  int32_t num_heads, latent_dim, rope_dim;
  DeviceKvFormat format;
};
std::string name_of(const Shape& s) {
  return std::to_string(s.num_heads) + " heads, " + std::to_string(s.latent_dim) + "+" + std::to_string(s.rope_dim) +
         (s.format == kF8 ? " f8" : " bf16");
}
const Shape kShapes[] = {{64, 512, 64, kBF16}, {64, 512, 64, kF8},  {8, 128, 32, kBF16},
                         {8, 128, 32, kF8},    {5, 272, 16, kBF16}, {33, 48, 64, kF8}};

struct RowLens {
  int32_t kv_len, new_tokens;
};

// A batch in host memory. Pages are dealt in random order out of a pool; whatever belongs to no key is NaN.
class Fixture {
 public:
  Fixture(const Shape& shape, const std::vector<RowLens>& rows, TestRandom& random, int32_t spare_tokens = 0)
      : shape_(shape) {
    for (const RowLens& row : rows) {
      kv_lens_.push_back(row.kv_len);
      qo_indptr_.push_back(qo_indptr_.back() + row.new_tokens);
      kv_indptr_.push_back(kv_indptr_.back() + (row.kv_len + 15) / 16);
      max_context_ = std::max(max_context_, row.kv_len);
    }
    std::vector<int32_t> pool(kv_indptr_.back() + 3);
    std::iota(pool.begin(), pool.end(), 0);
    std::shuffle(pool.begin(), pool.end(), random.engine());
    page_table_.assign(pool.begin(), pool.begin() + kv_indptr_.back());
    page_table_.push_back(1 << 30);  // nobody may follow this one
    num_tokens_ = qo_indptr_.back() + spare_tokens;
    kv_ = {.format = shape.format,
           .num_kv_heads = 1,
           .head_dim = shape.latent_dim + shape.rope_dim,
           .latent_dim = shape.latent_dim};
    pages_.assign(pool.size() * kv_.page_bytes(), 0xFF);
    for (int32_t row = 0; row < static_cast<int32_t>(rows.size()); ++row) {
      for (int32_t j = 0; j < kv_lens_[row]; ++j) {
        const std::vector<float> values = random.normals(kv_.head_dim);
        if (shape.format == kBF16) {
          std::memcpy(&pages_[byte_of(row, j, 0)], as_bf16(values).data(), kv_.head_dim * 2);
        } else {
          std::memcpy(&pages_[byte_of(row, j, 0)], as_f8(values).data(), kv_.head_dim);
        }
      }
    }
    q_ = as_bf16(random.normals(int64_t{num_tokens_} * shape.num_heads * kv_.head_dim));
  }

  int64_t byte_of(int32_t row, int32_t j, int32_t d) const {
    const int64_t page = page_table_[kv_indptr_[row] + j / 16];
    return ((page * 16 + j % 16) * kv_.head_dim + d) * kv_.element_bytes();
  }
  int64_t out_row() const { return int64_t{shape_.num_heads} * shape_.latent_dim; }

  std::vector<float> run_device() const {
    const DeviceArray<uint8_t> pages(pages_);
    const DeviceArray<Bf16> q(q_), out(num_tokens_ * out_row());
    const DeviceArray<int32_t> qo(qo_indptr_), kvi(kv_indptr_), table(page_table_), lens(kv_lens_);
    const int64_t scratch_bytes = mla_attention_scratch_bytes(shape_.num_heads, kv_);
    const DeviceArray<uint8_t> scratch(scratch_bytes + 256);
    MlaAttentionArgs args = arguments();
    args.kv.pages = pages.get();
    args.batch.qo_indptr = qo.get();
    args.batch.kv_indptr = kvi.get();
    args.batch.page_table = table.get();
    args.batch.kv_lens = lens.get();
    args.q = q.get();
    args.out = out.get();
    args.scratch = scratch.get();
    const DeviceArray<Bf16> wide(wide_capacity_ * kv_.page_elements() + 1024);
    if (wide_capacity_ > 0) {
      args.num_table_pages = kv_indptr_.back();
      args.wide_pages = wide.get();
      args.wide_capacity = wide_capacity_;
    }
    mla_attention_cuda(nullptr, args);
    const std::vector<Bf16> wide_host = wide.host();
    for (size_t i = wide_host.size() - 1024; i < wide_host.size(); ++i) EXPECT_EQ(wide_host[i].bits, 0xFFFF);
    EXPECT_TRUE(last_launch("latent attention").ok());
    const std::vector<uint8_t> scratch_host = scratch.host();
    for (int64_t i = scratch_bytes; i < scratch.bytes(); ++i) EXPECT_EQ(scratch_host[i], 0xFF) << "scratch overrun";
    return as_floats(out.host());
  }

  std::vector<float> run_reference() {
    std::vector<Bf16> out(num_tokens_ * out_row(), Bf16{0xFFFF});
    MlaAttentionArgs args = arguments();
    args.kv.pages = pages_.data();
    args.batch.qo_indptr = qo_indptr_.data();
    args.batch.kv_indptr = kv_indptr_.data();
    args.batch.page_table = page_table_.data();
    args.batch.kv_lens = kv_lens_.data();
    args.q = q_.data();
    args.out = out.data();
    mla_attention_ref(args);
    return as_floats(out);
  }

  // Output and splits round by 2^-9 of the value each, the reference too; weights by 2^-9 each, which add up like
  // noise.
  void expect_near(const std::vector<float>& actual, const std::vector<float>& expected) const {
    const int64_t width = shape_.latent_dim;
    int wrong = 0;
    for (int64_t first = 0; first < static_cast<int64_t>(expected.size()); first += width) {
      double squares = 0;
      for (int64_t i = first; i < first + width; ++i) squares += double{expected[i]} * expected[i];
      const double absolute = 0.015 * std::sqrt(squares / width);
      for (int64_t i = first; i < first + width && wrong < 8; ++i) {
        if (!(std::fabs(double{actual[i]} - expected[i]) <= 0.012 * std::fabs(expected[i]) + absolute)) {
          ++wrong;
          ADD_FAILURE() << "token " << i / out_row() << " head " << i % out_row() / width << " column " << i % width
                        << ": " << actual[i] << ", expected " << expected[i];
        }
      }
    }
  }

  Shape shape_;
  DeviceKvLayer kv_;
  std::vector<int32_t> qo_indptr_ = {0}, kv_indptr_ = {0}, kv_lens_, page_table_;
  std::vector<uint8_t> pages_;
  std::vector<Bf16> q_;
  int32_t num_tokens_ = 0, max_context_ = 0, wide_capacity_ = 0;

 private:
  MlaAttentionArgs arguments() const {
    MlaAttentionArgs args;
    args.batch.num_tokens = num_tokens_;
    args.batch.num_rows = static_cast<int32_t>(kv_lens_.size());
    args.max_context = max_context_;
    args.num_heads = shape_.num_heads;
    args.scale = 1.5f / std::sqrt(static_cast<float>(kv_.head_dim));
    args.kv = kv_;
    return args;
  }
};

TEST(DeviceMlaCuda, DecodeRowsAndPageEdges) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(name_of(shape));
    std::vector<RowLens> rows;
    for (int32_t edge : {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 80, 127, 128, 129, 300}) rows.push_back({edge, 1});
    rows.push_back({0, 1});  // padded
    rows.push_back({static_cast<int32_t>(random.integer(1, 900)), 1});
    std::shuffle(rows.begin(), rows.end(), random.engine());
    Fixture fixture(shape, rows, random, 2);  // two tokens of no row
    fixture.expect_near(fixture.run_device(), fixture.run_reference());
  }
}

TEST(DeviceMlaCuda, ChunksAndDecodeRowsTogether) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const Shape& shape : kShapes) {
    for (int32_t chunk : unless_short({3, 17, 120}, {17, 120})) {  // the last: more tokens than splits are made for
      SCOPED_TRACE(name_of(shape) + ", chunk of " + std::to_string(chunk));
      std::vector<RowLens> rows = {{chunk, chunk}, {5, 5}, {70, 2}, {1, 1}, {129, 1}, {0, 0}, {0, 1}};
      rows.push_back({static_cast<int32_t>(chunk + random.integer(0, 60)), chunk});
      std::shuffle(rows.begin(), rows.end(), random.engine());
      Fixture fixture(shape, rows, random);
      fixture.expect_near(fixture.run_device(), fixture.run_reference());
    }
  }
}

TEST(DeviceMlaCuda, ManySplitsOfALongRow) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const Shape& shape : {kShapes[0], kShapes[1], kShapes[2]}) {
    SCOPED_TRACE(name_of(shape));
    Fixture fixture(
        shape,
        {{static_cast<int32_t>(unless_short(random.integer(5000, 6000), random.integer(2500, 3000))), 1}, {9, 1}},
        random);
    fixture.expect_near(fixture.run_device(), fixture.run_reference());
  }
}

// FP8 rows widened before: the same to the last bit as widened inside, since both are exact.
TEST(DeviceMlaCuda, WidenedBeforeIsTheSame) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const Shape& shape : {kShapes[1], kShapes[3], kShapes[5]}) {
    SCOPED_TRACE(name_of(shape));
    Fixture fixture(shape, {{150, 100}, {40, 40}, {0, 0}, {129, 1}, {77, 77}}, random);
    const std::vector<float> inside = fixture.run_device();
    for (int32_t capacity : {fixture.kv_indptr_.back(), fixture.kv_indptr_.back() - 1}) {
      fixture.wide_capacity_ = capacity;
      EXPECT_EQ(fixture.run_device(), inside);
    }
  }
}

// NaN of one token's query or of a cache row shows where it is seen and changes no bit elsewhere.
TEST(DeviceMlaCuda, NaNStaysWhereItIsSeen) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(name_of(shape));
    Fixture fixture(shape, {{200, 1}, {100, 4}, {150, 1}}, random);
    const std::vector<float> clean = fixture.run_device();
    fixture.q_[(int64_t{5} * shape.num_heads + 2) * fixture.kv_.head_dim + 3] = Bf16{0x7FC0};  // the last row, head 2
    std::memset(&fixture.pages_[fixture.byte_of(1, 98, 1)], 0xFF,
                fixture.kv_.element_bytes());  // tokens 3 and 4 see it
    const std::vector<float> dirty = fixture.run_device();
    for (int64_t i = 0; i < static_cast<int64_t>(dirty.size()); ++i) {
      const int64_t token = i / fixture.out_row(), head = i % fixture.out_row() / shape.latent_dim;
      if (token == 3 || token == 4 || (token == 5 && head == 2)) {
        ASSERT_TRUE(std::isnan(dirty[i])) << "token " << token << " head " << head;
      } else {
        ASSERT_EQ(dirty[i], clean[i]) << "token " << token << " head " << head;
      }
    }
  }
}

TEST(DeviceMlaCuda, Repeats) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const Shape& shape : {kShapes[0], kShapes[1]}) {
    Fixture fixture(shape, {{unless_short(1500, 500), 1}, {300, 1}, {64, 40}}, random);
    const std::vector<float> once = fixture.run_device();
    for (int i = 0; i < unless_short(3, 1); ++i) EXPECT_EQ(fixture.run_device(), once);
  }
}

void print_speed(DeviceKvFormat format, int32_t rows, int32_t new_tokens, int32_t context, TestRandom& random) {
  const int32_t heads = 64, pages_of_row = (context + 15) / 16, tokens = rows * new_tokens;
  MlaAttentionArgs args;
  args.kv = {.format = format, .num_kv_heads = 1, .head_dim = 576, .latent_dim = 512};
  const std::vector<float> normals = random.normals(1 << 20);
  const std::vector<Bf16> bf16 = as_bf16(normals);
  const std::vector<F8E4M3> f8 = as_f8(normals);
  const auto* source =
      format == kF8 ? reinterpret_cast<const uint8_t*>(f8.data()) : reinterpret_cast<const uint8_t*>(bf16.data());
  const size_t source_bytes = (1 << 20) * args.kv.element_bytes();
  std::vector<uint8_t> pages(rows * pages_of_row * args.kv.page_bytes());
  for (size_t at = 0; at < pages.size(); at += source_bytes) {
    std::memcpy(&pages[at], source, std::min(source_bytes, pages.size() - at));
  }
  std::vector<Bf16> q(int64_t{tokens} * heads * 576);
  for (size_t at = 0; at < q.size(); at += bf16.size()) {
    std::copy_n(bf16.begin(), std::min(bf16.size(), q.size() - at), q.begin() + static_cast<int64_t>(at));
  }
  std::vector<int32_t> qo(rows + 1), kvi(rows + 1), table(rows * pages_of_row), lens(rows, context);
  for (int32_t i = 0; i <= rows; ++i) qo[i] = i * new_tokens, kvi[i] = i * pages_of_row;
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), random.engine());
  const DeviceArray<uint8_t> d_pages(pages), scratch(mla_attention_scratch_bytes(heads, args.kv));
  const DeviceArray<int32_t> d_qo(qo), d_kvi(kvi), d_table(table), d_lens(lens);
  const DeviceArray<Bf16> d_q(q), out(int64_t{tokens} * heads * 512);
  args.kv.pages = d_pages.get();
  args.batch = {nullptr, nullptr, d_qo.get(), d_kvi.get(), d_table.get(), d_lens.get(), tokens, rows};
  args.max_context = 4096;
  args.num_heads = heads;
  args.q = d_q.get();
  args.out = out.get();
  args.scale = 0.07f;
  args.scratch = scratch.get();
  const DeviceArray<Bf16> wide(tokens > kMlaWideTokens ? rows * pages_of_row * args.kv.page_elements() : 16);
  args.num_table_pages = rows * pages_of_row;
  args.wide_pages = wide.get();
  args.wide_capacity = rows * pages_of_row;
  const double us = median_us([&](CudaStream stream) { mla_attention_cuda(stream, args); }).value();
  const double pairs = rows * (double{1} * new_tokens * context - 0.5 * new_tokens * (new_tokens - 1));
  const double flops = pairs * heads * 2 * (576 + 512),
               bytes = double{1} * rows * context * 576 * args.kv.element_bytes();
  std::printf(
      "SPEED mla_attention %d rows of %d tokens, context %d %s %.1f us %.0f GB/s %.2f of the read ceiling, %.0f "
      "TFLOP/s %.2f of "
      "800\n",
      rows, new_tokens, context, format == kF8 ? "f8" : "bf16", us, bytes / us * 1e-3,
      bytes / us * 1e-3 / read_ceiling_gb_s(), flops / us * 1e-6, flops / us * 1e-6 / 800);
}

TEST(DeviceMlaCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (!std::getenv("VAYU_SPEED")) GTEST_SKIP() << "set VAYU_SPEED";
  TestRandom random;
  for (DeviceKvFormat format : {kF8, kBF16}) {
    for (int32_t rows : {1, 8, 32, 64}) print_speed(format, rows, 1, 3650, random);
    print_speed(format, 1, 3584, 3584, random);
  }
}

}  // namespace
}  // namespace vayu::ops
