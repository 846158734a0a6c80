// A persistent block an SM. A tile is 128 weight rows over the whole depth; a ring of stages, each 128 bytes of depth,
// keeps 130 to 190 KB of loads in flight while two warpgroups multiply (weights are the M side, see stream_linear.cu).
//   warp 8  weights by the bulk copy engine; its first stages are under way before the previous kernel has ended
//   warp 9  the rows of x beside them, out of the L2 cache
// Blocks take every gridDim-th tile: with 16 waves of tiles (a head of 262,144 rows) the uneven end costs 3 %.
#include "ops/cuda/launch.cuh"
#include "ops/cuda/stream_ring.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/vector.cuh"
#include "ops/gemm/stream_linear_tall.h"

namespace vayu::ops {
namespace {

constexpr int kTileRows = 128;
constexpr int kThreads = 320;
constexpr int kWeightStageBytes = kTileRows * 128;

// 17 KB a stage at 8 rows of x, 32 KB at 128.
template <int kWidth>
constexpr int kStagesOf = kWidth <= 8    ? 12
                          : kWidth <= 32 ? 10
                          : kWidth <= 64 ? 8
                                         : 6;

template <int kWidth>
struct Shared {
  uint8_t weights[kStagesOf<kWidth>][kWeightStageBytes];
  uint8_t rows[kStagesOf<kWidth>][kWidth * 128];
  float row_scales[kStagesOf<kWidth>][kWidth];  // of one group of x
  uint64_t full[kStagesOf<kWidth>], empty[kStagesOf<kWidth>];
};

struct Params {
  const uint8_t* x;
  const float* x_scales;
  const float* scales;
  Bf16* y;
  float* y_float;
  int64_t y_stride;
  int64_t x_row_bytes;
  int32_t out_rows, num_rows, depth_blocks;
  int32_t x_group_scales;  // scales a row of x, or 0: one
  int32_t block_scaled;
};

template <int kWidth>
__device__ void stream_weights(const Params& p, Shared<kWidth>& s, const CUtensorMap* map) {
  constexpr int kStages = kStagesOf<kWidth>;
  Ring ring;
  for (int row = static_cast<int>(blockIdx.x) * kTileRows; row < p.out_rows; row += gridDim.x * kTileRows) {
    for (int block = 0; block < p.depth_blocks; ++block) {
      barrier_wait(&s.empty[ring.stage], ring.phase ^ 1);
      barrier_arrive_expect(&s.full[ring.stage], kWeightStageBytes);
      copy_tile(map, &s.full[ring.stage], s.weights[ring.stage], block * 128, row, kEvictFirst);
      ring.advance(kStages);
    }
  }
}

template <int kWidth>
__device__ void load_rows(const Params& p, Shared<kWidth>& s, int lane) {
  constexpr int kStages = kStagesOf<kWidth>;
  Ring ring;
  for (int tile = static_cast<int>(blockIdx.x) * kTileRows; tile < p.out_rows; tile += gridDim.x * kTileRows) {
    for (int block = 0; block < p.depth_blocks; ++block) {
      barrier_wait(&s.empty[ring.stage], ring.phase ^ 1);
      const uint32_t rows = shared_address(s.rows[ring.stage]);
      const int64_t column = int64_t{block} * 128 + lane % 8 * 16;
#pragma unroll 4
      for (int r = lane / 8; r < kWidth; r += 4) {
        const bool there = r < p.num_rows && column < p.x_row_bytes;
        copy_async16(rows + swizzled_offset(r, lane % 8), there ? p.x + r * p.x_row_bytes + column : p.x,
                     there ? 16 : 0);
      }
      if (p.x_group_scales) {
        for (int r = lane; r < p.num_rows; r += 32) {
          s.row_scales[ring.stage][r] = __ldcg(&p.x_scales[r * p.x_group_scales + block]);
        }
        __syncwarp();
      }
      barrier_arrive_on_copies(&s.full[ring.stage]);
      if (lane == 0) barrier_arrive(&s.full[ring.stage]);
      ring.advance(kStages);
    }
  }
}

template <int kElementBytes, int kWidth, bool kScaleBlocks>
__device__ void multiply_tile(const Params& p, Shared<kWidth>& s, Ring& ring, int tile, int warpgroup, int lane,
                              float (&sum)[kWidth / 2]) {
  constexpr int kStages = kStagesOf<kWidth>;
  float part[kScaleBlocks ? kWidth / 2 : 1];
  if constexpr (kScaleBlocks) {
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) sum[i] = 0;
  }
  for (int block = 0; block < p.depth_blocks; ++block) {
    barrier_wait(&s.full[ring.stage], ring.phase);
    fence_shared_for_async();
    const uint64_t a = swizzled_descriptor(s.weights[ring.stage] + warpgroup * 64 * 128);
    const uint64_t b = swizzled_descriptor(s.rows[ring.stage]);
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
        multiply<kElementBytes, kWidth>(sum, a + k * kDescriptorStep, b + k * kDescriptorStep, block + k != 0);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    if constexpr (kScaleBlocks) {
      wgmma_pin(part);
      const float weight = p.block_scaled ? p.scales[tile / 128 * p.depth_blocks + block] : 1.0f;
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) {
        const int row = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
        const float scale = p.x_group_scales && row < p.num_rows ? s.row_scales[ring.stage][row] : 1.0f;
        sum[i] += part[i] * (scale * weight);
      }
      __syncwarp();
    } else {
      wgmma_pin(sum);
    }
    if (lane == 0) barrier_arrive(&s.empty[ring.stage]);
    ring.advance(kStages);
  }
}

