// What the two sides of the GEMM kernel share: parameters, the shared memory of a block, barriers across a cluster.
//
// Shared memory (227 KiB a block): a ring of stages, each 128 bytes of K: 256 rows of the weight (32 KiB) and max_width
// rows of x (up to 24 KiB), 128-byte swizzled. Behind it GemmFixed (2.7 KiB) and, for scales along K, 0.8 KiB a stage.
// 4 stages fit at any width (56 KiB at 192), 3 with scales along K at 192.
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/sm90.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/gemm/device_gemm_launch.h"

namespace vayu::ops {

constexpr int kProducerThreads = 128;
constexpr int kConsumerThreads = 256;
constexpr int kGemmThreads = kProducerThreads + kConsumerThreads;
constexpr int kInfoThreads = 96;  // warps 1 to 3 of the producers: each looks after rows of x t and t + 96 of a tile
static_assert(2 * kInfoThreads == kTileMaxWidth);
constexpr uint32_t kWeightBytes = kTileRows * 128;
constexpr uint64_t kEvictNormal = 0x1000000000000000;

// A tile, as the producers find it and the consumers need it. Two of them alternate, so that a block's producers may be
// a tile ahead.
struct TileInfo {
  int32_t row0;  // first weight row, within the group
  int32_t group;
  int32_t first;                             // of the row list
  int32_t count;                             // rows of x that exist
  int32_t width;                             // rows of x multiplied: count rounded up; 0: no more tiles
  alignas(16) float x_scale[kTileMaxWidth];  // 1 where scales go along K, or x is BF16
};

struct GemmFixed {
  uint64_t full[kGemmMaxStages];
  uint64_t empty[kGemmMaxStages];
  uint64_t info_full[2];
  uint64_t info_empty[2];
  TileInfo info[2];
  int32_t first_unit[kDeviceGemmMaxGroups + 1];
};
static_assert(sizeof(GemmFixed) <= kGemmFixedBytes);

// Scales that change along K.
enum class ScalesAlongK {
  kNone,
  kColumns,  // of x alone
  kBlocks,   // of the weight, and of x where shape.x_group_scales
};

// By how much sums are multiplied after a stage: those of a column (a row of x) at [column % 8 / 2][column / 8 * 2 +
// column % 2], so that a thread finds its own columns side by side, four to a 16-byte load; the stride of 52 puts the
// four quarters into different banks (52 q mod 32 = 0, 20, 8, 28, each 4 wide). Those of 64 weight rows of the tile at
// [row / 64]. Either only where such scales are.
constexpr int kFactorStride = 52;
struct StageFactors {
  alignas(16) float column[4][kFactorStride];
  alignas(8) float block[kTileRows / kScaleBlockRows];
};
static_assert(sizeof(StageFactors) == kGemmFactorBytes);

struct GemmShared {
  uint8_t* stages;
  uint32_t stage_bytes;
  GemmFixed* fixed;
  StageFactors* factors;

  __device__ GemmShared(uint8_t* memory, const GemmShape& shape)
      : stages(memory),
        stage_bytes(kWeightBytes + shape.max_width * 128),
        fixed(reinterpret_cast<GemmFixed*>(memory + shape.stages * stage_bytes)),
        factors(reinterpret_cast<StageFactors*>(memory + shape.stages * stage_bytes + kGemmFixedBytes)) {}
  __device__ uint8_t* weight(uint32_t stage) const { return stages + stage * stage_bytes; }
  __device__ uint8_t* x(uint32_t stage) const { return stages + stage * stage_bytes + kWeightBytes; }
};

struct RingPlace {
  uint32_t stage = 0;
  uint32_t phase = 0;
  __device__ void next(int32_t stages) {
    if (++stage == static_cast<uint32_t>(stages)) {
      stage = 0;
      phase ^= 1;
    }
  }
  __device__ uint32_t before(int32_t stages) const { return stage == 0 ? stages - 1 : stage - 1; }
};

// The same barrier of the other block of the cluster is arrived at. Relaxed: what a stage held was read by the tensor
// cores, which are done with it. (As a release at cluster scope this is a fence of the whole device, about 1 us each.)
__device__ __forceinline__ void barrier_arrive_at_other(uint64_t* barrier) {
  asm volatile(
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote_address(barrier, cluster_rank() ^ 1))
      : "memory");
}
// One box into the same place of both blocks of the cluster, completing on the same barrier of each.
__device__ __forceinline__ void copy_tile_to_both(const CUtensorMap* map, uint64_t* barrier, void* shared,
                                                  int32_t column, int32_t row, uint64_t cache_policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "h"(static_cast<uint16_t>(3)), "l"(cache_policy)
      : "memory");
}

__device__ __forceinline__ void consumers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(kConsumerThreads) : "memory"); }

__device__ __forceinline__ void warpgroup_meets(int32_t group) {
  asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements, transposed on the way: lane l gives the address of 16 bytes that receive
// column l % 8 of matrix l / 8.
__device__ __forceinline__ void store_transposed(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

}  // namespace vayu::ops
