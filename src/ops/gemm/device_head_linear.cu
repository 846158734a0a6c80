// The linears of latent attention, one matrix a head: (in, out) = (128, 512) for queries and (512, 128) for values, 64
// heads: 8.4 MB of weights, and with many tokens 1.3 KiB of x and y a token and head for 128 K operations: 3,584 tokens
// move 294 MB, 69 us at 4.25 TB/s, and need 38 us of the tensor cores. Memory bounds both ends.
//
// So everything is read once. A block keeps the weights of its head (or some of its outputs) in shared memory: up to
// 128 KiB, asked for before the kernel in front has ended. Tiles of 64 tokens stream by, in turn for two warpgroups,
// each with a warp that fetches for it into a ring of its own: up to 4 stages of 64 columns (64 KiB in flight an SM;
// 4.25 TB/s times 1 us are 32 KiB). Tokens are on the M side, kN outputs at a time: one group stores while the other
// multiplies. Results leave through 16 KiB of shared memory a group and the copy engine, whole 128-byte lines; the
// tensor maps cut off what is outside. 128 + 64 + 32 KiB.
//
// Few tokens: one tile a block and as few outputs as let all blocks be resident at once, so that the whole of the
// weights is in flight together: 256 blocks of 32 KiB, or 128 of 64 KiB; 8.4 MB are 2 us.
#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/require.h"
#include "ops/cuda/sm90.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/vector.cuh"
#include "ops/cuda/wgmma.cuh"
#include "ops/gemm/device_head_linear.h"

namespace vayu::ops {
namespace {

constexpr int kGroups = 2;  // of warps that multiply
constexpr int kConsumers = 128 * kGroups;
constexpr int kThreads = kConsumers + 32 * kGroups;
constexpr int kTokens = 64;  // of a tile
constexpr int kColumns = 64;
constexpr int kStageBytes = kTokens * kColumns * 2;
constexpr int kMaxStages = 8;  // of all groups together
constexpr int kWeightBytes = 128 * 1024;
constexpr int kSms = 132;

struct HeadMaps {
  CUtensorMap weight;  // boxes of 64 columns, kN outputs, a head
  CUtensorMap x;       // of 64 columns, 64 tokens, a head; y alike
  CUtensorMap y;
};

struct HeadShape {
  int32_t out;
  int32_t slabs;       // of 64 columns of x
  int32_t blocks;      // of kN outputs that a block of threads has, at most
  int32_t tiles;       // of 64 tokens
  int32_t groups;      // that get tiles: 1 where no block has more than one tile
  int32_t stages_log;  // 2^stages_log stages a group
};

struct Barriers {
  uint64_t weights;
  uint64_t full[kMaxStages];  // by group, then stage
  uint64_t empty[kMaxStages];
};

// Slab s of output block b of the weights at (s * blocks + b) * kN * 128, then the stages, then the places results
// leave from.
template <int kN>
struct HeadShared {
  uint8_t* weights;
  uint8_t* ring;
  uint8_t* results;
  Barriers* barriers;

  __device__ HeadShared(uint8_t* memory, const HeadShape& shape)
      : weights(memory),
        ring(memory + shape.slabs * shape.blocks * kN * 128),
        results(ring + shape.groups * (kStageBytes << shape.stages_log)),
        barriers(reinterpret_cast<Barriers*>(results + shape.groups * kTokens * kN * 2)) {}
};

// What this block does.
struct Work {
  int32_t head;
  int32_t first_out;
  int32_t blocks;             // of outputs
  int32_t first_tile, tiles;  // of tokens
};

template <int kN>
__device__ __forceinline__ Work work_of_block(const HeadShape& shape) {
  Work work;
  work.head = blockIdx.x;
  work.first_out = blockIdx.y * shape.blocks * kN;
  work.blocks = min(shape.blocks, (shape.out - work.first_out + kN - 1) / kN);
  work.first_tile = shape.tiles * blockIdx.z / gridDim.z;
  work.tiles = shape.tiles * (blockIdx.z + 1) / gridDim.z - work.first_tile;
  return work;
}

// Boxes of head matrices: column, row, head.
__device__ __forceinline__ void fetch_box(const CUtensorMap* map, uint64_t* barrier, void* shared, int32_t column,
                                          int32_t row, int32_t head) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, "
      "%5}], [%2], %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(head), "l"(kEvictFirst)
      : "memory");
}
__device__ __forceinline__ void store_box(const CUtensorMap* map, const void* shared, int32_t column, int32_t row,
                                          int32_t head) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(shared_address(shared)), "r"(column), "r"(row), "r"(head)
               : "memory");
}
// Stores that this thread began no longer need the shared memory, or have arrived.
__device__ __forceinline__ void stores_have_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void stores_have_landed() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Four 8 x 8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