template <int kElementBytes, int kWidth, bool kScaleBlocks>
__device__ void consume(const Params& p, Shared<kWidth>& s) {
  const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  Ring ring;
  for (int tile = static_cast<int>(blockIdx.x) * kTileRows; tile < p.out_rows; tile += gridDim.x * kTileRows) {
    float sum[kWidth / 2];
    multiply_tile<kElementBytes, kWidth, kScaleBlocks>(p, s, ring, tile, warpgroup, lane, sum);
    const int out = tile + warpgroup * 64 + 16 * warp + lane / 4;
    float scale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool row_scaled = p.scales && !p.block_scaled && out + 8 * half < p.out_rows;
      scale[half] = row_scaled ? p.scales[out + 8 * half] : 1.0f;
    }
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) {
      const int row = 8 * (i / 4) + 2 * (lane % 4) + i % 2, at = out + i % 4 / 2 * 8;
      if (row >= p.num_rows || at >= p.out_rows) continue;
      const float x_scale = p.x_scales && !p.x_group_scales ? __ldcg(&p.x_scales[row]) : 1.0f;
      const float value = sum[i] * scale[i % 4 / 2] * x_scale;
      if (p.y) {
        p.y[row * p.y_stride + at] = to_bf16(value);
      } else {
        p.y_float[row * p.y_stride + at] = value;
      }
    }
  }
}

template <int kElementBytes, int kWidth, bool kScaleBlocks>
__global__ void __launch_bounds__(kThreads, 1)
    stream_linear_tall_kernel(const __grid_constant__ CUtensorMap weights, const Params p) {
  extern __shared__ uint8_t raw[];
  auto& s = *reinterpret_cast<Shared<kWidth>*>((reinterpret_cast<uintptr_t>(raw) + 1023) / 1024 * 1024);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStagesOf<kWidth>; ++i) {
      barrier_init(&s.full[i], 1 + 32 + 1);  // the weights' thread, each lane's copies of x, and its scales
      barrier_init(&s.empty[i], 8);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (warp == 8) {
    if (threadIdx.x % 32 == 0) stream_weights<kWidth>(p, s, &weights);
    wait_for_inputs();
    return;
  }
  wait_for_inputs();
  let_next_start();
  if (warp == 9) {
    load_rows<kWidth>(p, s, static_cast<int>(threadIdx.x) % 32);
  } else {
    consume<kElementBytes, kWidth, kScaleBlocks>(p, s);
  }
}

int num_sms() {
  static const int count = [] {
    int value = 0;
    cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0);
    return value;
  }();
  return count;
}

template <int kElementBytes, int kWidth, bool kScaleBlocks>
void launch(CudaStream stream, const StreamLinearArgs& a, const Params& p) {
  const int64_t tiles = (a.weight.rows + kTileRows - 1) / kTileRows;
  const LaunchShape shape{dim3(static_cast<unsigned>(tiles < num_sms() ? tiles : num_sms())), dim3(kThreads),
                          sizeof(Shared<kWidth>) + 1024, 1};
  const CUtensorMap map = byte_rows_map(a.weight.data, a.weight.rows, a.weight.row_bytes(), kTileRows);
  launch_overlapped(stream_linear_tall_kernel<kElementBytes, kWidth, kScaleBlocks>, shape, stream, map, p);
}

template <int kElementBytes, bool kScaleBlocks>
void launch_width(CudaStream stream, const StreamLinearArgs& a, const Params& p) {
  if (a.num_rows <= 8) return launch<kElementBytes, 8, kScaleBlocks>(stream, a, p);
  if (a.num_rows <= 32) return launch<kElementBytes, 32, kScaleBlocks>(stream, a, p);
  if (a.num_rows <= 64) return launch<kElementBytes, 64, kScaleBlocks>(stream, a, p);
  launch<kElementBytes, 128, kScaleBlocks>(stream, a, p);
}

}  // namespace

bool stream_linear_is_tall(const StreamLinearArgs& a) {
  return a.weight.rows > int64_t{kTileRows} * (num_sms() * 3 / 4);
}

void stream_linear_tall_cuda(CudaStream stream, const StreamLinearArgs& a) {
  const Params p{.x = static_cast<const uint8_t*>(a.x.data),
                 .x_scales = a.x.scales,
                 .scales = a.weight.scales,
                 .y = a.y,
                 .y_float = a.y_float,
                 .y_stride = a.y_stride ? a.y_stride : a.weight.rows,
                 .x_row_bytes = a.weight.row_bytes(),
                 .out_rows = static_cast<int32_t>(a.weight.rows),
                 .num_rows = a.num_rows,
                 .depth_blocks = static_cast<int32_t>((a.weight.row_bytes() + 127) / 128),
                 .x_group_scales = a.x.scale_group ? static_cast<int32_t>(a.x.cols / a.x.scale_group) : 0,
                 .block_scaled = a.weight.scale == WeightScale::kBlock};
  if (!a.weight.is_f8()) return launch_width<2, false>(stream, a, p);
  if (p.block_scaled || p.x_group_scales) return launch_width<1, true>(stream, a, p);
  launch_width<1, false>(stream, a, p);
}

}  // namespace vayu::ops
