// How long plans of the GEMM take, the chosen ones and the others: at the shapes of sarvam-30b.
#include <algorithm>
#include <numeric>

#include "ops/cuda/matrix_test_util.h"
#include "ops/gemm/device_gemm.h"
#include "ops/norm/quantize_rows.h"

namespace vayu::ops {
namespace {

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
    const DeviceArray<float> blocks(std::vector<float>(128 * 2048 / kScaleBlockRows * 4096 / kScaleGroup, 0.01f));
    FastRows x(random, num_tokens, 4096, true, 0);
    TestRows h(rows, 1024, true, kScaleGroup);
    args.weight = gate_up.device();
    args.x = x.device();
    args.out = h.device();
    args.swiglu = true;
    args.x_rows = tokens.get();
    time_plans("gate-up gathered", args, {160, 176, 192});
    args.weight.scale = WeightScale::kBlock;
    args.weight.scales = blocks.get();
    time_plans("gate-up in blocks gathered", args, {160, 176, 192});
    args.weight = gate_up.device();
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
  const DeviceArray<float> blocks(std::vector<float>(128 * 4096 / kScaleBlockRows * 1024 / kScaleGroup, 0.01f));
  args.weight.scale = WeightScale::kBlock;
  args.weight.scales = blocks.get();
  time_plans("down of groups in blocks", args, {160, 176, 192});
  args.weight = down.device();
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
  time_dense(random, "qkv in blocks 3584x4608x4096", 4608, 4096, 3584, WeightScale::kBlock, false, 0);
  time_dense(random, "qkv in blocks of groups 3584x4608x4096", 4608, 4096, 3584, WeightScale::kBlock, false, 128);
  time_dense(random, "shared gate-up in blocks 3584x2048x4096", 2048, 4096, 3584, WeightScale::kBlock, true, 0);
  time_dense(random, "shared down in blocks 3584x4096x1024", 4096, 1024, 3584, WeightScale::kBlock, false, 128);
  time_dense(random, "dense gate-up in blocks 3584x16384x4096", 16384, 4096, 3584, WeightScale::kBlock, true, 0);
  time_dense(random, "dense down in blocks 3584x4096x8192", 4096, 8192, 3584, WeightScale::kBlock, false, 128);
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
