// Chooses a plan, checks shapes, makes the tensor maps.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/cuda/num_sms.h"
#include "ops/cuda/tensor_map.h"
#include "ops/gemm/device_gemm_launch.h"

namespace vayu::ops {
namespace {

bool scaled_along_k(const DeviceGemmArgs& args) {
  return args.weight.scale == WeightScale::kBlock || args.x.scale_group != 0;
}
int32_t shared_bytes(const DeviceGemmArgs& args, int32_t max_width, int32_t stages) {
  const int32_t stage = (kTileRows + max_width) * 128 + (scaled_along_k(args) ? kGemmFactorBytes : 0);
  return kGemmFixedBytes + stages * stage;
}

// One group: the width whose waves of tiles take least. A stage of a tile of width w costs 512 + 5 w cycles of shared
// memory (see device_gemm_kernel.cuh) and no less was measured: 100 stands for the weights' part, in columns of work.
int32_t dense_width(const DeviceGemmArgs& args, int32_t row_tiles, int32_t sms) {
  int32_t best = kTileWidthStep;
  int64_t best_cost = INT64_MAX;
  for (int32_t width = kTileWidthStep; width <= kTileMaxWidth; width += kTileWidthStep) {
    const int64_t waves = divide_up(divide_up(args.num_rows, width) * row_tiles, sms);
    const int64_t short_ring = device_gemm_stages(args, width) < 4 ? 11 : 10;  // three stages cost a tenth
    const int64_t cost = waves * (width + 100) * short_ring;
    if (cost <= best_cost) {
      best_cost = cost;
      best = width;
    }
  }
  return best;
}

// Several: wide enough for nearly all groups when rows fall to them at random (mean + 2.5 sigma).
int32_t grouped_width(int32_t num_rows, int32_t num_groups) {
  const double mean = static_cast<double>(num_rows) / num_groups;
  const auto width = static_cast<int32_t>(std::ceil((mean + 2.5 * std::sqrt(mean)) / kTileWidthStep)) * kTileWidthStep;
  return std::clamp(width, 64, kTileMaxWidth);
}

void check_args(const DeviceGemmArgs& args, const DeviceGemmPlan& plan) {
  const int64_t rows = args.rows_per_group();
  VAYU_CHECK(args.num_groups >= 1 && args.num_groups <= kDeviceGemmMaxGroups, "{} groups", args.num_groups);
  VAYU_CHECK(args.num_groups == 1 || args.group_indptr != nullptr, "several groups need group_indptr");
  VAYU_CHECK(rows * args.num_groups == args.weight.rows && rows % 8 == 0, "{} weight rows a group", rows);
  VAYU_CHECK(args.x.cols == args.weight.cols && args.x.is_f8() == args.weight.is_f8(), "x ({} columns), weight ({})",
             args.x.cols, args.weight.cols);
  VAYU_CHECK(args.weight.row_bytes() % 16 == 0, "rows of {} bytes", args.weight.row_bytes());
  VAYU_CHECK(args.out.cols == (args.swiglu ? rows / 2 : rows), "out has {} columns", args.out.cols);
  VAYU_CHECK(!args.out.is_f8() || (args.swiglu && args.out.scale_group == kScaleGroup), "FP8 out is for swiglu");
  VAYU_CHECK(!args.swiglu || rows % (args.out.is_f8() ? kTileRows : 2 * kGateUpInterleave) == 0, "{} gate-up rows",
             rows);
  if (scaled_along_k(args)) VAYU_CHECK(args.weight.cols % kScaleGroup == 0, "{} columns", args.weight.cols);
  if (args.weight.scale == WeightScale::kBlock) {
    VAYU_CHECK(args.num_groups == 1 || rows % kScaleBlockRows == 0, "{} rows a group in blocks of 64", rows);
  }
  VAYU_CHECK(plan.max_width % kTileWidthStep == 0 && plan.max_width > 0 && plan.max_width <= kTileMaxWidth, "width {}",
             plan.max_width);
  VAYU_CHECK(plan.stages >= 2 && plan.stages <= device_gemm_stages(args, plan.max_width), "{} stages", plan.stages);
  VAYU_CHECK(plan.cluster == 1 || (plan.cluster == 2 && args.x_rows == nullptr), "cluster of {}", plan.cluster);
}

GemmShape make_shape(const DeviceGemmArgs& args, const DeviceGemmPlan& plan) {
  const DeviceMatrix& weight = args.weight;
  GemmShape shape = {};
  shape.x = static_cast<const uint8_t*>(args.x.data);
  shape.x_scales = args.x.scales;
  shape.weight_scales = weight.scales;
  shape.group_indptr = args.group_indptr;
  shape.x_rows = args.x_rows;
  shape.y_rows = args.y_rows;
  shape.out = static_cast<uint8_t*>(args.out.data);
  shape.out_scales = args.out.scales;
  shape.num_rows = args.num_rows;
  shape.num_groups = args.num_groups;
  shape.rows_per_group = static_cast<int32_t>(args.rows_per_group());
  shape.weight_blocks = divide_up(static_cast<int32_t>(weight.rows), kScaleBlockRows);
  shape.row_bytes = static_cast<int32_t>(weight.row_bytes());
  shape.steps = std::max(2, divide_up(shape.row_bytes, 128));
  shape.out_cols = static_cast<int32_t>(args.out.cols);
  shape.max_width = plan.max_width;
  shape.box_rows = args.num_groups == 1 ? cut_group(args.num_rows, plan.max_width).width / plan.cluster : 0;
  shape.stages = plan.stages;
  shape.cluster = plan.cluster;
  shape.row_scales = weight.scale == WeightScale::kRow;
  shape.block_scales = weight.scale == WeightScale::kBlock;
  shape.x_row_scales = args.x.is_f8() && args.x.scale_group == 0;
  shape.x_group_scales = args.x.is_f8() && args.x.scale_group != 0;
  shape.swiglu = args.swiglu;
  return shape;
}

GemmMaps make_maps(const DeviceGemmArgs& args, int32_t box_rows) {
  GemmMaps maps = {};
  maps.weight = byte_rows_map(args.weight.data, args.weight.rows, args.weight.row_bytes(), kTileRows);
  if (args.x_rows == nullptr) {
    const auto boxes = [&](int32_t rows) {
      return byte_rows_map(args.x.data, args.num_rows, args.weight.row_bytes(), rows);
    };
    maps.x = boxes(std::max(8, box_rows));
    maps.x64 = boxes(64);
    maps.x32 = boxes(32);
    maps.x8 = boxes(8);
  }
  return maps;
}

}  // namespace

int32_t device_gemm_stages(const DeviceGemmArgs& args, int32_t max_width) {
  int32_t stages = 1;
  while (stages < kGemmMaxStages && shared_bytes(args, max_width, stages + 1) <= kGemmSharedBytes) ++stages;
  return stages;
}

DeviceGemmPlan device_gemm_plan(const DeviceGemmArgs& args, int32_t num_sms) {
  const auto row_tiles = divide_up(static_cast<int32_t>(args.rows_per_group()), kTileRows);
  DeviceGemmPlan plan;
  plan.max_width = args.group_indptr != nullptr && args.num_groups > 1 ? grouped_width(args.num_rows, args.num_groups)
                                                                       : dense_width(args, row_tiles, num_sms);
  plan.stages = device_gemm_stages(args, plan.max_width);
  // Pairs of blocks share the rows of x: 3 to 12 % faster throughout; a gather cannot be shared.
  plan.cluster = args.x_rows == nullptr && row_tiles % 2 == 0 ? 2 : 1;
  return plan;
}

void device_gemm_cuda(CudaStream stream, const DeviceGemmArgs& args) {
  device_gemm_cuda(stream, args, device_gemm_plan(args, num_sms()));
}

void device_gemm_cuda(CudaStream stream, const DeviceGemmArgs& args, const DeviceGemmPlan& plan) {
  if (args.num_rows == 0) return;
  check_args(args, plan);
  GemmLaunch launch = {};
  launch.shape = make_shape(args, plan);
  launch.maps = make_maps(args, launch.shape.box_rows);
  const int32_t row_units = divide_up(launch.shape.rows_per_group, kTileRows * plan.cluster);
  const int64_t most_tiles = divide_up(args.num_rows, plan.max_width) + std::min(args.num_groups, args.num_rows);
  launch.grid =
      static_cast<int32_t>(std::min<int64_t>(num_sms() / plan.cluster, most_tiles * row_units)) * plan.cluster;
  launch.shared_bytes = shared_bytes(args, plan.max_width, plan.stages);
  if (!args.weight.is_f8()) {
    launch_gemm_bf16(stream, launch);
  } else if (launch.shape.block_scales) {
    launch_gemm_f8_blocks(stream, launch);
  } else if (scaled_along_k(args)) {
    launch_gemm_f8_scaled(stream, launch);
  } else {
    launch_gemm_f8(stream, launch);
  }
}

}  // namespace vayu::ops
