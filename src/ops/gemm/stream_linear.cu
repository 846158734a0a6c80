// The form for every shape, and the choice among the forms (stream_linear_forms.h).
//
// Weights are the M side of wgmma (out^T = W x^T), so few rows of x need no padding to 64; bound by reading W.
//
// One block an SM. The work is a line of units, each 128 weight rows by 128 bytes of depth, tile after tile; every
// block takes an equal share of the line, so that all SMs read the same number of bytes whatever the matrix (a 4608 x
// 4096 matrix has 36 tiles, 8.7 units an SM). Where a tile is cut between blocks, each leaves its partial sums in
// global memory, and the last to arrive adds them, always in the order of the depth.
//   warp 8      a ring of 9 to 12 stages fed by the bulk copy engine, 150 to 220 KB under way; the first stages of
//               weights are asked for before the previous kernel has ended
//   warps 0-7   two warpgroups, 64 weight rows each
//
// Where the matrix is small, the sums through global memory (two fences and a counter between the last product and the
// output) are most of what is left once the weights are fetched early; there pairs of blocks are taken
// (stream_linear_pairs.cu).
#include "ops/cuda/launch.cuh"
#include "ops/cuda/num_sms.h"
#include "ops/cuda/require.h"
#include "ops/cuda/stream_ring.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/vector.cuh"
#include "ops/gemm/stream_linear_forms.h"

namespace vayu::ops {
namespace {

constexpr int kTileRows = 128;
constexpr int kThreads = 288;
constexpr int kConsumers = 256;
constexpr int kWeightStageBytes = kTileRows * 128;
constexpr int kMaxBlocks = 256;  // of a launch: SMs

// 17 KB a stage at 8 rows of x, 24 KB at 64.
template <int kWidth>
constexpr int kStagesOf = kWidth <= 16   ? 12
                          : kWidth <= 32 ? 11
                                         : 9;

template <int kWidth>
struct Shared {
  uint8_t weights[kStagesOf<kWidth>][kWeightStageBytes];
  uint8_t rows[kStagesOf<kWidth>][kWidth * 128];
  float row_scales[kWidth];  // of x; 1 where it has none, or one a group
  uint64_t full[kStagesOf<kWidth>], empty[kStagesOf<kWidth>];
  int32_t last;
};

struct Params {
  const float* x_scales;
  const float* scales;
  Bf16* y;
  float* y_float;
  float* partials;    // (2 * blocks, kWidth / 2, kConsumers): of a block's first and last tile
  int32_t* arrivals;  // (tiles)
  int32_t out_rows, num_rows, depth_blocks, units;
  int32_t x_group_scales;  // scales a row of x, or 0: one
  int32_t scale_blocks;    // of 64 weight rows, or 0: scales of rows, or none
};

__device__ __forceinline__ int first_unit(const Params& p, int block) {
  return static_cast<int>(int64_t{block} * p.units / gridDim.x);
}
__device__ __forceinline__ int block_of_unit(const Params& p, int unit) {
  return static_cast<int>(((int64_t{unit} + 1) * gridDim.x - 1) / p.units);
}

template <int kWidth>
__device__ void stream(const Params& p, Shared<kWidth>& s, const CUtensorMap* weights, const CUtensorMap* x) {
  constexpr int kStages = kStagesOf<kWidth>;
  const int begin = first_unit(p, blockIdx.x), end = first_unit(p, blockIdx.x + 1);
  const int ahead = min(kStages, end - begin);
  for (int i = 0; i < ahead; ++i) {
    const int unit = begin + i;
    barrier_arrive_expect(&s.full[i], kWeightStageBytes + kWidth * 128);
    copy_tile(weights, &s.full[i], s.weights[i], unit % p.depth_blocks * 128, unit / p.depth_blocks * kTileRows,
              kEvictFirst);
  }
  wait_for_inputs();
  for (int i = 0; i < ahead; ++i) {
    copy_tile(x, &s.full[i], s.rows[i], (begin + i) % p.depth_blocks * 128, 0, kEvictLast);
  }
  Ring ring;
  ring.phase = 1;  // the second time around
  for (int unit = begin + kStages; unit < end; ++unit) {
    const int column = unit % p.depth_blocks * 128;
    barrier_wait(&s.empty[ring.stage], ring.phase ^ 1);
    barrier_arrive_expect(&s.full[ring.stage], kWeightStageBytes + kWidth * 128);
    copy_tile(weights, &s.full[ring.stage], s.weights[ring.stage], column, unit / p.depth_blocks * kTileRows,
              kEvictFirst);
    copy_tile(x, &s.full[ring.stage], s.rows[ring.stage], column, 0, kEvictLast);
    ring.advance(kStages);
  }
}

// The scales of a warpgroup's 64 rows in the block's units, in order, 32 at hand: a lane has one. The first are loaded
// before the previous kernel has ended: from memory they take longer than a unit.
struct BlockScales {
  float mine = 1.0f;
  int used = 0;

