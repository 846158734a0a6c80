// Weights are the M side of wgmma (out^T = W x^T), so few rows of x need no padding to 64. The depth is cut over the
// blocks of a cluster, so that a 4096 x 4096 matrix fills the card; a block's share of W (64 KB or less) fits in shared
// memory, so all its loads are issued at once, before the previous kernel has ended (weights do not depend on it). The
// partial sums meet through distributed shared memory, always in the order of the depth.
//
// For matrices too low for a tile of whole depth on every SM; the tall ones are stream_linear_tall.cu's.
//
//   rows of x   weight rows a block   what bounds
//   up to 16    64                    few bytes in flight a block, five blocks an SM
//   up to 128   128                   x is read from the L2 cache by every block: taller tiles halve that
#include "ops/cuda/launch.cuh"
#include "ops/cuda/require.h"
#include "ops/cuda/stream_ring.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/vector.cuh"
#include "ops/gemm/stream_linear_tall.h"

namespace vayu::ops {
namespace {

constexpr int kMaxBlocksOfDepth = 16;  // of 128 bytes, a thread block

struct Params {
  const uint8_t* x;
  const float* x_scales;
  const float* scales;
  Bf16* y;
  float* y_float;
  int64_t y_stride;
  int64_t x_row_bytes;
  int32_t out_rows;        // of the weight
  int32_t num_rows;        // of x
  int32_t depth_blocks;    // of 128 bytes, in all
  int32_t blocks_a_rank;   // of these, most a block of the cluster takes
  int32_t x_group_scales;  // 0: one scale a row; else scales a row
  int32_t block_scaled;    // weight scales are of 128 x 128
};

// The x rows' part of the depth, swizzled like the weights; zero behind the last row and the last column.
template <int kWidth, int kThreads>
__device__ void load_x(const Params& p, uint8_t* x, int first_block, int blocks) {
  for (int i = threadIdx.x; i < kWidth * 8 * blocks; i += kThreads) {
    const int block = i / (kWidth * 8), row = i / 8 % kWidth, chunk = i % 8;
    const int64_t column = int64_t{first_block + block} * 128 + chunk * 16;
    const bool there = row < p.num_rows && column < p.x_row_bytes;
    copy_async16(shared_address(x + block * kWidth * 128) + swizzled_offset(row, chunk),
                 there ? p.x + row * p.x_row_bytes + column : p.x, there ? 16 : 0);
  }
}

// Factors of one block of 128 inputs: block scale of the weights times group scale of each row of x.
template <int kWidth>
__device__ __forceinline__ void add_scaled(const Params& p, float (&sum)[kWidth / 2], const float (&part)[kWidth / 2],
                                           int first_row, int block, int lane) {
  const float weight = p.block_scaled ? p.scales[first_row / 128 * p.depth_blocks + block] : 1.0f;
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int row = 8 * j + 2 * (lane % 4) + c;
      float scale = weight;
      if (p.x_group_scales && row < p.num_rows) scale *= __ldcg(&p.x_scales[row * p.x_group_scales + block]);
      sum[4 * j + c] += part[4 * j + c] * scale;
      sum[4 * j + 2 + c] += part[4 * j + 2 + c] * scale;
    }
  }
}

