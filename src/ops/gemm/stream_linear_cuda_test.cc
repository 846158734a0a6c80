#include "ops/gemm/stream_linear.h"

#include "ops/cuda/matrix_test_util.h"
#include "ops/gemm/stream_linear_forms.h"
#include "ops/norm/add_norm.h"

namespace vayu::ops {
namespace {

struct Case {
  int64_t out, cols;
  int32_t rows;
  WeightScale scale;
  int32_t scale_group;  // of x
  bool to_float;
};

constexpr const char* kFormNames[] = {"auto", "line", "pairs"};
constexpr const char* kScaleNames[] = {"bf16", "f8", "f8 in blocks"};  // by WeightScale
bool form_fits(const StreamLinearArgs& args, StreamLinearForm form) {
  return form != StreamLinearForm::kPairs || pair_linear_fits(args);
}
constexpr StreamLinearForm kForms[] = {StreamLinearForm::kAuto, StreamLinearForm::kLine, StreamLinearForm::kPairs};

struct Workspace {
  Workspace() : memory(stream_linear_workspace_bytes()) {
    EXPECT_TRUE(fill_device(memory.get(), 0, memory.size(), nullptr).ok());
  }
  DeviceArray<uint8_t> memory;
};

void check(TestRandom& random, const Case& c) {
  static Workspace workspace;  // one for all: every launch must leave it fit for the next
  const std::string name = std::to_string(c.out) + " x " + std::to_string(c.cols) + ", " + std::to_string(c.rows) +
                           " rows, scale " + std::to_string(static_cast<int>(c.scale));
  const bool f8 = c.scale != WeightScale::kNone;
  TestMatrix weight(random, c.out, c.cols, c.scale);
  TestRows x(c.rows, c.cols, f8, c.scale_group, many_normals(random, c.rows * c.cols));
  std::vector<Bf16> y(c.rows * c.out);
  std::vector<float> y_float(c.rows * c.out);
  DeviceArray<Bf16> device_y(c.rows * c.out);
  DeviceArray<float> device_y_float(c.rows * c.out);
  StreamLinearArgs args{weight.host(), x.host(), c.rows, c.to_float ? nullptr : y.data(),
                        c.to_float ? y_float.data() : nullptr};
  stream_linear_ref(args);
  args.weight = weight.device();
  args.x = x.device();
  args.y = c.to_float ? nullptr : device_y.get();
  args.y_float = c.to_float ? device_y_float.get() : nullptr;
  args.workspace = workspace.memory.get();
  ASSERT_TRUE(stream_linear_fits(args)) << name;
  for (const StreamLinearForm form : kForms) {
    if (!form_fits(args, form)) continue;
    args.form = form;
    device_y.poison();
    device_y_float.poison();
    stream_linear_cuda(nullptr, args);
    const std::string what = name + ", " + kFormNames[static_cast<int>(form)];
    ASSERT_TRUE(last_launch("stream_linear").ok()) << what;
    const auto got = c.to_float ? device_y_float.host() : as_floats(device_y.host());
    const auto want = c.to_float ? y_float : as_floats(y);
    // FP8 products are summed by the tensor cores with about 14 bits; BF16 outputs are rounded to 8.
    EXPECT_LT(relative_error(got, want), c.to_float && !f8 ? 1e-4 : 4e-3) << what;
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], 0.05 + 0.02 * std::fabs(want[i])) << what << " at " << i;
  }
}

// Every kernel at sizes that racecheck takes, for which a sum pushed to the other block of a pair costs as much as a
// tile.
TEST(StreamLinearCuda, EveryFormOnce) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const WeightScale scale : {WeightScale::kNone, WeightScale::kRow, WeightScale::kBlock}) {
    for (const int32_t rows : {3, 12, 20, 40}) {
      check(random, {random.integer(65, 150), 128 * random.integer(1, 6), rows, scale, 0, rows == 12});
    }
  }
}

