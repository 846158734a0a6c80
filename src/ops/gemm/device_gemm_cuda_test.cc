#include "ops/gemm/device_gemm.h"

#include <algorithm>
#include <numeric>

#include "ops/cuda/matrix_test_util.h"

namespace vayu::ops {
namespace {

struct Case {
  int32_t groups = 1;
  int64_t rows_per_group = 0;
  int64_t cols = 0;
  int32_t num_rows = 0;
  WeightScale scale = WeightScale::kRow;
  int32_t x_group = 0;
  bool swiglu = false;
  bool f8_out = false;
  bool gather = false;
  bool scatter = false;
  bool wild_scales = false;  // of the weight: some 0, some far from the others
  DeviceGemmPlan plan = {};  // max_width 0: the chosen one
  int32_t checked_rows = 1 << 30;
};

std::string name_of(const Case& c) {
  return std::to_string(c.groups) + " x " + std::to_string(c.rows_per_group) + " x " + std::to_string(c.cols) + ", " +
         std::to_string(c.num_rows) + " rows, scale " + std::to_string(static_cast<int>(c.scale)) + "/" +
         std::to_string(c.x_group) + (c.swiglu ? " swiglu" : "") + (c.f8_out ? " f8" : "") +
         (c.gather ? " gather" : "") + (c.scatter ? " scatter" : "") + (c.wild_scales ? " wild" : "") + " plan " +
         std::to_string(c.plan.max_width) + "/" + std::to_string(c.plan.stages) + "/" + std::to_string(c.plan.cluster);
}

// Group sizes that sum to num_rows: some empty, some large.
std::vector<int32_t> random_indptr(TestRandom& random, int32_t groups, int32_t num_rows) {
  std::vector<double> shares(groups);
  for (double& v : shares) v = random.integer(0, 3) == 0 ? 0 : std::exp(random.normal());
  shares[random.integer(0, groups - 1)] += 0.1;
  std::discrete_distribution<int32_t> pick(shares.begin(), shares.end());
  std::vector<int32_t> indptr(groups + 1, 0);
  for (int32_t i = 0; i < num_rows; ++i) ++indptr[pick(random.engine()) + 1];
  for (int32_t g = 0; g < groups; ++g) indptr[g + 1] += indptr[g];
  return indptr;
}

std::vector<float> random_x(TestRandom& random, const Case& c, int64_t rows) {
  std::vector<float> values = many_normals(random, rows * c.cols);
  if (c.x_group == 0) return values;
  for (int64_t first = 0; first < rows * c.cols; first += c.x_group) {  // groups of very different sizes, zeros too
    const float factor = random.integer(0, 9) == 0 ? 0.0f : std::exp2(static_cast<float>(random.integer(-9, 3)));
    for (int64_t i = first; i < first + c.x_group; ++i) values[i] *= factor;
  }
  return values;
}

// Largest |difference| / |reference| of a row (Euclidean norms). The tensor cores sum FP8 products with about 14 bits,
// BF16 outputs keep 8 bits, FP8 outputs 4: a value next to the middle of two may fall to either side, an eighth of the
// power of two below it. Of a group the peak is exact; one other value, at most as large, may hold nearly all of the
// rest of a row of 128: 1 / 8 / sqrt(2).
double row_tolerance(const Case& c) {
  if (c.f8_out) return 9e-2;
  const bool f8 = c.scale != WeightScale::kNone;
  return c.swiglu ? (f8 ? 1e-2 : 5e-3) : (f8 ? 6e-3 : 3e-3);
}

// Scales below 2^-40 of the largest count as that (ScaleChain), which shows where x is 0 under the large ones: with
// weights and x of about 1, 128 * 2^-40 a group, twice multiplied with SwiGLU.
double lost(const Case& c) { return c.wild_scales ? 1e-8 : 0; }

void compare_row(const Case& c, const float* got, const float* want, int64_t cols, int32_t row) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < cols; ++i) {
    error += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    norm += double{want[i]} * want[i];
  }
  ASSERT_LE(std::sqrt(error), row_tolerance(c) * std::sqrt(norm) + lost(c)) << name_of(c) << " row " << row;
  const double rms = std::sqrt(norm / static_cast<double>(cols));
  for (int64_t i = 0; i < cols; ++i) {
    ASSERT_NEAR(got[i], want[i], 0.05 * rms + (c.f8_out ? 0.13 : 0.02) * std::fabs(want[i]) + lost(c))
        << name_of(c) << " row " << row << " column " << i;
  }
}

