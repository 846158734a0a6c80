// The router for more than 128 tokens: prefill.
//
// 3,584 tokens, 128 experts, 4,096 columns in two FP16 passes are 7.5 GFLOP: 9.4 us at 800 TFLOP/s; the rows are 29 MB:
// 7 us from memory. A block that read all 2 MB of weights would take 19 us for that alone (64 bytes a clock and SM), so
// the columns are cut over a cluster: 4 (or 8) blocks share a tile of 128 tokens, each multiplies 1/4 of the columns
// (256 KB of rows, 512 KB of weights) and then chooses for 1/4 of the tokens, whose partial logits it gathers from the
// shared memory of the others, always in the order of the columns. 28 tiles x 4 = 112 blocks.
//
// A block: two warpgroups of 64 rows x 128 experts, which take rows from shared memory, turn them into FP16 in
// registers and multiply (wgmma, 64 x 128 x 16); one converts while the other multiplies. With 256 experts a tile has
// 64 tokens and each warpgroup half of the experts. Registers: 64 + 64 accumulators (upper and lower parts of the
// weights have sums of their own, so that the small products are not cut at the large sum's last place), 16 operands,
// addresses; a ninth warp as producer would leave 168 a thread (three warps on one of the four schedulers), so thread 0
// starts the copies: a tensor map for the rows, plain bulk copies for the weights, which lie in the order they are
// used. Shared memory: 3 stages x (16 KB rows + 32 KB weights) + 68 KB of partial logits (256 experts: 2 x 72).
//
// Each choosing block leaves, for its tokens (at most 32, a "run") and every expert, a mask of the tokens that chose
// it. After a barrier over the whole grid every block sums the masks before its runs and places its rows: an order that
// no timing can change. The grid never holds more blocks than run at once; with more tiles a cluster takes several.
#include <algorithm>
#include <atomic>

#include "ops/cuda/tensor_map.h"
#include "ops/moe/device_route.cuh"

namespace vayu::ops {
namespace {

constexpr int kWarps = kRouteThreads / 32;

template <int kExperts>
struct Tile {
  static constexpr int kRows = kExperts == 128 ? 128 : 64;
  static constexpr int kXBytes = kRows * 128;
  static constexpr int kPartBytes = kExperts * 128;
  static constexpr int kStageBytes = kXBytes + 2 * kPartBytes;
  static constexpr int kStages = kExperts == 128 ? 3 : 2;
  static constexpr int kStride = kExperts + 8;  // floats of a row of partial logits: fragments meet no bank twice
  static constexpr int kSharedBytes = 1024 + kStages * kStageBytes + kRows * kStride * 4;
};

struct LargePlan {
  int tiles;
  int splits;  // blocks of a cluster: 4 or 8
  int chunks;  // columns / 64
};

// d (64, 128) += a (64, 16) b (128, 16)^T in FP16, a from registers; the layouts are those of wgmma.cuh.
__device__ __forceinline__ void multiply_half(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, "
      "%57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// Stages of rows, upper parts, lower parts; chunks are counted over all tiles of the block.
template <int kExperts>
struct Pipeline {
  using T = Tile<kExperts>;
  uint8_t* stages;
  uint64_t* full;
  uint64_t* empty;

  __device__ uint8_t* data(int count) const { return stages + count % T::kStages * T::kStageBytes; }
  __device__ uint64_t* filled(int count) const { return full + count % T::kStages; }
  __device__ uint64_t* emptied(int count) const { return empty + count % T::kStages; }
  __device__ uint32_t parity(int count) const { return count / T::kStages % 2; }
};

struct Columns {  // of this block, in chunks
  int first;
  int count;
};

// Thread 0: the count-th chunk of the block, as soon as its stage is free.
template <int kExperts>
__device__ __forceinline__ void fetch_weights(const Pipeline<kExperts>& pipe, int count, const uint8_t* weight,
                                              int chunk) {
  using T = Tile<kExperts>;
  barrier_wait(pipe.emptied(count), pipe.parity(count) ^ 1);
  barrier_arrive_expect(pipe.filled(count), T::kStageBytes);
  copy_bulk(pipe.data(count) + T::kXBytes, weight + int64_t{chunk} * 2 * T::kPartBytes, 2 * T::kPartBytes,
            pipe.filled(count));
}
template <int kExperts>
__device__ __forceinline__ void fetch_rows(const Pipeline<kExperts>& pipe, int count, const CUtensorMap* x_map,
                                           int chunk, int tile) {
  copy_tile(x_map, pipe.filled(count), pipe.data(count), chunk * 128, tile * Tile<kExperts>::kRows, kEvictLast);
}

// One chunk of a warpgroup: the wgmmas are started, not awaited.
template <int kExperts>
__device__ __forceinline__ void multiply_chunk(const uint8_t* data, int first_row, int first_expert, int lane,
                                               float (&upper)[64], float (&lower)[64]) {
  using T = Tile<kExperts>;
  uint32_t a[4][4];
#pragma unroll
  for (int k = 0; k < 4; ++k) load_rows_as_half(a[k], shared_address(data), first_row, k, lane);
  const uint64_t b = swizzled_descriptor(data + T::kXBytes + first_expert * 128);
  constexpr uint64_t kToLower = T::kPartBytes >> 4;
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    multiply_half(upper, a[k], b + k * kDescriptorStep);
    multiply_half(lower, a[k], b + kToLower + k * kDescriptorStep);
  }
  wgmma_commit();
}

// A warpgroup, for one tile: its part of the partial logits, stored to `partials` (kRows, kStride), not scaled yet.
// `done`: chunks of earlier tiles. The first kStages chunks are under way already.
template <int kExperts>
__device__ __forceinline__ void multiply_tile(const Pipeline<kExperts>& pipe, int done, const Columns& columns,
                                              const uint8_t* weight, const CUtensorMap* x_map, int tile,
                                              float* partials) {
  using T = Tile<kExperts>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warpgroup = warp / 4;
  const int first_row = (kExperts == 128 ? warpgroup * 64 : 0) + warp % 4 * 16;
  const int first_expert = kExperts == 128 ? 0 : warpgroup * 128;
  float upper[64], lower[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) upper[i] = lower[i] = 0;
  for (int i = 0; i < columns.count; ++i) {
    barrier_wait(pipe.filled(done + i), pipe.parity(done + i));
    multiply_chunk<kExperts>(pipe.data(done + i), first_row, first_expert, lane, upper, lower);
    const int next = i - 1 + T::kStages;  // into the stage of the chunk before this
    if (threadIdx.x == 0 && i > 0 && next < columns.count) {
      fetch_weights(pipe, done + next, weight, columns.first + next);
      fetch_rows(pipe, done + next, x_map, columns.first + next, tile);
    }
    __syncwarp();
    wgmma_wait<0>();
    wgmma_pin(upper);
    wgmma_pin(lower);
    if (lane == 0) barrier_arrive(pipe.emptied(done + i));
  }
  float* out = partials + (first_row + lane / 4) * T::kStride + first_expert + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = 4 * j + 2 * h;
      *reinterpret_cast<float2*>(out + h * 8 * T::kStride + 8 * j) =
          make_float2(upper[at] + lower[at], upper[at + 1] + lower[at + 1]);
    }
  }
}