  __device__ __forceinline__ void load(const Params& p, int first, int warpgroup, int lane) {
    const int unit = min(first + lane, p.units - 1);
    const int row = min(unit / p.depth_blocks * 2 + warpgroup, p.scale_blocks - 1);
    if (p.scale_blocks != 0) mine = p.scales[int64_t{row} * p.depth_blocks + unit % p.depth_blocks];
  }
  __device__ __forceinline__ float next(const Params& p, int unit, int warpgroup, int lane) {
    if (used == 32) {
      load(p, unit, warpgroup, lane);
      used = 0;
    }
    return __shfl_sync(0xffffffffu, mine, used++);
  }
};

template <int kElementBytes, int kWidth, bool kScaleBlocks>
__device__ __forceinline__ void multiply_unit(const Params& p, Shared<kWidth>& s, Ring& ring, BlockScales& scales,
                                              int tile, int block, bool fresh, int warpgroup, int lane,
                                              float (&sum)[kWidth / 2]) {
  float part[kScaleBlocks ? kWidth / 2 : 1];
  float scale[kScaleBlocks ? kWidth / 4 : 1];
  if constexpr (kScaleBlocks) {  // asked for before the stage is waited for
    const float weight = scales.next(p, tile * p.depth_blocks + block, warpgroup, lane);
#pragma unroll
    for (int i = 0; i < kWidth / 4; ++i) {
      const int row = 8 * (i / 2) + 2 * (lane % 4) + i % 2;
      scale[i] = weight;
      if (p.x_group_scales && row < p.num_rows) scale[i] *= __ldcg(&p.x_scales[row * p.x_group_scales + block]);
    }
  }
  barrier_wait(&s.full[ring.stage], ring.phase);
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
      multiply<kElementBytes, kWidth>(sum, a + k * kDescriptorStep, b + k * kDescriptorStep, !fresh || k != 0);
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
  if constexpr (kScaleBlocks) {
    wgmma_pin(part);
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) {
      const float product = part[i] * scale[i / 4 * 2 + i % 2];
      sum[i] = fresh ? product : sum[i] + product;
    }
  } else {
    wgmma_pin(sum);
  }
  if (lane == 0) barrier_arrive(&s.empty[ring.stage]);
  ring.advance(kStagesOf<kWidth>);
}

__device__ __forceinline__ void consumer_barrier() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// This block's sums of a tile that others share; true for the block that has all of them afterwards.
template <int kWidth>
__device__ bool gather_partials(const Params& p, Shared<kWidth>& s, int tile, float (&sum)[kWidth / 2]) {
  constexpr int kFloats = kWidth / 2 * kConsumers;
  const int tile_begin = tile * p.depth_blocks;
  const int first = block_of_unit(p, tile_begin), last = block_of_unit(p, tile_begin + p.depth_blocks - 1);
  const auto place = [&](int block) {
    return p.partials + int64_t{2 * block + (first_unit(p, block) < tile_begin)} * kFloats + threadIdx.x;
  };
  float* mine = place(blockIdx.x);
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) __stcg(&mine[i * kConsumers], sum[i]);
  __threadfence();
  consumer_barrier();
  if (threadIdx.x == 0) s.last = atomicAdd(&p.arrivals[tile], 1) == last - first;
  consumer_barrier();
  if (!s.last) return false;
  __threadfence();
  if (threadIdx.x == 0) p.arrivals[tile] = 0;
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) sum[i] = 0;
  for (int block = first; block <= last; ++block) {
    const float* theirs = place(block);
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) sum[i] += __ldcg(&theirs[i * kConsumers]);
  }
  return true;
}

