// y = x W^T for many rows (prefill), dense or grouped, and the same with SwiGLU behind it.
//   linear   out[r, o] = sum over k of x[r, k] W[o, k]
//   swiglu   out[r, o] = silu(x G^T)[r, o] * (x U^T)[r, o], silu(v) = v / (1 + exp(-v)), with G and U interleaved in W
//            by 64 rows (ops/cuda/types.h)
// A group (an expert) has its own rows_per_group rows of W and a run of the row list; row i of the list reads row
// x_rows[i] of x and writes row y_rows[i] of out. Which groups have how many rows is known on the device alone.
#pragma once

#include <cstdint>

#include "ops/cuda/types.h"

namespace vayu::ops {

struct DeviceGemmArgs {
  DeviceMatrix weight;  // (num_groups * rows_per_group, cols); several groups with kBlock: rows_per_group % 64 == 0
  ActRows x;            // (any, cols) FP8 or BF16 like the weight; as many rows as num_rows when x_rows is null
  // linear: BF16 (any, rows_per_group). swiglu: (any, rows_per_group / 2) in BF16, or in FP8 with kScaleGroup.
  ActRows out;
  bool swiglu = false;
  int32_t num_rows = 0;  // rows of the list: group_indptr[num_groups] or more
  int32_t num_groups = 1;
  const int32_t* group_indptr = nullptr;  // (num_groups + 1), device memory; null: one group of num_rows rows
  const int32_t* x_rows = nullptr;        // (num_rows), device memory; null: row i reads row i
  const int32_t* y_rows = nullptr;        // (num_rows) all different, device memory; null: row i writes row i

  int64_t rows_per_group() const { return weight.rows / num_groups; }
};

// How a call is cut and run. Any plan gives the same sums; device_gemm_plan chooses for speed.
struct DeviceGemmPlan {
  int32_t max_width = 0;  // rows of x in a tile at most: a multiple of 16 up to 192
  int32_t stages = 0;     // of the shared memory ring
  int32_t cluster = 1;    // 2: two blocks share the rows of x, each fetching half for both; not with x_rows
};

constexpr int32_t kDeviceGemmMaxGroups = 256;

DeviceGemmPlan device_gemm_plan(const DeviceGemmArgs& args, int32_t num_sms);
// The most stages that fit into a block's shared memory beside `max_width`.
int32_t device_gemm_stages(const DeviceGemmArgs& args, int32_t max_width);

void device_gemm_ref(const DeviceGemmArgs& args);  // pointers to host memory
// No scratch. cols * element size a multiple of 16 bytes (of 128 elements with any scale a group of 128);
// rows_per_group a multiple of 8, with swiglu of 128 (of 256 when out is FP8).
void device_gemm_cuda(CudaStream stream, const DeviceGemmArgs& args);
void device_gemm_cuda(CudaStream stream, const DeviceGemmArgs& args, const DeviceGemmPlan& plan);

}  // namespace vayu::ops
