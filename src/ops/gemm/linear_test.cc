// One body for every backend and format: kReference against a plain product of the dequantised weights, kCpu (on every
// instruction set this machine has) against kReference.
#include "ops/gemm/linear.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "ops/cpu/thread_pool.h"
#include "ops/gemm/matrix_test_util.h"

namespace vayu::ops {
namespace {

// Largest error, as a fraction of |x| |w| (Euclidean norms). Integer activations round to 1/65278 of a block's peak.
double tolerance(DataFormat format) {
  switch (format) {
    case DataFormat::kF32:
    case DataFormat::kF16:
    case DataFormat::kBF16:
      return 1e-6;
    default:
      return 2e-5;
  }
}

std::vector<float> random_activations(std::mt19937& random, int64_t n) {
  std::normal_distribution<float> normal(0.05f, 1.0f);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

// y starts as `fill`: a number when accumulating, NaN to catch outputs nobody wrote.
std::vector<float> run_linear(const OpContext& ctx, const Matrix& weight, const std::vector<float>& x,
                              bool accumulate = false, float fill = std::numeric_limits<float>::quiet_NaN()) {
  const int64_t tokens = static_cast<int64_t>(x.size()) / weight.cols();
  const int64_t scratch_bytes = linear_scratch_bytes(ctx, tokens, weight.cols());
  std::vector<uint8_t> scratch(scratch_bytes + 128, 0xff);  // NaN patterns; the last 64 bytes must stay
  auto* aligned = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
  std::vector<float> y(tokens * weight.rows() + 16, fill);
  linear(ctx, {&weight, x.data(), y.data(), tokens, accumulate, aligned});
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(std::memcmp(&y[tokens * weight.rows() + i], &fill, sizeof(float)), 0) << "wrote past y";
  }
  for (int i = 0; i < 64; ++i) EXPECT_EQ(aligned[scratch_bytes + i], 0xff) << "wrote past scratch";
  y.resize(tokens * weight.rows());
  return y;
}

std::unique_ptr<Matrix> pack(const OpContext& ctx, std::span<const MatrixView> views) {
  auto packed = pack_matrix(ctx, views);
  EXPECT_TRUE(packed.ok());
  return std::move(packed).value();
}

void choose_target(int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Runs the body for each instruction set that was compiled and that this machine has.
template <class F>
void for_each_target(F&& body) {
  hwy::SetSupportedTargetsForTest(0);
  for (int64_t target : {HWY_AVX3_DL, HWY_AVX3, HWY_AVX2, HWY_STATIC_TARGET}) {
    hwy::SetSupportedTargetsForTest(0);
    if (target != HWY_STATIC_TARGET && (hwy::SupportedTargets() & target) == 0) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    choose_target(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

void expect_close(const std::vector<float>& got, const std::vector<float>& want, const TestMatrix& m,
                  const std::vector<float>& x) {
  const int64_t cols = m.views[0].cols;
  const int64_t tokens = static_cast<int64_t>(x.size()) / cols;
  std::vector<float> w(cols);
  int64_t row = 0;
  for (const MatrixView& view : m.views) {
    for (int64_t r = 0; r < view.rows; ++r, ++row) {
      const auto* src = static_cast<const uint8_t*>(view.data) + r * row_bytes(view.format, cols);
      dequantize_row(view.format, src, w.data(), cols);
      double w_norm = 0;
      for (float v : w) w_norm += double{v} * v;
      for (int64_t t = 0; t < tokens; ++t) {
        double x_norm = 0;
        for (int64_t c = 0; c < cols; ++c) x_norm += double{x[t * cols + c]} * x[t * cols + c];
        const double bound = tolerance(view.format) * std::sqrt(w_norm * x_norm) + 1e-30;
        ASSERT_NEAR(got[t * m.rows + row], want[t * m.rows + row], bound)
            << format_info(view.format).name << " row " << row << " token " << t << " of " << tokens << ", cols "
            << cols;
      }
    }
  }
}

class LinearFormatTest : public testing::TestWithParam<DataFormat> {};

INSTANTIATE_TEST_SUITE_P(Formats, LinearFormatTest, testing::ValuesIn(matrix_formats()),
                         [](const auto& info) { return std::string(format_info(info.param).name); });

TEST_P(LinearFormatTest, ReferenceIsTheProductOfDequantisedWeights) {
  std::mt19937 random(1);
  const OpContext ctx{Backend::kReference, nullptr};
  const DataFormat format = GetParam();
  const int64_t cols = 256;
  const TestMatrix m = random_matrix(random, {{format}}, {{5}}, cols);
  const auto x = random_activations(random, 3 * cols);
  const auto weight = pack(ctx, m.views);
  EXPECT_EQ(weight->bytes(), 5 * row_bytes(format, cols));
  const auto y = run_linear(ctx, *weight, x);
  std::vector<float> w(cols);
  for (int64_t r = 0; r < 5; ++r) {
    dequantize_row(format, m.bytes[0].data() + r * row_bytes(format, cols), w.data(), cols);
    for (int64_t t = 0; t < 3; ++t) {
      double dot = 0;
      for (int64_t c = 0; c < cols; ++c) dot += double{w[c]} * x[t * cols + c];
      EXPECT_FLOAT_EQ(y[t * 5 + r], static_cast<float>(dot));
    }
  }
}

TEST_P(LinearFormatTest, CpuMatchesReferenceOnRandomShapes) {
  const DataFormat format = GetParam();
  const int64_t block = format_info(format).block_size;
  ThreadPool pool(3);
  const OpContext cpu{Backend::kCpu, &pool};
  const OpContext ref{Backend::kReference, nullptr};
  for_each_target([&] {
    std::mt19937 random(2);
    for (int round = 0; round < 6; ++round) {
      const int64_t rows = std::uniform_int_distribution<int64_t>(1, 70)(random);
      const int64_t blocks = std::uniform_int_distribution<int64_t>(1, std::max<int64_t>(1600 / block, 2))(random);
      const int64_t tokens = std::uniform_int_distribution<int64_t>(1, 70)(random);
      const bool accumulate = round % 2 == 1;
      const float fill = accumulate ? 3.5f : std::numeric_limits<float>::quiet_NaN();
      const TestMatrix m = random_matrix(random, {{format}}, {{rows}}, std::min<int64_t>(blocks, 1600) * block);
      const auto x = random_activations(random, tokens * m.views[0].cols);
      expect_close(run_linear(cpu, *pack(cpu, m.views), x, accumulate, fill),
                   run_linear(ref, *pack(ref, m.views), x, accumulate, fill), m, x);
      if (HasFatalFailure()) return;
    }
  });
}

TEST_P(LinearFormatTest, ARowIsTheSameAloneInAnyBatchAndOnAnyThreads) {
  const int64_t cols = 1792;  // more than one chunk of inputs, the last one shorter
  const int64_t rows = 37;
  std::mt19937 random(3);
  const TestMatrix m = random_matrix(random, {{GetParam()}}, {{rows}}, cols);
  const auto x = random_activations(random, 200 * cols);
  ThreadPool one(1);
  ThreadPool three(3);
  for_each_target([&] {
    const OpContext single{Backend::kCpu, &one};
    const auto weight = pack(single, m.views);
    std::vector<float> alone;
    for (int64_t t = 0; t < 200; ++t) {
      const auto y = run_linear(single, *weight, {x.begin() + t * cols, x.begin() + (t + 1) * cols});
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (int64_t tokens = 1; tokens <= 200; tokens = tokens < 30 ? tokens + 1 : tokens + 34) {
      const OpContext ctx{Backend::kCpu, tokens % 2 == 0 ? &one : &three};
      const auto y = run_linear(ctx, *weight, {x.begin(), x.begin() + tokens * cols});
      ASSERT_EQ(std::memcmp(y.data(), alone.data(), y.size() * sizeof(float)), 0) << tokens << " tokens";
    }
  });
}

TEST_P(LinearFormatTest, GatherRowsIsDequantizeRow) {
  const DataFormat format = GetParam();
  const int64_t cols = 1280;
  std::mt19937 random(4);
  const DataFormat formats[] = {format, DataFormat::kQ8_0, format};
  const int64_t rows[] = {21, 3, 40};
  const TestMatrix m = random_matrix(random, formats, rows, cols);
  ThreadPool pool(2);
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < 64; ++id) ids.push_back(id * 29 % 64);
  std::vector<float> want(64 * cols);
  for (int i = 0; i < 64; ++i) {
    const int part = ids[i] < 21 ? 0 : ids[i] < 24 ? 1 : 2;
    const int64_t row = ids[i] - (part == 0 ? 0 : part == 1 ? 21 : 24);
    const int64_t stride = row_bytes(formats[part], cols);
    dequantize_row(formats[part], m.bytes[part].data() + row * stride, want.data() + i * cols, cols);
  }
  const auto check = [&](const OpContext& ctx) {
    std::vector<float> got(64 * cols + 1, 7.0f);
    gather_rows(ctx, *pack(ctx, m.views), ids.data(), got.data(), 64);
    EXPECT_EQ(got.back(), 7.0f);
    got.pop_back();
    EXPECT_EQ(got, want);
  };
  check({Backend::kReference, nullptr});
  for_each_target([&] { check({Backend::kCpu, &pool}); });
}

TEST_P(LinearFormatTest, NonFiniteActivationsSpoilTheirRowOnly) {
  const int64_t cols = 512;
  std::mt19937 random(5);
  const TestMatrix m = random_matrix(random, {{GetParam()}}, {{20}}, cols);
  ThreadPool pool(2);
  const OpContext ctx{Backend::kCpu, &pool};
  for_each_target([&] {
    const auto weight = pack(ctx, m.views);
    const auto clean = random_activations(random, 5 * cols);
    const auto want = run_linear(ctx, *weight, clean);
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                      -std::numeric_limits<float>::infinity()}) {
      auto x = clean;
      x[3 * cols + 77] = bad;
      const auto y = run_linear(ctx, *weight, x);
      for (int64_t i = 0; i < 5 * 20; ++i) {
        if (i / 20 == 3) {
          EXPECT_FALSE(std::isfinite(y[i]));
        } else {
          EXPECT_EQ(y[i], want[i]);
        }
      }
    }
  });
}

TEST_P(LinearFormatTest, ZeroAndTinyActivationsGiveZero) {
  const int64_t cols = 256;
  std::mt19937 random(6);
  const TestMatrix m = random_matrix(random, {{GetParam()}}, {{17}}, cols);
  ThreadPool pool(1);
  const OpContext ctx{Backend::kCpu, &pool};
  for_each_target([&] {
    const auto weight = pack(ctx, m.views);
    for (float v : {0.0f, -0.0f, 1e-38f, 1e-42f}) {
      for (float y : run_linear(ctx, *weight, std::vector<float>(3 * cols, v))) EXPECT_NEAR(y, 0.0f, 1e-30f);
    }
  });
}

TEST(LinearTest, StackedPartsOfMixedFormats) {
  const DataFormat formats[] = {DataFormat::kQ4_K, DataFormat::kQ6_K, DataFormat::kF16, DataFormat::kQ8_0,
                                DataFormat::kQ4_K};
  const int64_t rows[] = {33, 7, 16, 1, 18};
  std::mt19937 random(7);
  const TestMatrix m = random_matrix(random, formats, rows, 512);
  const auto x = random_activations(random, 19 * 512);
  ThreadPool pool(2);
  const OpContext cpu{Backend::kCpu, &pool};
  const OpContext ref{Backend::kReference, nullptr};
  const auto want = run_linear(ref, *pack(ref, m.views), x);
  for_each_target([&] { expect_close(run_linear(cpu, *pack(cpu, m.views), x), want, m, x); });
}

TEST(LinearTest, PackedSizeIsTheFileSize) {
  std::mt19937 random(8);
  ThreadPool pool(1);
  for (DataFormat format : matrix_formats()) {
    const TestMatrix m = random_matrix(random, {{format}}, {{32}}, 256);
    EXPECT_EQ(pack({Backend::kCpu, &pool}, m.views)->bytes(), 32 * row_bytes(format, 256)) << format_info(format).name;
  }
}

TEST(LinearTest, BadTensorsAreNamed) {
  ThreadPool pool(1);
  const std::vector<uint8_t> bytes(100000);
  const MatrixView good{bytes.data(), DataFormat::kQ4_1, 4, 64, "good"};
  for (Backend backend : {Backend::kReference, Backend::kCpu}) {
    const OpContext ctx{backend, &pool};
    for (const MatrixView& bad : {MatrixView{bytes.data(), DataFormat::kQ4_1, 4, 48, "bad"},
                                  MatrixView{bytes.data(), DataFormat::kQ4_K, 1, 128, "bad"},
                                  MatrixView{bytes.data(), DataFormat::kQ4_1, 0, 64, "bad"},
                                  MatrixView{bytes.data(), DataFormat::kQ4_1, 4, -64, "bad"},
                                  MatrixView{nullptr, DataFormat::kQ4_1, 4, 64, "bad"},
                                  MatrixView{bytes.data(), DataFormat::kQ4_1, 4, 96, "bad"}}) {
      const MatrixView parts[] = {good, bad};
      const auto packed = pack_matrix(ctx, parts);
      ASSERT_FALSE(packed.ok());
      EXPECT_EQ(packed.error().kind, ErrorKind::kInvalidArgument);
      EXPECT_EQ(packed.error().field, "bad");
    }
  }
}

}  // namespace
}  // namespace vayu::ops