__device__ __forceinline__ void group_meets(int32_t group) {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
}

template <int kN>
__device__ __forceinline__ void fetch_weights(const HeadMaps& maps, const HeadShape& shape, const Work& work,
                                              const HeadShared<kN>& shared) {
  uint64_t* barrier = &shared.barriers->weights;
  barrier_arrive_expect(barrier, shape.slabs * work.blocks * kN * 128);
  for (int32_t slab = 0; slab < shape.slabs; ++slab) {
    for (int32_t b = 0; b < work.blocks; ++b) {
      fetch_box(&maps.weight, barrier, shared.weights + (slab * shape.blocks + b) * kN * 128, slab * kColumns,
                work.first_out + b * kN, work.head);
    }
  }
}

// A group's stages. Slabs of its tiles count on: number n is in stage n % stages.
struct GroupRing {
  uint8_t* stages;
  uint64_t* full;
  uint64_t* empty;
  uint32_t mask;
  int32_t log;

  template <int kN>
  __device__ GroupRing(const HeadShape& shape, const HeadShared<kN>& shared, int32_t group)
      : stages(shared.ring + group * (kStageBytes << shape.stages_log)),
        full(shared.barriers->full + (group << shape.stages_log)),
        empty(shared.barriers->empty + (group << shape.stages_log)),
        mask((1u << shape.stages_log) - 1),
        log(shape.stages_log) {}
  __device__ uint32_t parity(uint32_t number) const { return (number >> log) & 1; }
};

__device__ __forceinline__ void fetch_tokens(const HeadMaps& maps, const HeadShape& shape, const Work& work,
                                             const GroupRing& ring, int32_t group) {
  uint32_t number = 0;
  for (int32_t tile = group; tile < work.tiles; tile += kGroups) {
    for (int32_t slab = 0; slab < shape.slabs; ++slab, ++number) {
      const uint32_t stage = number & ring.mask;
      barrier_wait(&ring.empty[stage], ring.parity(number) ^ 1);
      barrier_arrive_expect(&ring.full[stage], kStageBytes);
      fetch_box(&maps.x, &ring.full[stage], ring.stages + stage * kStageBytes, slab * kColumns,
                (work.first_tile + tile) * kTokens, work.head);
    }
  }
}

