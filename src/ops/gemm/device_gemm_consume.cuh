// The consumers of the GEMM kernel: two warpgroups, each 128 rows of the weight (two blocks of 64) by up to 192 rows of
// x: 2 x 96 accumulators a thread, of 224 registers. Thread t of a warpgroup holds in acc[b][4 j + 2 h + c] weight row
// 64 b + 16 (t / 32) + (t % 32) / 4 + 8 h of its 128, and row 8 j + 2 (t % 4) + c of x (the columns of the product).
#pragma once

#include "ops/cuda/wgmma.cuh"
#include "ops/gemm/device_gemm_shared.cuh"

namespace vayu::ops {

constexpr int kMaxSums = kTileMaxWidth / 2;  // of a thread and block of 64 weight rows
using Sums = float[2][kMaxSums];

struct F8Products {
  template <int N>
  using Instruction = WgmmaF8<N>;
};
struct Bf16Products {
  template <int N>
  using Instruction = WgmmaBf16<N>;
};

// What a consumer warp knows of itself.
struct Consumer {
  int32_t group = threadIdx.x / 128 - 1;  // warpgroup, 0 or 1
  int32_t warp = threadIdx.x / 32 % 4;    // in the warpgroup
  int32_t lane = threadIdx.x % 32;

  __device__ int32_t first_row() const { return 128 * group + 16 * warp + lane / 4; }  // of acc[0][4 j] in the tile
  // The first column (row of x) that this thread writes: of the tile behind SwiGLU, else of the warpgroup's half.
  __device__ int32_t first_column(const GemmShape& shape) const {
    return static_cast<int32_t>(threadIdx.x) - kProducerThreads - (shape.swiglu ? 0 : 128 * group);
  }
};

// The stage may be filled again, here and where the other block of the cluster multicasts into it.
__device__ __forceinline__ void release_stage(const GemmShape& shape, const GemmShared& shared, uint32_t stage) {
  if (threadIdx.x % 32 != 0) return;
  uint64_t* barrier = &shared.fixed->empty[stage];
  barrier_arrive(barrier);
  if (shape.cluster == 2) barrier_arrive_at_other(barrier);
}

__device__ __forceinline__ void await_stage(const GemmShape& shape, const GemmShared& shared, const RingPlace& place) {
  barrier_wait(&shared.fixed->full[place.stage], place.phase);
  if (shape.x_rows != nullptr) fence_shared_for_async();  // gathered rows came as ordinary stores
}

// 64 x N products over one stage: 4 steps of 32 bytes.
template <class Products, int N>
__device__ __forceinline__ void add_products(float (&sums)[N / 2], uint64_t a, uint64_t b, bool accumulate) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    Products::template Instruction<N>::run(sums, a + k * kDescriptorStep, b + k * kDescriptorStep,
                                           k != 0 || accumulate);
  }
}
constexpr uint64_t kBlockStep = 64 * 128 >> 4;  // descriptors: the next 64 rows

// Where a warpgroup finds its operands of a stage.
struct Operands {
  uint64_t weight;
  uint64_t x;

  __device__ Operands(const GemmShared& shared, const Consumer& me, uint32_t stage)
      : weight(swizzled_descriptor(shared.weight(stage) + me.group * 128 * 128)),
        x(swizzled_descriptor(shared.x(stage))) {}
};

// The products of a tile, one stage always in flight. The last two stages are not released: the epilogue works there.
template <class Products, int N>
__device__ __forceinline__ void multiply(const GemmShape& shape, const GemmShared& shared, const Consumer& me,
                                         RingPlace& place, Sums& sums) {
  auto& low = reinterpret_cast<float(&)[N / 2]>(sums[0]);
  auto& high = reinterpret_cast<float(&)[N / 2]>(sums[1]);
  auto add_stage = [&](bool accumulate) {
    await_stage(shape, shared, place);
    const Operands operands(shared, me, place.stage);
    wgmma_fence();
    add_products<Products, N>(low, operands.weight, operands.x, accumulate);
    add_products<Products, N>(high, operands.weight + kBlockStep, operands.x, accumulate);
    wgmma_commit();
  };
  add_stage(false);
#pragma unroll 1
  for (int32_t step = 2; step < shape.steps; ++step) {
    const uint32_t previous = place.stage;
    place.next(shape.stages);
    add_stage(true);
    wgmma_wait<1>();
    release_stage(shape, shared, previous);
  }
  place.next(shape.stages);
  add_stage(true);
  wgmma_wait<0>();
  wgmma_pin(low);
  wgmma_pin(high);
}

