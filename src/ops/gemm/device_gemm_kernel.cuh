// Many rows times a matrix, on the tensor cores of Hopper: weights on the M side (see device_gemm_tiles.h), one
// persistent block of three warpgroups an SM. One warpgroup keeps a ring of stages full, two multiply.
//
// Why 256 x 192: a stage of 256 + 176 rows of 128 bytes feeds 256 x 176 x 128 multiply-adds, 1,408 cycles of the FP8
// tensor cores: 39 bytes a cycle and SM from L2, which gives about 25 to 38; a pair of blocks that share their rows of
// x brings it to 31. Each m64n176k32 reads 7.5 KiB of shared memory in its 88 cycles, 85 of the 128 bytes a cycle;
// smaller tiles would be bound by either. Registers: 128 x 56 + 256 x 224 = 64,512 = 384 x 168, what the block is
// launched with.
#pragma once

#include "ops/gemm/device_gemm_produce.cuh"
#include "ops/gemm/device_gemm_store.cuh"

namespace vayu::ops {

constexpr int kProducerRegisters = 56;
constexpr int kConsumerRegisters = 224;

template <bool kScaled>
__device__ __forceinline__ void init_barriers(const GemmShape& shape, GemmFixed& fixed) {
  const bool gather = shape.x_rows != nullptr;
  for (int32_t i = 0; i < shape.stages; ++i) {
    barrier_init(&fixed.full[i], 1 + (gather ? kProducerThreads : 0) + (kScaled ? kInfoThreads : 0));
    barrier_init(&fixed.empty[i], kConsumerThreads / 32 * shape.cluster);
  }
  for (int i = 0; i < 2; ++i) {
    barrier_init(&fixed.info_full[i], kInfoThreads);
    barrier_init(&fixed.info_empty[i], kConsumerThreads / 32);
  }
  barrier_init_fence();
}

template <class Products, bool kScaled>
__device__ __forceinline__ void consume(const GemmShape& shape, const GemmShared& shared) {
  const Consumer me;
  RingPlace place;
  Sums sums;
#pragma unroll
  for (int i = 0; i < kMaxSums; ++i) sums[0][i] = sums[1][i] = 0;
  for (uint32_t turn = 0;; ++turn) {
    TileInfo& tile = shared.fixed->info[turn % 2];
    barrier_wait(&shared.fixed->info_full[turn % 2], turn / 2 % 2);
    const int32_t width = __shfl_sync(0xffffffffu, tile.width, 0);
    if (width == 0) break;
    const RowScales scales = load_row_scales(shape, tile, me);
    multiply_any<Products, kScaled>(width, shape, shared, me, place, sums);
    store_tile(shape, shared, tile, scales, me, sums);
    __syncwarp();
    if (me.lane == 0) barrier_arrive(&shared.fixed->info_empty[turn % 2]);
  }
}

template <class Products, bool kScaled>
__global__ void __launch_bounds__(kGemmThreads, 1)
    gemm_kernel(const __grid_constant__ GemmMaps maps, const __grid_constant__ GemmShape shape) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const GemmShared shared(memory, shape);
  if (threadIdx.x == 0) init_barriers<kScaled>(shape, *shared.fixed);
  wait_for_inputs();
  let_next_start();
  list_units(shape, *shared.fixed);
  __syncthreads();
  cluster_arrive();  // no block sends to another before that one's barriers are there
  cluster_wait();
  if (threadIdx.x < kProducerThreads) {
    give_registers<kProducerRegisters>();
    produce<kScaled>(maps, shape, shared);
  } else {
    take_registers<kConsumerRegisters>();
    consume<Products, kScaled>(shape, shared);
  }
  __syncwarp();
  cluster_arrive();  // no block leaves while another may still send to it
  cluster_wait();
}

template <class Products, bool kScaled>
void launch_gemm(CudaStream stream, const GemmLaunch& launch) {
  const LaunchShape shape{.grid = dim3(launch.grid),
                          .block = dim3(kGemmThreads),
                          .shared_bytes = static_cast<size_t>(launch.shared_bytes),
                          .cluster = static_cast<unsigned>(launch.shape.cluster)};
  launch_overlapped(gemm_kernel<Products, kScaled>, shape, stream, launch.maps, launch.shape);
}

}  // namespace vayu::ops