template <int kWidth>
__device__ __forceinline__ void store(const Params& p, const Shared<kWidth>& s, int tile, int warpgroup, int warp,
                                      int lane, const float (&sum)[kWidth / 2]) {
  const int out = tile * kTileRows + warpgroup * 64 + 16 * warp + lane / 4;
  float scale[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool row_scaled = p.scales && p.scale_blocks == 0 && out + 8 * half < p.out_rows;
    scale[half] = row_scaled ? p.scales[out + 8 * half] : 1.0f;
  }
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) {
    const int row = 8 * (i / 4) + 2 * (lane % 4) + i % 2, at = out + i % 4 / 2 * 8;
    if (row >= p.num_rows || at >= p.out_rows) continue;
    const float value = sum[i] * scale[i % 4 / 2] * s.row_scales[row];
    if (p.y) {
      p.y[int64_t{row} * p.out_rows + at] = to_bf16(value);
    } else {
      p.y_float[int64_t{row} * p.out_rows + at] = value;
    }
  }
}

template <int kElementBytes, int kWidth, bool kScaleBlocks>
__device__ void consume(const Params& p, Shared<kWidth>& s, BlockScales scales) {
  const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int end = first_unit(p, blockIdx.x + 1);
  Ring ring;
  for (int unit = first_unit(p, blockIdx.x); unit < end;) {
    const int tile = unit / p.depth_blocks;
    const int tile_end = min(end, (tile + 1) * p.depth_blocks);
    const bool whole = unit == tile * p.depth_blocks && tile_end == (tile + 1) * p.depth_blocks;
    float sum[kWidth / 2];
    for (bool fresh = true; unit < tile_end; ++unit, fresh = false) {
      multiply_unit<kElementBytes, kWidth, kScaleBlocks>(p, s, ring, scales, tile, unit - tile * p.depth_blocks, fresh,
                                                         warpgroup, lane, sum);
    }
    if (whole || gather_partials<kWidth>(p, s, tile, sum)) store<kWidth>(p, s, tile, warpgroup, warp, lane, sum);
  }
}

template <int kElementBytes, int kWidth, bool kScaleBlocks>
__global__ void __launch_bounds__(kThreads, 1)
    stream_linear_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap x,
                         const Params p) {
  extern __shared__ uint8_t raw[];
  auto& s = *reinterpret_cast<Shared<kWidth>*>((reinterpret_cast<uintptr_t>(raw) + 1023) / 1024 * 1024);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStagesOf<kWidth>; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], 8);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    if (threadIdx.x == kConsumers) {
      stream<kWidth>(p, s, &weights, &x);
    } else {
      wait_for_inputs();
    }
    return;
  }
  BlockScales scales;
  if constexpr (kScaleBlocks) scales.load(p, first_unit(p, blockIdx.x), threadIdx.x / 128, threadIdx.x % 32);
  wait_for_inputs();
  let_next_start();
  // Read once: a load from the L2 cache for each output of a tile, between its stores, took 10 us a tile of 64 rows.
  if (threadIdx.x < kWidth) {
    const int row = static_cast<int>(threadIdx.x);
    const bool scaled = p.x_scales && !p.x_group_scales && row < p.num_rows;
    s.row_scales[row] = scaled ? __ldcg(&p.x_scales[row]) : 1.0f;
  }
  consumer_barrier();
  consume<kElementBytes, kWidth, kScaleBlocks>(p, s, scales);
}

