#include "ops/gemm/device_gemm.h"

#include <algorithm>
#include <numeric>

#include "ops/cuda/matrix_test_util.h"
#include "ops/norm/quantize_rows.h"

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
  DeviceGemmPlan plan = {};  // max_width 0: the chosen one
  int32_t checked_rows = 1 << 30;
};

std::string name_of(const Case& c) {
  return std::to_string(c.groups) + " x " + std::to_string(c.rows_per_group) + " x " + std::to_string(c.cols) + ", " +
         std::to_string(c.num_rows) + " rows, scale " + std::to_string(static_cast<int>(c.scale)) + "/" +
         std::to_string(c.x_group) + (c.swiglu ? " swiglu" : "") + (c.f8_out ? " f8" : "") +
         (c.gather ? " gather" : "") + (c.scatter ? " scatter" : "") + " plan " + std::to_string(c.plan.max_width) +
         "/" + std::to_string(c.plan.stages) + "/" + std::to_string(c.plan.cluster);
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

void compare_row(const Case& c, const float* got, const float* want, int64_t cols, int32_t row) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < cols; ++i) {
    error += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    norm += double{want[i]} * want[i];
  }
  ASSERT_LE(std::sqrt(error), row_tolerance(c) * std::sqrt(norm)) << name_of(c) << " row " << row;
  const double rms = std::sqrt(norm / static_cast<double>(cols));
  for (int64_t i = 0; i < cols; ++i) {
    ASSERT_NEAR(got[i], want[i], 0.05 * rms + (c.f8_out ? 0.13 : 0.02) * std::fabs(want[i]))
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
               .rows_per_group = 128 * random.integer(1, 5),
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
                 .x_group = scale == WeightScale::kBlock ? 128 : 0,
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

// Random rows without the cost of quantising: as a matrix, whose rows are the pieces under one scale.
class FastRows {
 public:
  FastRows(TestRandom& random, int64_t rows, int64_t cols, bool f8, int32_t scale_group)
      : cols_(cols),
        scale_group_(scale_group),
        matrix_(random, scale_group ? rows * cols / scale_group : rows, scale_group ? scale_group : cols,
                f8 ? WeightScale::kRow : WeightScale::kNone, true) {}
  ActRows device() const {
    const DeviceMatrix& m = matrix_.device();
    return {const_cast<void*>(m.data), const_cast<float*>(m.scales), cols_, scale_group_};
  }

 private:
  int64_t cols_;
  int32_t scale_group_;
  TestMatrix matrix_;
};

// The least time of a plan so far, for the line of the best.
struct Best {
  DeviceGemmPlan plan;
  double us = 1e30;
};

void print_speed(const char* label, const char* what, const DeviceGemmArgs& args, const DeviceGemmPlan& plan,
                 double us) {
  const double flops = 2.0 * args.num_rows * static_cast<double>(args.rows_per_group() * args.weight.cols);
  const double ceiling = args.weight.is_f8() ? 1430 : 800;
  std::printf("%s device_gemm %s width %d stages %d cluster %d %.1f us %.0f TFLOP/s %.0f%%\n", label, what,
              plan.max_width, plan.stages, plan.cluster, us, flops / us * 1e-6, flops / us * 1e-6 / ceiling * 100);
}

void time_plan(const char* what, const DeviceGemmArgs& args, DeviceGemmPlan plan, Best& best) {
  plan.stages = std::min(plan.stages > 0 ? plan.stages : 6, device_gemm_stages(args, plan.max_width));
  const auto us =
      median_us([&](CudaStream stream) { device_gemm_cuda(stream, args, plan); }, {.warm_ups = 2, .repeats = 11});
  ASSERT_TRUE(us.ok()) << us.error().message;
  print_speed("SPEED", what, args, plan, us.value());
  if (us.value() < best.us) best = {plan, us.value()};
}

// The chosen plan, then every candidate, then the best again.
void time_plans(const char* what, const DeviceGemmArgs& args, const std::vector<int32_t>& widths) {
  Best best;
  time_plan(what, args, device_gemm_plan(args, 132), best);
  print_speed("CHOSEN", what, args, best.plan, best.us);
  for (const int32_t width : widths) {
    for (const int32_t cluster : {1, 2}) {
      if (cluster == 1 || args.x_rows == nullptr) time_plan(what, args, {width, 0, cluster}, best);
    }
  }
  print_speed("BEST", what, args, best.plan, best.us);
}

void time_dense(TestRandom& random, const char* what, int64_t out, int64_t cols, int32_t rows, WeightScale scale,
                bool swiglu, int32_t x_group, bool f8_out = true) {
  const bool f8 = scale != WeightScale::kNone;
  TestMatrix weight(random, out, cols, scale, true);
  FastRows x(random, rows, cols, f8, x_group);
  TestRows y(rows, swiglu ? out / 2 : out, f8 && swiglu && f8_out, kScaleGroup);
  DeviceGemmArgs args;
  args.weight = weight.device();
  args.x = x.device();
  args.out = y.device();
  args.swiglu = swiglu;
  args.num_rows = rows;
  const std::vector<int32_t> widths =
      rows > 1000 ? std::vector<int32_t>{112, 128, 144, 160, 176, 192} : std::vector<int32_t>{48, 64, 96, 128};
  time_plans(what, args, widths);
}

// Rows of 3,584 tokens that choose 6 of 128 experts each: indptr and tokens by expert.
struct Routing {
  std::vector<int32_t> indptr = std::vector<int32_t>(129, 0);
  std::vector<int32_t> tokens;
};
Routing random_routing(TestRandom& random, int32_t num_tokens) {
  std::vector<std::vector<int32_t>> experts(128);
  std::vector<int32_t> order(128);
  std::iota(order.begin(), order.end(), 0);
  for (int32_t t = 0; t < num_tokens; ++t) {
    for (int j = 0; j < 6; ++j) {
      std::swap(order[j], order[random.integer(j, 127)]);
      experts[order[j]].push_back(t);
    }
  }
  Routing routing;
  for (int32_t e = 0; e < 128; ++e) {
    routing.tokens.insert(routing.tokens.end(), experts[e].begin(), experts[e].end());
    routing.indptr[e + 1] = static_cast<int32_t>(routing.tokens.size());
  }
  return routing;
}

void time_experts(TestRandom& random, int32_t num_tokens) {
  const Routing routing = random_routing(random, num_tokens);
  const auto rows = static_cast<int32_t>(routing.tokens.size());
  const DeviceArray<int32_t> indptr(routing.indptr), tokens(routing.tokens);
  DeviceGemmArgs args;
  args.num_rows = rows;
  args.num_groups = 128;
  args.group_indptr = indptr.get();
  {
    TestMatrix gate_up(random, 128 * 2048, 4096, WeightScale::kRow, true);
    FastRows x(random, num_tokens, 4096, true, 0);
    TestRows h(rows, 1024, true, kScaleGroup);
    args.weight = gate_up.device();
    args.x = x.device();
    args.out = h.device();
    args.swiglu = true;
    args.x_rows = tokens.get();
    time_plans("gate-up gathered", args, {160, 176, 192});
    TestRows h16(rows, 1024, false, 0);
    args.out = h16.device();
    time_plans("gate-up gathered to bf16", args, {160, 176, 192});
    TestRows h8(rows, 1024, true, 0);
    const QuantizeRowsArgs quantize{
        .x = static_cast<const Bf16*>(args.out.data), .x_stride = 1024, .num_rows = rows, .y = h8.device()};
    const auto us = median_us([&](CudaStream stream) { quantize_rows_cuda(stream, quantize); });
    ASSERT_TRUE(us.ok());
    std::printf("SPEED quantize_rows of h %dx1024 %.1f us\n", rows, us.value());
    args.out = h.device();
    args.x_rows = nullptr;
    FastRows sorted(random, rows, 4096, true, 0);
    args.x = sorted.device();
    time_plans("gate-up of sorted rows", args, {176, 192});
  }
  TestMatrix down(random, 128 * 4096, 1024, WeightScale::kRow, true);
  TestRows y(rows, 4096, false, 0);
  args.weight = down.device();
  args.out = y.device();
  args.swiglu = false;
  FastRows of_groups(random, rows, 1024, true, kScaleGroup);
  args.x = of_groups.device();
  time_plans("down of groups", args, {160, 176, 192});
  FastRows of_rows(random, rows, 1024, true, 0);
  args.x = of_rows.device();
  time_plans("down of rows", args, {160, 176, 192});
}

TEST(DeviceGemmCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (std::getenv("VAYU_SPEED") == nullptr) GTEST_SKIP() << "VAYU_SPEED is not set";
  TestRandom random;
  time_dense(random, "qkv 3584x4608x4096", 4608, 4096, 3584, WeightScale::kRow, false, 0);
  time_dense(random, "o 3584x4096x4096", 4096, 4096, 3584, WeightScale::kRow, false, 0);
  time_dense(random, "o of groups 3584x4096x4096", 4096, 4096, 3584, WeightScale::kRow, false, 128);
  time_dense(random, "qkv in blocks 3584x4608x4096", 4608, 4096, 3584, WeightScale::kBlock, false, 128);
  time_dense(random, "shared gate-up 3584x2048x4096", 2048, 4096, 3584, WeightScale::kRow, true, 0);
  time_dense(random, "shared down 3584x4096x1024", 4096, 1024, 3584, WeightScale::kRow, false, 128);
  time_dense(random, "shared gate-up to bf16 3584x2048x4096", 2048, 4096, 3584, WeightScale::kRow, true, 0, false);
  time_dense(random, "shared down of rows 3584x4096x1024", 4096, 1024, 3584, WeightScale::kRow, false, 0);
  time_dense(random, "dense gate-up 3584x16384x4096", 16384, 4096, 3584, WeightScale::kRow, true, 0);
  time_dense(random, "dense down 3584x4096x8192", 4096, 8192, 3584, WeightScale::kRow, false, 128);
  time_dense(random, "dense down of rows 3584x4096x8192", 4096, 8192, 3584, WeightScale::kRow, false, 0);
  time_dense(random, "qkv 256x4608x4096", 4608, 4096, 256, WeightScale::kRow, false, 0);
  time_dense(random, "bf16 qkv 3584x4608x4096", 4608, 4096, 3584, WeightScale::kNone, false, 0);
  time_experts(random, 3584);
}

}  // namespace
}  // namespace vayu::ops