TEST(StreamLinearCuda, IsTheReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const WeightScale scale : {WeightScale::kNone, WeightScale::kRow, WeightScale::kBlock}) {
    const int32_t unit = scale == WeightScale::kBlock ? 128 : 16;
    for (const int32_t rows : unless_short({1, 7, 8, 9, 16, 17, 32, 33, 64}, {8, 9, 17, 64})) {
      const int64_t cols = unit * random.integer(1, unless_short(2048, 1024) / unit);
      check(random, {random.integer(1, 700), cols, rows, scale, scale == WeightScale::kBlock ? 128 : 0, rows % 2 == 0});
    }
  }
  for (const int32_t rows : unless_short({1, 20, 50, 64}, {20})) {  // more tiles than blocks
    check(random, {random.integer(12700, 17000), 16 * random.integer(1, 40), rows, WeightScale::kRow, 0, rows == 20});
    check(random, {random.integer(12700, 17000), 16 * random.integer(1, 40), rows, WeightScale::kNone, 0, rows != 20});
    check(random, {12800, 256, rows, WeightScale::kBlock, rows == 1 ? 128 : 0, false});
    check(random, {576, 128 * random.integer(1, 16), rows, WeightScale::kBlock, 0, rows == 20});
  }
  if (!short_tests()) check(random, {4608, 16384, 3, WeightScale::kBlock, 0, false});  // over 32 units a block
  check(random, {130, 4096, 3, WeightScale::kRow, 128, false});                        // grouped scales of x alone
  check(random, {unless_short<int64_t>(4608, 512), 4096, 32, WeightScale::kRow, 0, false});
  check(random, {256, 16384, 5, WeightScale::kRow, 0, true});
}

// The shapes for which pairs were made: about as many as the SMs hold at 64 and at 80 weight rows, rings that go around
// (BF16, 64 rows), and a depth of which there is no part for one of the two.
TEST(StreamLinearCuda, PairsAreTheReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const int32_t rows : unless_short({1, 8, 15, 31, 40, 64}, {8, 31, 64})) {
    for (const WeightScale scale : {WeightScale::kRow, WeightScale::kNone}) {
      const bool to_float = (rows + static_cast<int>(scale)) % 2 == 0;
      check(random,
            {random.integer(4225, 4700), 16 * random.integer(1, unless_short(30, 12)), rows, scale, 0, to_float});
      check(random, {random.integer(1, 300), 16 * random.integer(300, 512), rows, scale, 0, !to_float});
    }
  }
  check(random, {6336, unless_short<int64_t>(4096, 1024), 8, WeightScale::kRow, 0, false});
  check(random, {4608, unless_short<int64_t>(4096, 1024), 12, WeightScale::kRow, 0, true});
  check(random, {4096, 2048, 33, WeightScale::kRow, 0, false});
  check(random, {4608, 2048, 33, WeightScale::kNone, 0, false});
}

// A row with a NaN gives NaN, and no other row notices.
TEST(StreamLinearCuda, KeepsNaNInItsRow) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  TestMatrix weight(random, 200, 1024, WeightScale::kRow);
  std::vector<float> values = random.normals(5 * 1024);
  values[2 * 1024 + 77] = kNaN;
  TestRows x(5, 1024, true, 0, values);
  DeviceArray<float> y(5 * 200);
  Workspace workspace;
  for (const StreamLinearForm form : kForms) {
    StreamLinearArgs args{weight.device(), x.device(), 5, nullptr, y.get(), workspace.memory.get(), form};
    ASSERT_TRUE(form_fits(args, form));
    y.poison();
    stream_linear_cuda(nullptr, args);
    const auto got = y.host();
    for (int64_t i = 0; i < 5 * 200; ++i) {
      EXPECT_EQ(std::isnan(got[i]), i / 200 == 2) << kFormNames[static_cast<int>(form)] << " at " << i;
    }
  }
}

// A block scale that is NaN shows in the outputs of its 64 rows, and of none other.
TEST(StreamLinearCuda, KeepsNaNInItsBlock) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  constexpr int64_t kOut = 576, kCols = 1024, kRows = 3;
  TestMatrix weight(random, kOut, kCols, WeightScale::kBlock);
  const TestRows x(kRows, kCols, true, 0, random.normals(kRows * kCols));
  DeviceArray<float> y(kRows * kOut);
  Workspace workspace;
  const std::vector<float> scales = weight.scales();
  for (int64_t block = 0; block < kOut / kScaleBlockRows; ++block) {
    std::vector<float> with_nan = scales;
    with_nan[block * (kCols / kScaleGroup) + block % 8] = kNaN;
    weight.set_scales(with_nan);
    y.poison();
    stream_linear_cuda(nullptr, {weight.device(), x.device(), kRows, nullptr, y.get(), workspace.memory.get()});
    const auto got = y.host();
    for (int64_t i = 0; i < kRows * kOut; ++i) {
      ASSERT_EQ(std::isnan(got[i]), i % kOut / kScaleBlockRows == block) << i << " block " << block;
    }
  }
}

