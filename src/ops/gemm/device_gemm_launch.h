// Between the launcher (host code) and the kernels: what a launch passes.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "ops/cuda/types.h"
#include "ops/gemm/device_gemm.h"
#include "ops/gemm/device_gemm_tiles.h"

namespace vayu::ops {

constexpr int32_t kGemmMaxStages = 6;
constexpr int32_t kGemmFixedBytes = 2816;  // GemmFixed of device_gemm_shared.cuh
constexpr int32_t kGemmFactorBytes = 848;  // StageFactors
constexpr int32_t kGemmSharedBytes = 227 * 1024;

struct GemmMaps {
  CUtensorMap weight;  // boxes of 256 rows
  CUtensorMap x;       // x in boxes of shape.box_rows rows; with several groups not used. None of these with x_rows
  CUtensorMap x64;     // in boxes of 64 rows, of 32 and of 8 for what is left
  CUtensorMap x32;
  CUtensorMap x8;
};

struct GemmShape {
  const uint8_t* x;
  const float* x_scales;
  const float* weight_scales;
  const int32_t* group_indptr;
  const int32_t* x_rows;
  const int32_t* y_rows;
  uint8_t* out;
  float* out_scales;
  int32_t num_rows;
  int32_t num_groups;
  int32_t rows_per_group;
  int32_t weight_blocks;  // of 64 rows
  int32_t row_bytes;      // of x and of the weight
  int32_t steps;          // of 128 bytes along K; at least 2, the second may lie behind the row and is zeros
  int32_t out_cols;
  int32_t max_width;
  int32_t box_rows;  // of x that a block fetches for a full tile; 0: tiles differ
  int32_t stages;
  int32_t cluster;
  bool row_scales;    // one a weight row
  bool block_scales;  // one for 64 x 128 of the weight
  bool x_row_scales;
  bool x_group_scales;
  bool swiglu;
};

struct GemmLaunch {
  GemmMaps maps;
  GemmShape shape;
  int32_t grid;
  int32_t shared_bytes;
};

void launch_gemm_f8(CudaStream stream, const GemmLaunch& launch);         // scales of rows only
void launch_gemm_f8_scaled(CudaStream stream, const GemmLaunch& launch);  // scales of x along K
void launch_gemm_f8_blocks(CudaStream stream, const GemmLaunch& launch);  // scales of the weight along K, of x as well
void launch_gemm_bf16(CudaStream stream, const GemmLaunch& launch);

}  // namespace vayu::ops