// sums (64 tokens, kN outputs) = the tile whose slabs begin at `number` times output block b. `release`: the tile is
// not needed again; before that all of it stays in the ring.
template <int kN>
__device__ __forceinline__ void multiply_block(const HeadShape& shape, const uint8_t* weights, const GroupRing& ring,
                                               uint32_t number, int32_t b, bool release, float (&sums)[kN / 2]) {
  const bool speaks = release && threadIdx.x % 32 == 0;
#pragma unroll 1
  for (int32_t slab = 0; slab < shape.slabs; ++slab, ++number) {
    const uint32_t stage = number & ring.mask;
    barrier_wait(&ring.full[stage], ring.parity(number));
    const uint64_t x = swizzled_descriptor(ring.stages + stage * kStageBytes);
    const uint64_t w = swizzled_descriptor(weights + (slab * shape.blocks + b) * kN * 128);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      WgmmaBf16<kN>::run(sums, x + k * kDescriptorStep, w + k * kDescriptorStep, k != 0 || slab != 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (speaks && slab > 0) barrier_arrive(&ring.empty[(number - 1) & ring.mask]);
  }
  wgmma_wait<0>();
  wgmma_pin(sums);
  if (speaks) barrier_arrive(&ring.empty[(number - 1) & ring.mask]);
}

// sums[4 j + 2 h + c] is token 16 warp + lane / 4 + 8 h, output 8 j + 2 (lane % 4) + c: pairs of them are the rows of
// the 8 x 8 matrix (j, h). Results lie in slabs of 64 outputs, rows of 128 bytes swizzled as the tensor map says.
template <int kN>
__device__ __forceinline__ void store_block(const HeadMaps& maps, const HeadShape& shape, const Work& work,
                                            uint8_t* results, int32_t group, int32_t tile, int32_t b,
                                            const float (&sums)[kN / 2]) {
  const int32_t warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const bool leads = threadIdx.x % 128 == 0;
  if (leads) stores_have_read();
  group_meets(group);
  const uint32_t row = 16 * warp + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
  for (int j = 0; j < kN / 8; j += 2) {
    const uint32_t chunk = j % 8 + lane / 16;
    store_matrices(shared_address(results) + j / 8 * kStageBytes + swizzled_offset(row, chunk),
                   pack_bf16x2(sums[4 * j], sums[4 * j + 1]), pack_bf16x2(sums[4 * j + 2], sums[4 * j + 3]),
                   pack_bf16x2(sums[4 * j + 4], sums[4 * j + 5]), pack_bf16x2(sums[4 * j + 6], sums[4 * j + 7]));
  }
  fence_shared_for_async();
  group_meets(group);
  if (!leads) return;
#pragma unroll
  for (int slab = 0; slab < kN / kColumns; ++slab) {
    const int32_t column = work.first_out + b * kN + slab * kColumns;
    if (column < shape.out) {
      store_box(&maps.y, results + slab * kStageBytes, column, (work.first_tile + tile) * kTokens, work.head);
    }
  }
  commit_stores();
}

template <int kN>
__device__ __forceinline__ void consume(const HeadMaps& maps, const HeadShape& shape, const Work& work,
                                        const HeadShared<kN>& shared) {
  const int32_t group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  uint8_t* results = shared.results + group * kTokens * kN * 2;
  const GroupRing ring(shape, shared, group);
  uint32_t number = 0;
  barrier_wait(&shared.barriers->weights, 0);
#pragma unroll 1
  for (int32_t tile = group; tile < work.tiles; tile += kGroups, number += shape.slabs) {
#pragma unroll 1
    for (int32_t b = 0; b < work.blocks; ++b) {
      float sums[kN / 2];
      multiply_block<kN>(shape, shared.weights, ring, number, b, b + 1 == work.blocks, sums);
      store_block<kN>(maps, shape, work, results, group, tile, b, sums);
    }
  }
  if (threadIdx.x % 128 == 0) stores_have_landed();
}

// Up to 96 registers leave room for two blocks an SM.
template <int kN>
__global__ void __launch_bounds__(kThreads, 2)
    head_linear_kernel(const __grid_constant__ HeadMaps maps, const __grid_constant__ HeadShape shape) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const HeadShared<kN> shared(memory, shape);
  const Work work = work_of_block<kN>(shape);
  if (threadIdx.x == kConsumers) {
    barrier_init(&shared.barriers->weights, 1);
    for (int32_t i = 0; i < shape.groups << shape.stages_log; ++i) {
      barrier_init(&shared.barriers->full[i], 1);
      barrier_init(&shared.barriers->empty[i], 4);  // warps of the group that has the tile
    }
    barrier_init_fence();
    fetch_weights<kN>(maps, shape, work, shared);
  }
  __syncthreads();
  wait_for_inputs();
  let_next_start();
  if (threadIdx.x < kConsumers) {
    consume<kN>(maps, shape, work, shared);
  } else if (threadIdx.x % 32 == 0) {
    const int32_t group = (threadIdx.x - kConsumers) / 32;
    fetch_tokens(maps, shape, work, GroupRing(shape, shared, group), group);
  }
}