// Columns times their factors of a stage. One load of four factors serves both blocks: the loads cost shared memory as
// much as the products' operands do.
template <int N>
__device__ __forceinline__ void apply_columns(float (&low)[N / 2], float (&high)[N / 2], const StageFactors& factors,
                                              const Consumer& me) {
  const float* mine = factors.column[me.lane % 4];
#pragma unroll
  for (int j = 0; j < N / 8; j += 2) {
    const float4 f = *reinterpret_cast<const float4*>(mine + 2 * j);
    const float factor[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      low[4 * j + i] *= factor[i / 4 * 2 + i % 2];
      high[4 * j + i] *= factor[i / 4 * 2 + i % 2];
    }
  }
}

template <int N>
__device__ __forceinline__ void apply_blocks(float (&low)[N / 2], float (&high)[N / 2], const StageFactors& factors,
                                             const Consumer& me) {
  const float2 f = *reinterpret_cast<const float2*>(&factors.block[2 * me.group]);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    low[i] *= f.x;
    high[i] *= f.y;
  }
}

// The factors of blocks and columns one after another: multiplied with each other first they take registers, and 3 KB
// were spilled.
template <ScalesAlongK kScales, int N>
__device__ __forceinline__ void apply_factors(const GemmShape& shape, float (&low)[N / 2], float (&high)[N / 2],
                                              const StageFactors& factors, const Consumer& me) {
  if constexpr (kScales == ScalesAlongK::kBlocks) {
    apply_blocks<N>(low, high, factors, me);
    if (!shape.x_group_scales) return;
  }
  apply_columns<N>(low, high, factors, me);
}

// The same with factors behind each stage (ScaleChain). While one warpgroup applies them, the other's products run.
template <class Products, ScalesAlongK kScales, int N>
__device__ __forceinline__ void multiply_scaled(const GemmShape& shape, const GemmShared& shared, const Consumer& me,
                                                RingPlace& place, Sums& sums) {
  auto& low = reinterpret_cast<float(&)[N / 2]>(sums[0]);
  auto& high = reinterpret_cast<float(&)[N / 2]>(sums[1]);
#pragma unroll 1
  for (int32_t step = 0;; ++step) {
    await_stage(shape, shared, place);
    const Operands operands(shared, me, place.stage);
    wgmma_fence();
    add_products<Products, N>(low, operands.weight, operands.x, step != 0);
    add_products<Products, N>(high, operands.weight + kBlockStep, operands.x, step != 0);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(low);
    wgmma_pin(high);
    apply_factors<kScales, N>(shape, low, high, shared.factors[place.stage], me);
    wgmma_pin(low);
    wgmma_pin(high);
    if (step + 1 == shape.steps) break;
    if (step + 2 < shape.steps) {
      __syncwarp();
      release_stage(shape, shared, place.stage);
    }
    place.next(shape.stages);
  }
}

template <class Products, ScalesAlongK kScales, int N>
__device__ __forceinline__ void multiply_tile(const GemmShape& shape, const GemmShared& shared, const Consumer& me,
                                              RingPlace& place, Sums& sums) {
  if constexpr (kScales != ScalesAlongK::kNone) {
    multiply_scaled<Products, kScales, N>(shape, shared, me, place, sums);
  } else {
    multiply<Products, N>(shape, shared, me, place, sums);
  }
}

template <class Products, ScalesAlongK kScales>
__device__ __forceinline__ void multiply_any(int32_t width, const GemmShape& shape, const GemmShared& shared,
                                             const Consumer& me, RingPlace& place, Sums& sums) {
  switch (width) {
#define VAYU_WIDTH(N)                                                    \
  case N:                                                                \
    multiply_tile<Products, kScales, N>(shape, shared, me, place, sums); \
    break;
    VAYU_WIDTH(16)
    VAYU_WIDTH(32)
    VAYU_WIDTH(48)
    VAYU_WIDTH(64)
    VAYU_WIDTH(80)
    VAYU_WIDTH(96)
    VAYU_WIDTH(112)
    VAYU_WIDTH(128)
    VAYU_WIDTH(144)
    VAYU_WIDTH(160)
    VAYU_WIDTH(176)
    VAYU_WIDTH(192)
#undef VAYU_WIDTH
  }
}

}  // namespace vayu::ops