__device__ __forceinline__ float4 load_remote4(uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// One warp: the logits of one row of the tile, from all blocks of the cluster.
template <int kPerLane>
__device__ __forceinline__ void gather_logits(const float* row, int splits, const float (&scale)[kPerLane], int lane,
                                              float (&v)[kPerLane]) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) v[i] = 0;
#pragma unroll 4
  for (int split = 0; split < splits; ++split) {
#pragma unroll
    for (int i = 0; i < kPerLane; i += 4) {
      const float4 part = load_remote4(remote_address(row + lane_expert(lane, i), split));
      v[i] += part.x;
      v[i + 1] += part.y;
      v[i + 2] += part.z;
      v[i + 3] += part.w;
    }
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) v[i] *= scale[i];
}

// Waits for all blocks of the grid, which must all run. What they wrote before is seen after.
__device__ __forceinline__ void grid_barrier(RouteCounters* counters) {
  __syncthreads();
  if (threadIdx.x == 0) {
    const uint32_t generation = load_acquire(&counters->generation);  // moves only after this block has arrived
    if (add_acquire_release(&counters->arrived, 1) == gridDim.x - 1) {
      counters->arrived = 0;
      store_release(&counters->generation, generation + 1);
    } else {
      while (load_acquire(&counters->generation) == generation) {
      }
    }
  }
  __syncthreads();
}

template <int kExperts>
struct PlaceBuffers {
  int total[kExperts];   // rows of an expert
  int before[kExperts];  // those of earlier runs; then where this run's begin
  uint32_t own[kExperts];
  int warp_totals[kRouteThreads / 32];
};