template <int kElementBytes, int kWidth, bool kScaleBlocks>
__device__ __forceinline__ void multiply_blocks(const Params& p, const uint8_t* w, int w_block_bytes, const uint8_t* x,
                                                uint64_t* landed, int first_row, int first_block, int blocks, int lane,
                                                float (&sum)[kWidth / 2]) {
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) sum[i] = 0;
  float part[kScaleBlocks ? kWidth / 2 : 1];
  for (int block = 0; block < blocks; ++block) {
    barrier_wait(&landed[block], 0);
    const uint64_t a = swizzled_descriptor(w + block * w_block_bytes);
    const uint64_t b = swizzled_descriptor(x + block * kWidth * 128);
    if constexpr (kScaleBlocks) {
      wgmma_pin(part);
    } else {
      wgmma_pin(sum);
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (kScaleBlocks) {
        multiply<kElementBytes, kWidth>(part, a + k * kDescriptorStep, b + k * kDescriptorStep, k != 0);
      } else {
        multiply<kElementBytes, kWidth>(sum, a + k * kDescriptorStep, b + k * kDescriptorStep, 1);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    if constexpr (kScaleBlocks) {
      wgmma_pin(part);
      add_scaled<kWidth>(p, sum, part, first_row, first_block + block, lane);
    } else {
      wgmma_pin(sum);
    }
  }
}

// Sums of the whole cluster, each block a share of the outputs, in the order of the ranks; then scale and store.
template <int kRows, int kWidth, int kThreads>
__device__ void reduce_and_store(const Params& p, const float* partial, int rank, int ranks, int first_out) {
  constexpr int kPitch = kRows + 4;  // floats; 4 tokens apart are 16 banks: no conflicts among a warp's stores
  for (int i = rank * kThreads + static_cast<int>(threadIdx.x); i < kWidth * kRows / 4; i += ranks * kThreads) {
    const int row = i / (kRows / 4), out = i % (kRows / 4) * 4;
    if (row >= p.num_rows) break;
    float v[4] = {0, 0, 0, 0};
    for (int r = 0; r < ranks; ++r) {
      const uint32_t from = remote_address(partial + row * kPitch + out, r);
      float t[4];
      asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(t[0]), "=f"(t[1]), "=f"(t[2]), "=f"(t[3])
                   : "r"(from)
                   : "memory");
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] += t[j];
    }
    const float row_scale = p.x_scales && !p.x_group_scales ? __ldcg(&p.x_scales[row]) : 1.0f;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = first_out + out + j;
      if (at >= p.out_rows) break;
      const float value = v[j] * row_scale * (p.scales && !p.block_scaled ? p.scales[at] : 1.0f);
      if (p.y) {
        p.y[row * p.y_stride + at] = to_bf16(value);
      } else {
        p.y_float[row * p.y_stride + at] = value;
      }
    }
  }
}

// A warpgroup for each 64 weight rows.
template <int kElementBytes, int kRows, int kWidth, bool kScaleBlocks>
__global__ void __launch_bounds__(kRows * 2)
    stream_linear_kernel(const __grid_constant__ CUtensorMap weights, const Params p) {
  constexpr int kThreads = kRows * 2;
  constexpr int kPitch = kRows + 4;
  extern __shared__ uint8_t raw[];
  uint8_t* w = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(raw) + 1023) / 1024 * 1024);
  uint8_t* x = w + p.blocks_a_rank * kRows * 128;
  __shared__ uint64_t landed[kMaxBlocksOfDepth];
  uint32_t ranks;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
  const int rank = static_cast<int>(cluster_rank());
  const int first_out = static_cast<int>(blockIdx.x / ranks) * kRows;
  const int first_block = rank * p.blocks_a_rank;
  const int blocks = max(0, min(p.blocks_a_rank, p.depth_blocks - first_block));
  if (threadIdx.x == 0) {
    for (int i = 0; i < blocks; ++i) barrier_init(&landed[i], 1);
    barrier_init_fence();
    for (int i = 0; i < blocks; ++i) {
      barrier_arrive_expect(&landed[i], kRows * 128);
      copy_tile(&weights, &landed[i], w + i * kRows * 128, (first_block + i) * 128, first_out, kEvictFirst);
    }
  }
  wait_for_inputs();
  let_next_start();
  load_x<kWidth, kThreads>(p, x, first_block, blocks);
  copy_async_commit();
  copy_async_wait<0>();
  fence_shared_for_async();
  __syncthreads();

  const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  float sum[kWidth / 2];
  multiply_blocks<kElementBytes, kWidth, kScaleBlocks>(p, w + warpgroup * 64 * 128, kRows * 128, x, landed,
                                                       first_out + warpgroup * 64, first_block, blocks, lane, sum);
  __syncthreads();  // nobody reads w any more: it becomes the partial sums, (kWidth, kPitch)
  float* partial = reinterpret_cast<float*>(w);
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) {
    const int row = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    partial[row * kPitch + warpgroup * 64 + 16 * warp + lane / 4 + i % 4 / 2 * 8] = sum[i];
  }
  cluster_arrive();
  cluster_wait();
  reduce_and_store<kRows, kWidth, kThreads>(p, partial, rank, static_cast<int>(ranks), first_out);
  cluster_arrive();
  cluster_wait();  // a block's memory stays until all have read it
}

