// The reference against the formula written out, and the cutting into tiles: every row meets every part of the weight
// once.
#include "ops/gemm/device_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/op_test_util.h"
#include "ops/cuda/host_rows.h"
#include "ops/gemm/device_gemm_tiles.h"

namespace vayu::ops {
namespace {

TEST(DeviceGemm, EveryRowIsInOneTile) {
  TestRandom random;
  for (int round = 0; round < 200; ++round) {
    const auto groups = static_cast<int32_t>(random.integer(1, 40));
    const auto max_width = static_cast<int32_t>(kTileWidthStep * random.integer(1, kTileMaxWidth / kTileWidthStep));
    const auto row_units = static_cast<int32_t>(random.integer(1, 20));
    std::vector<int32_t> rows(groups), first_unit(groups + 1, 0);
    for (int32_t g = 0; g < groups; ++g) {
      rows[g] = static_cast<int32_t>(random.integer(0, round % 2 == 0 ? 9000 : 3) * random.integer(0, 1));
      first_unit[g + 1] = first_unit[g] + cut_group(rows[g], max_width).count * row_units;
    }
    std::vector<std::vector<int32_t>> seen(groups);  // how often a row of a group was met, (row, row unit)
    for (int32_t g = 0; g < groups; ++g) seen[g].assign(rows[g] * row_units, 0);
    for (int32_t unit = 0; unit < first_unit[groups]; ++unit) {
      const int32_t g = find_group(first_unit.data(), groups, unit);
      const GroupTiles cut = cut_group(rows[g], max_width);
      const UnitPlace place = place_unit(unit - first_unit[g], cut.count, row_units);
      ASSERT_GT(rows[g], 0);
      ASSERT_LE(cut.width, max_width);
      ASSERT_LT(place.row_unit, row_units);
      const int32_t first = place.tile * cut.width;
      ASSERT_LT(first, rows[g]) << "an empty tile";
      for (int32_t r = first; r < std::min(first + cut.width, rows[g]); ++r) ++seen[g][r * row_units + place.row_unit];
    }
    for (int32_t g = 0; g < groups; ++g) {
      for (const int32_t count : seen[g]) ASSERT_EQ(count, 1);
    }
  }
}

TEST(DeviceGemm, ABlockScaleIsOf64RowsAnd128Columns) {
  const int64_t rows = 150, cols = 256;
  std::vector<F8E4M3> codes(rows * cols, F8E4M3{0x38});  // 1.0
  std::vector<float> scales(6);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<float>(i + 1);
  const DeviceMatrix weight = {codes.data(), scales.data(), WeightScale::kBlock, rows, cols};
  EXPECT_EQ(weight.num_scales(), 6);
  for (const int64_t row : {0, 63, 64, 127, 128, 149}) {
    const std::vector<float> values = host_weight_row(weight, row);
    for (int64_t i = 0; i < cols; ++i) EXPECT_EQ(values[i], static_cast<float>(row / 64 * 2 + i / 128 + 1));
  }
}

TEST(DeviceGemm, ReferenceIsTheFormula) {
  TestRandom random;
  const int64_t cols = 32, rows_per_group = 128;
  std::vector<Bf16> weight(2 * rows_per_group * cols), x(5 * cols);
  for (Bf16& v : weight) v = host_bf16(random.normal());
  for (Bf16& v : x) v = host_bf16(random.normal());
  const std::vector<int32_t> indptr = {0, 2, 6}, x_rows = {4, 0, 1, 1, 3, 2}, y_rows = {5, 3, 0, 1, 2, 4};
  for (const bool swiglu : {false, true}) {
    const int64_t out_cols = swiglu ? rows_per_group / 2 : rows_per_group;
    std::vector<Bf16> out(6 * out_cols);
    DeviceGemmArgs args;
    args.weight = {weight.data(), nullptr, WeightScale::kNone, 2 * rows_per_group, cols};
    args.x = {x.data(), nullptr, cols, 0};
    args.out = {out.data(), nullptr, out_cols, 0};
    args.swiglu = swiglu;
    args.num_rows = 6;
    args.num_groups = 2;
    args.group_indptr = indptr.data();
    args.x_rows = x_rows.data();
    args.y_rows = y_rows.data();
    device_gemm_ref(args);
    auto dot = [&](int32_t i, int64_t row) {
      double sum = 0;
      for (int64_t k = 0; k < cols; ++k) {
        sum += double{host_float(x[x_rows[i] * cols + k])} * host_float(weight[row * cols + k]);
      }
      return sum;
    };
    for (int32_t i = 0; i < 6; ++i) {
      for (int64_t o = 0; o < out_cols; ++o) {
        const int64_t base = i < 2 ? 0 : rows_per_group;
        const double gate = dot(i, base + o);  // 64 gate rows, then 64 up rows
        const double want = swiglu ? gate / (1 + std::exp(-gate)) * dot(i, base + 64 + o) : gate;
        EXPECT_NEAR(host_float(out[y_rows[i] * out_cols + o]), want, 1e-5 + std::fabs(want) / 256) << i << ' ' << o;
      }
    }
  }
}

}  // namespace
}  // namespace vayu::ops