// masks: (num_runs, kExperts). Sums the counts of all runs and of those before `run`; keeps its own masks.
template <int kExperts>
__device__ __forceinline__ void sum_runs(const uint32_t* masks, int num_runs, int run,
                                         PlaceBuffers<kExperts>& buffers) {
  constexpr int kQuads = kExperts / 4;
  const int quad = threadIdx.x % kQuads;
  int total[4] = {}, before[4] = {};
#pragma unroll 4
  for (int r = threadIdx.x / kQuads; r < num_runs; r += kRouteThreads / kQuads) {
    const uint4 mask = __ldcg(reinterpret_cast<const uint4*>(masks) + r * kQuads + quad);
    const int count[4] = {__popc(mask.x), __popc(mask.y), __popc(mask.z), __popc(mask.w)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      total[i] += count[i];
      before[i] += r < run ? count[i] : 0;
    }
    if (r == run) *reinterpret_cast<uint4*>(&buffers.own[4 * quad]) = mask;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    atomicAdd(&buffers.total[4 * quad + i], total[i]);
    atomicAdd(&buffers.before[4 * quad + i], before[i]);
  }
}

// Places the rows of one run: `rows` tokens from `first_token` on.
template <int kExperts>
__device__ __forceinline__ void place_run(const DeviceRouteArgs& args, const uint32_t* masks, int num_runs, int run,
                                          int first_token, int rows, PlaceBuffers<kExperts>& buffers) {
  const int expert = threadIdx.x;
  if (expert < kExperts) buffers.total[expert] = buffers.before[expert] = 0;
  __syncthreads();
  sum_runs(masks, num_runs, run, buffers);
  __syncthreads();
  const int count = expert < kExperts ? buffers.total[expert] : 0;
  const int first = prefix_over_experts(count, buffers.warp_totals);
  if (expert < kExperts) buffers.before[expert] += first;
  if (run == 0) store_indptr(args, expert, first, count);
  __syncthreads();
  const int top_k = args.shape.top_k;
  const int pairs = min(rows, args.num_tokens - first_token) * top_k;
  for (int p = threadIdx.x; p < pairs; p += kRouteThreads) {
    const int within = p / top_k;
    const int64_t pair = int64_t{first_token} * top_k + p;
    const int32_t id = args.expert_ids[pair];
    if (id < 0) {
      place_padding(args, pair);
    } else {
      const int rank = __popc(buffers.own[id] & ((1u << within) - 1));
      place_row(args, pair, first_token + within, buffers.before[id] + rank);
    }
  }
  __syncthreads();
}

// One warp a token, for the rows of this block's run. run_masks: (kExperts) of zeros.
template <int kExperts>
__device__ __forceinline__ void choose_run(const DeviceRouteArgs& args, const float* partials, int splits,
                                           int first_row, int rows, int first_token, int valid,
                                           const float (&bias)[kExperts / 32], const float (&scale)[kExperts / 32],
                                           float* choice_row, uint32_t* run_masks) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = warp; i < rows && first_token + i < args.num_tokens; i += kWarps) {
    float v[kExperts / 32];
    gather_logits(partials + (first_row + i) * Tile<kExperts>::kStride, splits, scale, lane, v);
    const int token = first_token + i;
    const int32_t id = route_token(args, token, token >= valid, v, bias, choice_row, lane);
    if (lane < args.shape.top_k && id >= 0) atomicOr(&run_masks[id], 1u << i);
  }
  __syncwarp();
}