struct Plan {
  int ranks;
  int blocks_a_rank;
};

// Shares of 512 bytes of depth where up to 8 blocks can take them all; longer ones for deeper matrices.
Plan plan_depth(int64_t row_bytes) {
  const int blocks = static_cast<int>((row_bytes + 127) / 128);
  int ranks = 1;
  while (ranks < 8 && ranks * 4 < blocks) ranks *= 2;
  return {ranks, (blocks + ranks - 1) / ranks};
}

template <int kElementBytes, int kRows, int kWidth, bool kScaleBlocks>
void launch(CudaStream stream, const StreamLinearArgs& a, Params p) {
  const Plan plan = plan_depth(a.weight.row_bytes());
  p.blocks_a_rank = plan.blocks_a_rank;
  const int64_t tiles = (a.weight.rows + kRows - 1) / kRows;
  const size_t operands = size_t{128} * plan.blocks_a_rank * (kRows + kWidth);
  const size_t partials = sizeof(float) * kWidth * (kRows + 4);
  const LaunchShape shape{dim3(static_cast<unsigned>(tiles * plan.ranks)), dim3(kRows * 2),
                          (operands > partials ? operands : partials) + 1024, static_cast<unsigned>(plan.ranks)};
  const CUtensorMap map = byte_rows_map(a.weight.data, a.weight.rows, a.weight.row_bytes(), kRows);
  launch_overlapped(stream_linear_kernel<kElementBytes, kRows, kWidth, kScaleBlocks>, shape, stream, map, p);
}

template <int kElementBytes, bool kScaleBlocks>
void launch_width(CudaStream stream, const StreamLinearArgs& a, const Params& p) {
  if (a.num_rows <= 8) return launch<kElementBytes, 64, 8, kScaleBlocks>(stream, a, p);
  if (a.num_rows <= 16) return launch<kElementBytes, 64, 16, kScaleBlocks>(stream, a, p);
  if (a.num_rows <= 32) return launch<kElementBytes, 128, 32, kScaleBlocks>(stream, a, p);
  if (a.num_rows <= 64) return launch<kElementBytes, 128, 64, kScaleBlocks>(stream, a, p);
  launch<kElementBytes, 128, 128, kScaleBlocks>(stream, a, p);
}

}  // namespace

void stream_linear_cuda(CudaStream stream, const StreamLinearArgs& a) {
  VAYU_REQUIRE(stream_linear_fits(a), "shapes of the weight streamer");
  if (a.num_rows == 0) return;
  if (stream_linear_is_tall(a)) return stream_linear_tall_cuda(stream, a);
  Params p{.x = static_cast<const uint8_t*>(a.x.data),
           .x_scales = a.x.scales,
           .scales = a.weight.scales,
           .y = a.y,
           .y_float = a.y_float,
           .y_stride = a.y_stride ? a.y_stride : a.weight.rows,
           .x_row_bytes = a.weight.row_bytes(),
           .out_rows = static_cast<int32_t>(a.weight.rows),
           .num_rows = a.num_rows,
           .depth_blocks = static_cast<int32_t>((a.weight.row_bytes() + 127) / 128),
           .blocks_a_rank = 0,
           .x_group_scales = a.x.scale_group ? static_cast<int32_t>(a.x.cols / a.x.scale_group) : 0,
           .block_scaled = a.weight.scale == WeightScale::kBlock};
  if (!a.weight.is_f8()) return launch_width<2, false>(stream, a, p);
  if (p.block_scaled || p.x_group_scales) return launch_width<1, true>(stream, a, p);
  launch_width<1, false>(stream, a, p);
}

}  // namespace vayu::ops