template <int kElementBytes, int kWidth, bool kScaleBlocks>
void launch(CudaStream stream, const StreamLinearArgs& a, const Params& p) {
  const int most = num_sms() < kMaxBlocks ? num_sms() : kMaxBlocks;
  const int blocks = p.units < most ? p.units : most;
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(kThreads), sizeof(Shared<kWidth>) + 1024, 1};
  const CUtensorMap weights = byte_rows_map(a.weight.data, a.weight.rows, a.weight.row_bytes(), kTileRows);
  const CUtensorMap x = byte_rows_map(a.x.data, a.num_rows, a.weight.row_bytes(), kWidth);
  launch_overlapped(stream_linear_kernel<kElementBytes, kWidth, kScaleBlocks>, shape, stream, weights, x, p);
}

template <int kElementBytes, bool kScaleBlocks>
void launch_width(CudaStream stream, const StreamLinearArgs& a, const Params& p) {
  if (a.num_rows <= 8) return launch<kElementBytes, 8, kScaleBlocks>(stream, a, p);
  if (a.num_rows <= 16) return launch<kElementBytes, 16, kScaleBlocks>(stream, a, p);
  if (a.num_rows <= 32) return launch<kElementBytes, 32, kScaleBlocks>(stream, a, p);
  launch<kElementBytes, 64, kScaleBlocks>(stream, a, p);
}

void line_linear(CudaStream stream, const StreamLinearArgs& a) {
  const auto depth_blocks = static_cast<int32_t>((a.weight.row_bytes() + 127) / 128);
  auto* arrivals = static_cast<int32_t*>(a.workspace);
  const Params p{.x_scales = a.x.scales,
                 .scales = a.weight.scales,
                 .y = a.y,
                 .y_float = a.y_float,
                 .partials = reinterpret_cast<float*>(arrivals + kStreamLinearMaxTiles),
                 .arrivals = arrivals,
                 .out_rows = static_cast<int32_t>(a.weight.rows),
                 .num_rows = a.num_rows,
                 .depth_blocks = depth_blocks,
                 .units = static_cast<int32_t>((a.weight.rows + kTileRows - 1) / kTileRows) * depth_blocks,
                 .x_group_scales = a.x.scale_group ? static_cast<int32_t>(a.x.cols / a.x.scale_group) : 0,
                 .scale_blocks = a.weight.scale == WeightScale::kBlock
                                     ? static_cast<int32_t>((a.weight.rows + kScaleBlockRows - 1) / kScaleBlockRows)
                                     : 0};
  if (!a.weight.is_f8()) return launch_width<2, false>(stream, a, p);
  if (p.scale_blocks != 0 || p.x_group_scales) return launch_width<1, true>(stream, a, p);
  launch_width<1, false>(stream, a, p);
}

}  // namespace

int64_t stream_linear_workspace_bytes() {
  return kStreamLinearMaxTiles * int64_t{sizeof(int32_t)} +
         int64_t{2} * kMaxBlocks * kStreamLinearMaxRows / 2 * kConsumers * int64_t{sizeof(float)};
}

void stream_linear_cuda(CudaStream stream, const StreamLinearArgs& a) {
  VAYU_REQUIRE(stream_linear_fits(a), "shapes of the weight streamer");
  if (a.num_rows == 0) return;
  const bool pairs = a.form == StreamLinearForm::kAuto ? pair_linear_fills(a) : a.form == StreamLinearForm::kPairs;
  if (pairs) return pair_linear_cuda(stream, a);
  line_linear(stream, a);
}

}  // namespace vayu::ops