// In a chain, as a decode step runs it, over weights that together exceed the second-level cache.
TEST(StreamLinearCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (!std::getenv("VAYU_SPEED")) GTEST_SKIP() << "VAYU_SPEED is not set";
  TestRandom random;
  Workspace workspace;
  struct Shape {
    const char* name;
    int64_t out, cols;
    int copies;
  };
  for (const Shape& s : {Shape{"qkv", 4608, 4096, 8},
                         {"o", 4096, 4096, 8},
                         {"dense_up", 16384, 4096, 4},
                         {"dense_down", 4096, 8192, 4},
                         {"head", 262144, 4096, 1}}) {
    for (const WeightScale scale : {WeightScale::kRow, WeightScale::kBlock, WeightScale::kNone}) {
      const bool f8 = scale != WeightScale::kNone;
      std::vector<std::unique_ptr<TestMatrix>> weights;
      for (int i = 0; i < s.copies; ++i) {
        weights.push_back(std::make_unique<TestMatrix>(random, s.out, s.cols, scale, true));
      }
      for (const int32_t rows : {1, 8, 16, 32, 64}) {
        TestRows x(rows, s.cols, f8, 0, random.normals(rows * s.cols));
        DeviceArray<float> y(rows * s.out);
        StreamLinearArgs args{weights[0]->device(), x.device(), rows, nullptr, y.get(), workspace.memory.get()};
        for (const StreamLinearForm form : kForms) {
          args.form = form;
          if (form == StreamLinearForm::kAuto || !form_fits(args, form)) continue;
          if (s.copies < 8 && form != StreamLinearForm::kLine) continue;
          const auto call = [&](CudaStream stream, int i) {
            args.weight = weights[i % s.copies]->device();
            stream_linear_cuda(stream, args);
          };
          const double us = chained_us(call, s.copies == 1 ? 4 : 24).value();
          const double gbs = static_cast<double>(s.out * weights[0]->device().row_bytes()) / us * 1e-3;
          std::printf("SPEED stream_linear %s %s rows %d %s: %.1f us %.0f GB/s %.2f of the read ceiling\n", s.name,
                      kScaleNames[static_cast<int>(scale)], rows, kFormNames[static_cast<int>(form)], us, gbs,
                      gbs / read_ceiling_gb_s());
        }
      }
    }
  }
}

// A layer's linear behind the norm that makes its rows, as pairs in a chain: the weights are fetched while the norm
// runs.
TEST(StreamLinearCuda, SpeedBehindANorm) {
  VAYU_NEEDS_DEVICE();
  if (!std::getenv("VAYU_SPEED")) GTEST_SKIP() << "VAYU_SPEED is not set";
  TestRandom random;
  Workspace workspace;
  constexpr int64_t kHidden = 4096, kOut = 4608;
  constexpr int kCopies = 8;
  const DeviceArray<float> norm(random.normals(kHidden));
  for (const WeightScale scale : {WeightScale::kRow, WeightScale::kNone}) {
    const bool f8 = scale == WeightScale::kRow;
    std::vector<std::unique_ptr<TestMatrix>> weights;
    for (int i = 0; i < kCopies; ++i) {
      weights.push_back(std::make_unique<TestMatrix>(random, kOut, kHidden, scale, true));
    }
    for (const int32_t rows : {1, 8, 32, 64}) {
      const DeviceArray<Bf16> residual(as_bf16(random.normals(rows * kHidden)));
      const TestRows x(rows, kHidden, f8, 0);
      const DeviceArray<float> y(rows * kOut);
      const AddNormArgs norm_args{
          .residual = residual.get(), .weight = norm.get(), .num_rows = rows, .hidden = kHidden, .y = x.device()};
      StreamLinearArgs args{weights[0]->device(), x.device(), rows, nullptr, y.get(), workspace.memory.get()};
      const double alone = chained_us([&](CudaStream stream, int) { add_norm_cuda(stream, norm_args); }, 24).value();
      for (const StreamLinearForm form : kForms) {
        args.form = form;
        if (form == StreamLinearForm::kAuto || !form_fits(args, form)) continue;
        const auto call = [&](CudaStream stream, int i) {
          add_norm_cuda(stream, norm_args);
          args.weight = weights[i % kCopies]->device();
          stream_linear_cuda(stream, args);
        };
        std::printf("SPEED stream_linear behind a norm, qkv %s rows %d %s: %.1f us both, %.1f the norm alone\n",
                    f8 ? "f8" : "bf16", rows, kFormNames[static_cast<int>(form)], chained_us(call, 24).value(), alone);
      }
    }
  }
}

}  // namespace
}  // namespace vayu::ops