void check(TestRandom& random, const Case& c) {
  const bool f8 = c.scale != WeightScale::kNone;
  const auto indptr = random_indptr(random, c.groups, c.num_rows);
  const int64_t x_count = c.gather ? std::max(1, c.num_rows / 3) : c.num_rows;
  std::vector<int32_t> x_rows(c.num_rows), y_rows(c.num_rows);
  std::iota(x_rows.begin(), x_rows.end(), 0);
  std::iota(y_rows.begin(), y_rows.end(), 0);
  if (c.gather) {
    for (int32_t& row : x_rows) row = static_cast<int32_t>(random.integer(0, x_count - 1));
  }
  if (c.scatter) std::shuffle(y_rows.begin(), y_rows.end(), random.engine());
  TestMatrix weight(random, c.groups * c.rows_per_group, c.cols, c.scale);
  if (c.wild_scales) {
    std::vector<float> scales = weight.scales();
    for (float& v : scales)
      v *= random.integer(0, 5) == 0 ? 0.0f : std::exp2(static_cast<float>(random.integer(-50, 9)));
    weight.set_scales(scales);
  }
  TestRows x(x_count, c.cols, f8, c.x_group, random_x(random, c, x_count));
  const int64_t out_cols = c.swiglu ? c.rows_per_group / 2 : c.rows_per_group;
  TestRows out(c.num_rows, out_cols, c.f8_out, kScaleGroup);

  const DeviceArray<int32_t> device_indptr(indptr), device_x_rows(x_rows), device_y_rows(y_rows);
  DeviceGemmArgs args;
  args.weight = weight.device();
  args.x = x.device();
  args.out = out.device();
  args.swiglu = c.swiglu;
  args.num_rows = c.num_rows;
  args.num_groups = c.groups;
  if (c.groups > 1) args.group_indptr = device_indptr.get();
  if (c.gather) args.x_rows = device_x_rows.get();
  if (c.scatter) args.y_rows = device_y_rows.get();
  if (c.plan.max_width > 0) {
    device_gemm_cuda(nullptr, args, c.plan);
  } else {
    device_gemm_cuda(nullptr, args);
  }
  ASSERT_TRUE(last_launch("device_gemm").ok()) << name_of(c);
  const auto got = out.device_values();
  for (size_t i = 0; i < got.size(); ++i) ASSERT_FALSE(std::isnan(got[i])) << name_of(c) << " unwritten at " << i;

  // The reference, of all rows or of some.
  std::vector<int32_t> rows, sample_indptr = {0}, sample_x;
  for (int32_t g = 0; g < c.groups; ++g) {
    for (int32_t i = indptr[g]; i < indptr[g + 1]; ++i) {
      const bool edge = i == indptr[g] || i + 1 == indptr[g + 1];
      if (!edge && random.uniform() * c.num_rows > c.checked_rows) continue;
      rows.push_back(i);
      sample_x.push_back(x_rows[i]);
    }
    sample_indptr.push_back(static_cast<int32_t>(rows.size()));
  }
  const auto count = static_cast<int32_t>(rows.size());
  TestRows want_rows(count, out_cols, c.f8_out, kScaleGroup);
  args.weight = weight.host();
  args.x = x.host();
  args.out = want_rows.host();
  args.num_rows = count;
  args.group_indptr = sample_indptr.data();
  args.x_rows = sample_x.data();
  args.y_rows = nullptr;
  device_gemm_ref(args);
  const auto want = want_rows.host_values();
  for (int32_t i = 0; i < count; ++i) {
    compare_row(c, &got[y_rows[rows[i]] * out_cols], &want[i * out_cols], out_cols, rows[i]);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(DeviceGemmCuda, DenseIsTheReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const WeightScale scale : {WeightScale::kNone, WeightScale::kRow, WeightScale::kBlock}) {
    const int32_t unit = scale == WeightScale::kBlock ? 128 : 16;
    for (const int32_t rows :
         unless_short({1, 2, 15, 16, 17, 64, 100, 177, 192, 193, 400, 1000}, {1, 16, 17, 100, 193})) {
      const int32_t x_group = scale == WeightScale::kBlock && rows % 2 == 0 ? 128 : 0;
      check(random, {.rows_per_group = 8 * random.integer(1, 90),
                     .cols = unit * random.integer(1, 768 / unit),
                     .num_rows = rows,
                     .scale = scale,
                     .x_group = x_group,
                     .scatter = rows % 5 == 0});
      if (HasFatalFailure()) return;
    }
    check(random, {.rows_per_group = 512, .cols = 4096, .num_rows = 300, .scale = scale, .checked_rows = 40});
    check(random, {.rows_per_group = 1024,
                   .cols = 256,
                   .num_rows = unless_short(8192, 1500),
                   .scale = scale,
                   .checked_rows = 200});
    if (HasFatalFailure()) return;
  }
}

// Every width, with one block and with pairs, with as few and as many stages as there may be.
TEST(DeviceGemmCuda, EveryPlanIsTheReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (int32_t width = 16; width <= 192; width += 16) {
    for (const int32_t cluster : {1, 2}) {
      for (const int32_t x_group : {0, 128}) {
        for (const int32_t groups : {1, 5}) {
          if (short_tests() && (width / 16 + cluster + x_group / 128 + groups / 5) % 2 == 0) continue;
          Case c{.groups = groups,
                 .rows_per_group = 256 * random.integer(1, 3),
                 .cols = 128 * random.integer(1, 8),
                 .num_rows = width * (groups + 1) + static_cast<int32_t>(random.integer(0, width - 1)),
                 .scale = random.integer(0, 1) == 0 ? WeightScale::kRow : WeightScale::kBlock,
                 .x_group = x_group,
                 .gather = groups > 1 && cluster == 1};
          DeviceGemmArgs args;
          args.weight.scale = c.scale;
          args.x.scale_group = x_group;
          c.plan = {width, random.integer(0, 1) == 0 ? 2 : device_gemm_stages(args, width), cluster};
          c.checked_rows = 150;
          check(random, c);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// More tiles than blocks, so that blocks go from tile to tile.
TEST(DeviceGemmCuda, ManyTilesABlockAreTheReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const int32_t cluster : {1, 2}) {
    for (const bool gather : {false, true}) {
      for (const int32_t x_group : {0, 128}) {
        for (const bool swiglu : {false, true}) {
          check(random, {.rows_per_group = 2048,
                         .cols = 128 * random.integer(1, unless_short(12, 5)),
                         .num_rows = unless_short(5000, 2000),  // 216 tiles or more, 168 of a short run
                         .scale = random.integer(0, 1) == 0 ? WeightScale::kRow : WeightScale::kBlock,
                         .x_group = x_group,
                         .swiglu = swiglu,
                         .f8_out = swiglu && random.integer(0, 1) == 0,
                         .gather = gather && cluster == 1,
                         .plan = {static_cast<int32_t>(16 * random.integer(5, unless_short(12, 6))), 3, cluster},
                         .checked_rows = 60});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(DeviceGemmCuda, GroupedIsTheReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const WeightScale scale : {WeightScale::kNone, WeightScale::kRow, WeightScale::kBlock}) {
    for (const int32_t rows : unless_short({1, 9, 150, 700, 3000}, {9, 150, 700})) {
      for (const bool gather : {false, true}) {
        Case c{.groups = static_cast<int32_t>(random.integer(2, 40)),
               .rows_per_group = 64 * random.integer(1, 10),
               .cols = 128 * random.integer(1, 4),
               .num_rows = rows,
               .scale = scale,
               .gather = gather,
               .scatter = rows == 150};
        if (scale != WeightScale::kNone && random.integer(0, 1) == 0) c.x_group = 128;
        if (scale != WeightScale::kBlock && !gather) {
          c.rows_per_group += 8 * random.integer(0, 9);
          c.cols += 16 * random.integer(0, 7) * (c.x_group == 0 ? 1 : 0);
        }
        c.checked_rows = 150;
        check(random, c);
        if (HasFatalFailure()) return;
      }
    }
  }
  check(random, {.groups = 256, .rows_per_group = 256, .cols = 128, .num_rows = 2000, .gather = true});
}

TEST(DeviceGemmCuda, SwigluIsTheReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const WeightScale scale : {WeightScale::kNone, WeightScale::kRow, WeightScale::kBlock}) {
    for (const int32_t rows : unless_short({1, 40, 500, 2000}, {40, 500})) {
      for (const bool f8_out : {false, true}) {
        for (const bool gather : {false, true}) {
          Case c{.groups = static_cast<int32_t>(random.integer(1, 12)),
                 .rows_per_group = (f8_out ? 256 : 128) * random.integer(1, 4),
                 .cols = 128 * random.integer(1, 4),
                 .num_rows = rows,
                 .scale = scale,
                 .x_group = scale == WeightScale::kBlock && rows % 500 == 0 ? 128 : 0,
                 .swiglu = true,
                 .f8_out = f8_out,
                 .gather = gather,
                 .scatter = rows == 500};
          c.checked_rows = 150;
          check(random, c);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Block scales that are 0, or differ by 2^60; the rows of a latent projection (576), the linear of one and of many.
TEST(DeviceGemmCuda, TakesAnyBlockScales) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const int32_t x_group : {0, 128}) {
    for (const int32_t groups : {1, 5}) {
      for (const bool swiglu : {false, true}) {
        check(random, {.groups = groups,
                       .rows_per_group = swiglu ? 640 : 576,
                       .cols = 128 * random.integer(2, 9),
                       .num_rows = static_cast<int32_t>(random.integer(100, 300)),
                       .scale = WeightScale::kBlock,
                       .x_group = x_group,
                       .swiglu = swiglu,
                       .wild_scales = true});
        if (HasFatalFailure()) return;
      }
    }
  }
}

// A block scale that is NaN shows in the outputs of its 64 rows, and of none other.
TEST(DeviceGemmCuda, KeepsNaNInItsBlock) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  constexpr int64_t kRows = 640, kCols = 384, kX = 30;
  for (const int32_t x_group : {0, 128}) {
    for (const bool swiglu : {false, true}) {
      TestMatrix weight(random, kRows, kCols, WeightScale::kBlock);
      const TestRows x(kX, kCols, true, x_group, random.normals(kX * kCols));
      const int64_t out_cols = swiglu ? kRows / 2 : kRows, outs_of_block = kScaleBlockRows;
      const std::vector<float> scales = weight.scales();
      for (int64_t block = 0; block < kRows / kScaleBlockRows; block += 3) {
        std::vector<float> with_nan = scales;
        with_nan[block * (kCols / kScaleGroup) + block % 3] = kNaN;
        weight.set_scales(with_nan);
        TestRows out(kX, out_cols, false, 0);
        DeviceGemmArgs args;
        args.weight = weight.device();
        args.x = x.device();
        args.out = out.device();
        args.swiglu = swiglu;
        args.num_rows = kX;
        device_gemm_cuda(nullptr, args);
        const auto got = out.device_values();
        for (int64_t i = 0; i < kX * out_cols; ++i) {
          const bool inside = i % out_cols / outs_of_block == (swiglu ? block / 2 : block);
          ASSERT_EQ(std::isnan(got[i]), inside) << i << " block " << block << " swiglu " << swiglu;
        }
      }
    }
  }
}

// A row with a NaN, or an infinity, gives NaN, and no other row notices.
TEST(DeviceGemmCuda, KeepsNaNInItsRow) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const int32_t x_group : {0, 128}) {
    for (const bool swiglu : {false, true}) {
      const int32_t rows = 50;
      std::vector<float> values = random.normals(rows * 512);
      values[7 * 512 + 77] = kNaN;
      values[33 * 512 + 500] = std::numeric_limits<float>::infinity();
      TestMatrix weight(random, 512, 512, WeightScale::kRow);
      TestRows x(rows, 512, true, x_group, values);
      TestRows out(rows, swiglu ? 256 : 512, swiglu, kScaleGroup);
      DeviceGemmArgs args;
      args.weight = weight.device();
      args.x = x.device();
      args.out = out.device();
      args.swiglu = swiglu;
      args.num_rows = rows;
      device_gemm_cuda(nullptr, args);
      const auto got = out.device_values();
      const int64_t cols = args.out.cols;
      for (int64_t i = 0; i < rows * cols; ++i) {
        ASSERT_EQ(std::isnan(got[i]), i / cols == 7 || i / cols == 33) << i << " swiglu " << swiglu;
      }
    }
  }
}

}  // namespace
}  // namespace vayu::ops