int32_t divide_up(int32_t a, int32_t b) { return (a + b - 1) / b; }

struct Cut {
  int32_t width;   // kN
  int32_t blocks;  // of outputs a block of threads
  int32_t ranges;  // of tokens
};

// As many blocks of threads as there are SMs, each with as much of a head as fits; with a single tile, as many as are
// resident at once.
Cut cut_work(const DeviceHeadLinearArgs& args, int32_t slabs, int32_t tiles) {
  Cut cut;
  cut.ranges = std::clamp(kSms / args.num_heads, 1, divide_up(tiles, kGroups));
  const int32_t streams = args.num_heads * cut.ranges;
  cut.width = args.out % 128 == 0 && streams * (args.out / 128) * 2 > kSms ? 128 : 64;
  const int32_t all = divide_up(args.out, cut.width);
  cut.blocks = std::min(all, kWeightBytes / (slabs * 128 * cut.width));
  if (tiles == 1 || slabs > kMaxStages / kGroups) cut.blocks = 1;  // a tile stays until its last block of outputs
  while (cut.blocks > 1 && streams * divide_up(all, cut.blocks) * 2 <= kSms) cut.blocks = divide_up(cut.blocks, 2);
  return cut;
}

template <int kN>
void launch(CudaStream stream, const DeviceHeadLinearArgs& args, const Cut& cut, HeadShape shape) {
  const int64_t in = args.in;
  const HeadMaps maps = {
      head_rows_map(args.weight, in, args.out, in, args.num_heads, args.out * in, kN),
      head_rows_map(args.x, in, args.num_tokens, args.x_stride, args.num_heads, args.x_head_stride, kTokens),
      head_rows_map(args.y, args.out, args.num_tokens, args.y_stride, args.num_heads, args.y_head_stride, kTokens)};
  const int32_t of_group = (kStageBytes << shape.stages_log) + kTokens * kN * 2;
  const size_t bytes = static_cast<size_t>(shape.slabs * cut.blocks) * kN * 128 +
                       static_cast<size_t>(shape.groups * of_group) + sizeof(Barriers);
  const dim3 grid(args.num_heads, divide_up(args.out, kN * cut.blocks), cut.ranges);
  launch_overlapped(head_linear_kernel<kN>, {.grid = grid, .block = dim3(kThreads), .shared_bytes = bytes}, stream,
                    maps, shape);
}

}  // namespace

void device_head_linear_cuda(CudaStream stream, const DeviceHeadLinearArgs& args) {
  if (args.num_tokens == 0) return;
  VAYU_REQUIRE(args.weight && args.x && args.y && args.num_heads > 0, "null pointer or no heads");
  VAYU_REQUIRE(args.in > 0 && args.in % 16 == 0 && args.in <= kHeadLinearMaxDim, "16 to 512 inputs, in steps of 16");
  VAYU_REQUIRE(args.out > 0 && args.out % 16 == 0 && args.out <= kHeadLinearMaxDim, "16 to 512 outputs");
  VAYU_REQUIRE(
      args.x_stride % 8 == 0 && args.x_head_stride % 8 == 0 && args.y_stride % 8 == 0 && args.y_head_stride % 8 == 0,
      "strides of whole 16 bytes");
  HeadShape shape = {};
  shape.out = args.out;
  shape.slabs = divide_up(args.in, kColumns);
  shape.tiles = divide_up(args.num_tokens, kTokens);
  const Cut cut = cut_work(args, shape.slabs, shape.tiles);
  shape.blocks = cut.blocks;
  const int32_t tiles_here = divide_up(shape.tiles, cut.ranges);
  shape.groups = std::min(kGroups, tiles_here);
  const int32_t most = divide_up(tiles_here, shape.groups) * shape.slabs;  // slabs that a group ever sees
  while (1 << shape.stages_log < std::min(kMaxStages / shape.groups, most)) ++shape.stages_log;
  if (cut.width == 128) {
    launch<128>(stream, args, cut, shape);
  } else {
    launch<64>(stream, args, cut, shape);
  }
}

}  // namespace vayu::ops
