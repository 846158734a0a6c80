// Many rows times a matrix, on the tensor cores of Hopper: weights on the M side (see device_gemm_tiles.h), one
// persistent block of three warpgroups an SM. One warpgroup keeps a ring of stages full, two multiply.
//
// Why 256 x 192: a stage of 256 + w rows of 128 bytes feeds 256 w 128 multiply-adds, 8 w cycles of the FP8 tensor
// cores. Each m64n{w}k32 reads 2 KiB + 32 w bytes of shared memory and the stage is written once: 512 + 5 w cycles of
// 128 bytes. The two meet at w = 171; narrower tiles are bound by shared memory (measured: time grows with w + 103).
// From L2 a stage takes 32 KiB + 128 w bytes: 39 bytes a cycle and SM at w = 176, of the 25 to 38 it gives; a pair of
// blocks that share their rows of x brings it to 31. Registers: 128 x 56 + 256 x 224 = 64,512 = 384 x 168, what the
// block is launched with.
#pragma once

#include "ops/gemm/device_gemm_produce.cuh"
#include "ops/gemm/device_gemm_store.cuh"

namespace vayu::ops {

constexpr int kProducerRegisters = 56;
constexpr int kConsumerRegisters = 224;

template <ScalesAlongK kScales>
__device__ __forceinline__ void init_barriers(const GemmShape& shape, GemmFixed& fixed) {
  const bool gather = shape.x_rows != nullptr;
  for (int32_t i = 0; i < shape.stages; ++i) {
    barrier_init(&fixed.full[i],
                 1 + (gather ? kProducerThreads : 0) + (kScales != ScalesAlongK::kNone ? kInfoThreads : 0));
    barrier_init(&fixed.empty[i], kConsumerThreads / 32 * shape.cluster);
  }
  for (int i = 0; i < 2; ++i) {
    barrier_init(&fixed.info_full[i], kInfoThreads);
    barrier_init(&fixed.info_empty[i], kConsumerThreads / 32);
  }
  barrier_init_fence();
}

__device__ __forceinline__ void meet_cluster(const GemmShape& shape) {
  if (shape.cluster == 1) return;
  cluster_arrive();
  cluster_wait();
}

template <class Products, ScalesAlongK kScales>
__device__ __forceinline__ void consume(const GemmShape& shape, const GemmShared& shared) {
  const Consumer me;
  RingPlace place;
  for (uint32_t turn = 0;; ++turn) {
    TileInfo& tile = shared.fixed->info[turn % 2];
    barrier_wait(&shared.fixed->info_full[turn % 2], turn / 2 % 2);
    const int32_t width = __shfl_sync(0xffffffffu, tile.width, 0);
    if (width == 0) break;
    Sums sums;  // born here: kept from tile to tile they would leave the epilogue no registers
#pragma unroll
    for (int i = 0; i < kMaxSums; ++i) asm volatile("" : "=f"(sums[0][i]), "=f"(sums[1][i]));
    const RowScales scales = load_row_scales(shape, tile, me);
    multiply_any<Products, kScales>(width, shape, shared, me, place, sums);
    store_tile(shape, shared, tile, scales, me, place, sums);
    fence_shared_for_async();  // the copy engine writes next where the stores worked
    __syncwarp();
    release_stage(shape, shared, place.before(shape.stages));
    release_stage(shape, shared, place.stage);
    place.next(shape.stages);
    if (me.lane == 0) barrier_arrive(&shared.fixed->info_empty[turn % 2]);
  }
}

template <class Products, ScalesAlongK kScales>
__global__ void __launch_bounds__(kGemmThreads, 1)
    gemm_kernel(const __grid_constant__ GemmMaps maps, const __grid_constant__ GemmShape shape) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const GemmShared shared(memory, shape);
  if (threadIdx.x == 0) init_barriers<kScales>(shape, *shared.fixed);
  wait_for_inputs();
  let_next_start();
  list_units(shape, *shared.fixed);
  __syncthreads();
  meet_cluster(shape);  // no block sends to another before that one's barriers are there
  if (threadIdx.x < kProducerThreads) {
    give_registers<kProducerRegisters>();
    produce<kScales>(maps, shape, shared);
  } else {
    take_registers<kConsumerRegisters>();
    consume<Products, kScales>(shape, shared);
  }
  __syncwarp();
  meet_cluster(shape);  // no block leaves while another may still send to it
}

template <class Products, ScalesAlongK kScales>
void launch_gemm(CudaStream stream, const GemmLaunch& launch) {
  const LaunchShape shape{.grid = dim3(launch.grid),
                          .block = dim3(kGemmThreads),
                          .shared_bytes = static_cast<size_t>(launch.shared_bytes),
                          .cluster = static_cast<unsigned>(launch.shape.cluster)};
  launch_overlapped(gemm_kernel<Products, kScales>, shape, stream, launch.maps, launch.shape);
}

}  // namespace vayu::ops