template <int kExperts>
__global__ void __launch_bounds__(kRouteThreads, 1)
    route_large_kernel(const __grid_constant__ DeviceRouteArgs args, const __grid_constant__ CUtensorMap x_map,
                       const LargePlan plan) {
  using T = Tile<kExperts>;
  extern __shared__ uint8_t dynamic[];
  __shared__ float choice_rows[kWarps * kExperts];
  __shared__ uint32_t run_masks[kExperts];
  __shared__ __align__(16) PlaceBuffers<kExperts> buffers;
  __shared__ uint64_t full[T::kStages], empty[T::kStages];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = static_cast<int>(cluster_rank());
  const int rows_per_run = T::kRows / plan.splits;
  const auto* weight = static_cast<const uint8_t*>(args.weight);
  const int first_tile = blockIdx.x / plan.splits, tile_step = gridDim.x / plan.splits;
  const int first_chunk = rank * plan.chunks / plan.splits;
  const Columns columns = {first_chunk, (rank + 1) * plan.chunks / plan.splits - first_chunk};
  const int ahead = min(columns.count, T::kStages);
  const Pipeline<kExperts> pipe = {dynamic + (1024 - shared_address(dynamic) % 1024) % 1024, full, empty};
  auto* partials = reinterpret_cast<float*>(pipe.stages + T::kStages * T::kStageBytes);
  auto* masks = reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(args.scratch) + kRouteCounterBytes);

  if (threadIdx.x == 0) {
    for (int i = 0; i < T::kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], kWarps);
    }
    barrier_init_fence();
    prefetch_map(&x_map);
    for (int i = 0; i < ahead; ++i) fetch_weights(pipe, i, weight, first_chunk + i);
  }
  for (int i = threadIdx.x; i < kExperts; i += kRouteThreads) run_masks[i] = 0;
  float bias[kExperts / 32], scale[kExperts / 32];
  load_per_expert(bias, args.bias, args.shape.num_experts, lane);
  load_per_expert(scale, reinterpret_cast<const float*>(weight + int64_t{plan.chunks} * 2 * T::kPartBytes), kExperts,
                  lane);
  __syncthreads();
  wait_for_inputs();
  const int valid = valid_tokens(args);

  int done = 0;
  for (int tile = first_tile; tile < plan.tiles; tile += tile_step, done += columns.count) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < ahead; ++i) {
        if (tile != first_tile) fetch_weights(pipe, done + i, weight, first_chunk + i);
        fetch_rows(pipe, done + i, &x_map, first_chunk + i, tile);
      }
    }
    __syncwarp();
    multiply_tile(pipe, done, columns, weight, &x_map, tile, partials);
    cluster_arrive();  // all partial logits of the tile are there
    cluster_wait();
    const int first_row = rank * rows_per_run;
    choose_run<kExperts>(args, partials, plan.splits, first_row, rows_per_run, tile * T::kRows + first_row, valid, bias,
                         scale, choice_rows + warp * kExperts, run_masks);
    cluster_arrive();  // this block has read what it wanted of the others' partial logits
    __syncthreads();
    for (int i = threadIdx.x; i < kExperts; i += kRouteThreads) {
      masks[(int64_t{tile} * plan.splits + rank) * kExperts + i] = run_masks[i];
      run_masks[i] = 0;
    }
    cluster_wait();  // nobody reads this block's any more: the next tile may overwrite them, or the block end
  }
  let_next_start();
  grid_barrier(static_cast<RouteCounters*>(args.scratch));
  for (int tile = first_tile; tile < plan.tiles; tile += tile_step) {
    const int first_token = tile * T::kRows + rank * rows_per_run;
    place_run(args, masks, plan.tiles * plan.splits, tile * plan.splits + rank, first_token, rows_per_run, buffers);
  }
}

// Clusters of this size that the device runs at once; 0 where the driver does not say, as after the device has failed:
// last_launch() then has its error.
template <int kExperts>
int ask_most_clusters(unsigned splits) {
  cudaFuncSetAttribute(route_large_kernel<kExperts>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       Tile<kExperts>::kSharedBytes);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {splits, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(splits);
  config.blockDim = dim3(kRouteThreads);
  config.dynamicSmemBytes = Tile<kExperts>::kSharedBytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int count = 0;
  const cudaError_t error = cudaOccupancyMaxActiveClusters(&count, route_large_kernel<kExperts>, &config);
  return error == cudaSuccess ? count : 0;
}

// Asked for once; only an answer is kept.
template <int kExperts, unsigned kSplits>
int most_clusters() {
  static std::atomic<int> kept{0};
  if (const int count = kept.load(std::memory_order_relaxed); count > 0) return count;
  const int count = ask_most_clusters<kExperts>(kSplits);
  kept.store(count, std::memory_order_relaxed);
  return count;
}

template <int kExperts>
void launch_tiles(CudaStream stream, const DeviceRouteArgs& args) {
  using T = Tile<kExperts>;
  const int most_of_8 = most_clusters<kExperts, 8>(), most_of_4 = most_clusters<kExperts, 4>();
  LargePlan plan;
  plan.chunks = static_cast<int>(args.shape.hidden / kRouteChunk);
  plan.tiles = (args.num_tokens + T::kRows - 1) / T::kRows;
  const bool is_short = plan.tiles <= most_of_8;  // twice the blocks then fit, and each has half of the columns
  plan.splits = is_short ? 8 : 4;
  LaunchShape shape;
  // Where there was no answer the grid is one cluster, which takes all tiles, if it can be launched.
  shape.grid = dim3(std::max(1, std::min(plan.tiles, is_short ? most_of_8 : most_of_4)) * plan.splits);
  shape.block = dim3(kRouteThreads);
  shape.shared_bytes = T::kSharedBytes;
  shape.cluster = plan.splits;
  const CUtensorMap x_map = byte_rows_map(args.x, args.num_tokens, args.shape.hidden * 2, T::kRows);
  launch_overlapped(route_large_kernel<kExperts>, shape, stream, args, x_map, plan);
}

}  // namespace

void launch_route_large(CudaStream stream, const DeviceRouteArgs& args) {
  if (padded_experts(args.shape.num_experts) == 128) {
    launch_tiles<128>(stream, args);
  } else {
    launch_tiles<256>(stream, args);
  }
}

}  // namespace vayu::ops
