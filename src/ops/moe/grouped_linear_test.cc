// One body for every backend and format. linear() is the definition (linear_test.cc holds it to the dequantised
// weights): every grouped row must equal, bit for bit, that row alone through linear() with its group's weights, which
// also says that threads and the other rows change nothing.
#include "ops/moe/grouped_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "ops/cpu/op_test_util.h"
#include "ops/gemm/linear.h"
#include "ops/gemm/matrix_test_util.h"

namespace vayu::ops {
namespace {

constexpr int32_t kGroups = 5;
constexpr int64_t kOutputs = 37;  // of a group: 21 + 16 rows, so that one part of the two ends in a padded tile
constexpr int64_t kGap = 3;       // floats between rows of x and of y

struct Grouped {
  TestMatrix weights;  // two parts a group, as gate and up
  int64_t cols = 0;
  std::vector<float> x;      // (num_x, cols + kGap)
  std::vector<float> alone;  // (kGroups, num_x, kOutputs): every row through linear() with every group's weights
  int64_t num_x = 0;

  int64_t x_stride() const { return cols + kGap; }
  const float* expected(int64_t group, int64_t row) const { return &alone[(group * num_x + row) * kOutputs]; }
  std::span<const MatrixView> group(int64_t g) const { return std::span(weights.views).subspan(2 * g, 2); }
};

Grouped random_grouped(TestRandom& random, DataFormat format, int64_t cols, int64_t num_x) {
  Grouped data;
  data.cols = cols;
  data.num_x = num_x;
  std::vector<int64_t> rows;
  for (int32_t g = 0; g < kGroups; ++g) rows.insert(rows.end(), {21, kOutputs - 21});
  data.weights = random_matrix(random.engine(), std::vector<DataFormat>(rows.size(), format), rows, cols);
  data.x = random.normals(num_x * data.x_stride());
  return data;
}

void run_alone(const OpContext& ctx, Grouped& data) {
  data.alone.assign(kGroups * data.num_x * kOutputs, kNaN);
  TestScratch scratch(linear_scratch_bytes(ctx, 1, data.cols));
  for (int32_t g = 0; g < kGroups; ++g) {
    const auto weight = std::move(pack_matrix(ctx, data.group(g))).value();
    for (int64_t row = 0; row < data.num_x; ++row) {
      linear(ctx, {.weight = weight.get(),
                   .x = &data.x[row * data.x_stride()],
                   .y = &data.alone[(g * data.num_x + row) * kOutputs],
                   .num_tokens = 1,
                   .scratch = scratch.get()});
    }
  }
}

// Rows a group; x rows at random (also twice), y rows a permutation.
void check_grouped(const OpContext& ctx, const Matrix& weight, const Grouped& data, TestRandom& random,
                   const std::vector<int32_t>& counts) {
  std::vector<int32_t> indptr = {0};
  for (int32_t count : counts) indptr.push_back(indptr.back() + count);
  const int32_t num_rows = indptr.back();
  std::vector<int32_t> x_rows(num_rows);
  for (int32_t& row : x_rows) row = static_cast<int32_t>(random.integer(0, data.num_x - 1));
  std::vector<int32_t> y_rows(num_rows);
  std::iota(y_rows.begin(), y_rows.end(), 0);
  std::shuffle(y_rows.begin(), y_rows.end(), random.engine());
  const int64_t y_stride = kOutputs + kGap;
  std::vector<float> y(num_rows * y_stride, -7.0f);
  const int64_t scratch_bytes = grouped_linear_scratch_bytes(ctx, num_rows, data.cols, kGroups);
  TestScratch scratch(scratch_bytes + 64);
  auto* guard = static_cast<uint8_t*>(scratch.get()) + scratch_bytes;
  std::memset(guard, 0xAB, 64);
  grouped_linear(ctx, {.weight = &weight,
                       .num_groups = kGroups,
                       .group_indptr = indptr.data(),
                       .x_rows = x_rows.data(),
                       .y_rows = y_rows.data(),
                       .x = data.x.data(),
                       .x_stride = data.x_stride(),
                       .y = y.data(),
                       .y_stride = y_stride,
                       .scratch = scratch.get()});
  for (int i = 0; i < 64; ++i) ASSERT_EQ(guard[i], 0xAB) << "wrote past scratch";
  for (int32_t g = 0; g < kGroups; ++g) {
    for (int32_t i = indptr[g]; i < indptr[g + 1]; ++i) {
      const float* got = &y[y_rows[i] * y_stride];
      ASSERT_EQ(std::memcmp(got, data.expected(g, x_rows[i]), kOutputs * sizeof(float)), 0)
          << "group " << g << ", row " << i - indptr[g] << " of " << counts[g];
      for (int64_t gap = 0; gap < kGap; ++gap) ASSERT_EQ(got[kOutputs + gap], -7.0f) << "wrote between rows";
    }
  }
}

class GroupedLinearTest : public testing::TestWithParam<DataFormat> {};

INSTANTIATE_TEST_SUITE_P(Formats, GroupedLinearTest, testing::ValuesIn(matrix_formats()),
                         [](const auto& info) { return std::string(format_info(info.param).name); });

TEST_P(GroupedLinearTest, EveryRowIsThatOfLinear) {
  TestRandom random;
  const int64_t cols = 1024;  // more than one chunk of inputs
  Grouped data = random_grouped(random, GetParam(), cols, kSanitized ? 3 : 9);
  const auto check = [&](const OpContext& ctx, const std::string& name) {
    SCOPED_TRACE(name);
    run_alone(ctx, data);
    const auto weight = std::move(pack_matrix(ctx, data.weights.views)).value();
    check_grouped(ctx, *weight, data, random, {1, 1, 1, 1, 1});    // decode
    check_grouped(ctx, *weight, data, random, {0, 0, 0, 0, 0});    // nothing at all
    check_grouped(ctx, *weight, data, random, {0, 0, 130, 0, 0});  // one has all: more than a block of token groups
    check_grouped(ctx, *weight, data, random, {101, 0, 1, 13, 0});
    std::vector<int32_t> counts(kGroups);
    for (int32_t& count : counts) count = static_cast<int32_t>(std::max<int64_t>(0, random.integer(-10, 30)));
    check_grouped(ctx, *weight, data, random, counts);
  };
  check({Backend::kReference, nullptr}, "reference");
  for_each_cpu_variant(check);
}

// As attention uses it: the heads of a token lie side by side, and each head has weights of its own.
TEST(GroupedLinear, HeadsSideBySide) {
  TestRandom random;
  constexpr int32_t kHeads = 4;
  constexpr int64_t kIn = 96;
  constexpr int64_t kOut = 40;
  constexpr int64_t kTokens = 7;
  constexpr int64_t kXStride = kIn + 32;  // a head of x is longer than what this product reads
  const std::vector<DataFormat> formats(kHeads, DataFormat::kQ8_0);
  const std::vector<int64_t> rows(kHeads, kOut);
  const TestMatrix m = random_matrix(random.engine(), formats, rows, kIn);
  const auto x = random.normals(kTokens * kHeads * kXStride);
  std::vector<int32_t> indptr;
  std::vector<int32_t> list;
  for (int32_t h = 0; h <= kHeads; ++h) indptr.push_back(h * kTokens);
  for (int32_t h = 0; h < kHeads; ++h) {
    for (int32_t t = 0; t < kTokens; ++t) list.push_back(t * kHeads + h);
  }
  std::vector<float> w(kIn);
  const auto check = [&](const OpContext& ctx, const std::string& name) {
    const auto weight = std::move(pack_matrix(ctx, m.views)).value();
    std::vector<float> y(kTokens * kHeads * kOut, kNaN);
    TestScratch scratch(grouped_linear_scratch_bytes(ctx, kTokens * kHeads, kIn, kHeads));
    grouped_linear(ctx, {weight.get(), kHeads, indptr.data(), list.data(), list.data(), x.data(), kXStride, y.data(),
                         kOut, scratch.get()});
    for (int64_t i = 0; i < kTokens * kHeads * kOut; ++i) {
      const int64_t row = i / kOut;
      const int64_t head = row % kHeads;
      dequantize_row(DataFormat::kQ8_0, m.bytes[head].data() + i % kOut * row_bytes(DataFormat::kQ8_0, kIn), w.data(),
                     kIn);
      double want = 0;
      for (int64_t c = 0; c < kIn; ++c) want += double{x[row * kXStride + c]} * w[c];
      ASSERT_NEAR(y[i], want, 2e-3) << name << " row " << row;
    }
  };
  check({Backend::kReference, nullptr}, "reference");
  for_each_cpu_variant(check);
}

}  // namespace
}  // namespace vayu::ops
