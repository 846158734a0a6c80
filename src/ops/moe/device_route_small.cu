// The router for up to 128 tokens: a decode step.
//
// The time is that of reading 2 MB of weights and of the hand-overs, so the product is cut over as many SMs as the
// device has: a block takes 16 experts and 1/16 of the columns (at 128 experts and 4,096 columns: 128 blocks with 16 KB
// of weights and, at 64 tokens, 32 KB of rows each). Weights are constants: they are fetched before the kernel ahead
// has ended. A warp multiplies 16 rows by those 16 experts over its share of the columns (mma.sync: for so few rows
// wgmma would idle), the block adds its warps, and stores partial logits.
//
// Blocks 0 .. 7 are one cluster. Those of them that get a token wait until all partial logits are there (the others
// end, so nothing depends on how many blocks the device holds at once), add them in the order of the columns, and
// choose, a warp a token. The ids go into block 0's shared memory; it counts and places: a bit mask of tokens for every
// expert gives its count and the rank of a token in it, in whatever order the bits were set.
#include <algorithm>

#include "ops/cuda/require.h"
#include "ops/moe/device_route.cuh"

namespace vayu::ops {
namespace {

constexpr int kSliceExperts = 16;
constexpr int kSliceBytes = kSliceExperts * 128;  // of one tile
constexpr int kMaxSplits = 16;
constexpr int kGridTarget = 128;  // of 132 SMs
constexpr int kChoosers = 8;      // blocks of the first cluster
constexpr int kWarps = kRouteThreads / 32;
constexpr int kMaskWords = kRouteSmallTokens / 32;

struct SmallPlan {
  int slices;       // runs of 16 experts
  int splits;       // shares of the columns
  int chunks;       // columns / 64
  int row_tiles;    // runs of 16 tokens, rounded up to a power of two: 1, 2, 4, 8
  int row_bits;     // 16 * row_tiles == 1 << row_bits
  int most_chunks;  // of one share
};

SmallPlan small_plan(const DeviceRouteArgs& args) {
  SmallPlan plan;
  plan.chunks = static_cast<int>(args.shape.hidden / kRouteChunk);
  plan.slices = (args.shape.num_experts + kSliceExperts - 1) / kSliceExperts;
  plan.splits = std::min({plan.chunks, kMaxSplits, kGridTarget / plan.slices});
  plan.row_bits = 4;
  while ((1 << plan.row_bits) < args.num_tokens) ++plan.row_bits;
  plan.row_tiles = (1 << plan.row_bits) / 16;
  plan.most_chunks = (plan.chunks + plan.splits - 1) / plan.splits;
  return plan;
}

int64_t dynamic_bytes(const SmallPlan& plan) {
  return 1024 + int64_t{plan.most_chunks} * (2 * kSliceBytes + plan.row_tiles * 16 * 128);
}

struct Share {  // what this block multiplies
  int slice;
  int split;
  int first_chunk;
  int chunks;
};

__device__ __forceinline__ Share share_of_block(const SmallPlan& plan) {
  Share share;
  share.slice = blockIdx.x % plan.slices;
  share.split = blockIdx.x / plan.slices;
  share.first_chunk = share.split * plan.chunks / plan.splits;
  share.chunks = share.split < plan.splits ? (share.split + 1) * plan.chunks / plan.splits - share.first_chunk : 0;
  return share;
}

// One thread. weights: (chunks, 2 parts, 16 experts, 128 bytes).
__device__ __forceinline__ void fetch_weights(const DeviceRouteArgs& args, const Share& share, int padded,
                                              uint8_t* weights, uint64_t* loaded) {
  barrier_arrive_expect(loaded, share.chunks * 2 * kSliceBytes);
  const auto* source = static_cast<const uint8_t*>(args.weight) + int64_t{share.first_chunk} * 2 * padded * 128 +
                       share.slice * kSliceBytes;
  for (int tile = 0; tile < share.chunks * 2; ++tile) {
    copy_bulk(weights + tile * kSliceBytes, source + int64_t{tile} * padded * 128, kSliceBytes, loaded);
  }
}

// x: (chunks, rows, 128 bytes) swizzled; rows behind the last token are zero.
__device__ __forceinline__ void fetch_rows(const DeviceRouteArgs& args, const Share& share, int row_bits, uint32_t x) {
  const int rows = 1 << row_bits;
  const int hidden = static_cast<int>(args.shape.hidden);
  for (int i = threadIdx.x; i < share.chunks * rows * 8; i += kRouteThreads) {
    const int piece = i % 8, row = (i >> 3) & (rows - 1), chunk = i >> (3 + row_bits);
    const bool exists = row < args.num_tokens;
    const Bf16* source = args.x;
    if (exists) source += int64_t{row} * hidden + (share.first_chunk + chunk) * kRouteChunk + piece * 8;
    copy_async16(x + chunk * rows * 128 + swizzled_offset(row, piece), source, exists ? 16 : 0);
  }
  copy_async_commit();
}

__device__ __forceinline__ void multiply_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// One warp: 16 rows by 16 experts over every groups-th step of 16 columns. The upper and the lower parts of the weights
// have sums of their own, so that the small products are not cut at the large sum's last place. out: (16, 16).
__device__ __forceinline__ void multiply_share(uint32_t weights, uint32_t x, int rows, int first_row, int first_step,
                                               int steps, int groups, float* out) {
  const int lane = threadIdx.x % 32;
  float sum[2][2][4] = {};  // part, experts 0-7 and 8-15, fragment
  for (int step = first_step; step < steps; step += groups) {
    const int chunk = step / 4, within = step % 4;
    uint32_t a[4];
    load_rows_as_half(a, x + chunk * rows * 128, first_row, within, lane);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      uint32_t b[4];  // experts 0-7: columns 0-7, 8-15; experts 8-15: the same
      load_matrices(b, weights + (chunk * 2 + part) * kSliceBytes +
                           swizzled_offset(lane / 16 * 8 + lane % 8, 2 * within + lane / 8 % 2));
      multiply_half(sum[part][0], a, b[0], b[1]);
      multiply_half(sum[part][1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[(lane / 4 + i / 2 * 8) * 16 + n * 8 + lane % 4 * 2 + i % 2] = sum[0][n][i] + sum[1][n][i];
    }
  }
}

// partials: (splits, num_tokens, padded). products: (8 warps, 16, 16), warp = group * row_tiles + row tile.
__device__ __forceinline__ void store_partials(const DeviceRouteArgs& args, const SmallPlan& plan, const Share& share,
                                               int padded, const float* products, float scale, float* partials) {
  for (int i = threadIdx.x; i < plan.row_tiles * 256; i += kRouteThreads) {
    float sum = 0;
    for (int part = i; part < kWarps * 256; part += plan.row_tiles * 256) sum += products[part];
    const int64_t token = i / 16;
    if (token >= args.num_tokens) continue;
    partials[(share.split * int64_t{args.num_tokens} + token) * padded + share.slice * kSliceExperts + i % 16] =
        sum * scale;
  }
}

// The logits of one token, by one warp: a lane's experts as in lane_expert(). As many loads as there are shares (up to
// 64 floats a lane) are in flight at once. What lies in the places of experts that do not exist is read and never used.
template <int kPerLane>
__device__ __forceinline__ void add_partials(const SmallPlan& plan, const float* partials, int num_tokens, int token,
                                             int lane, float (&v)[kPerLane]) {
  constexpr int kBatch = 64 / kPerLane, kVectors = kPerLane / 4;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) v[i] = 0;
  for (int first = 0; first < plan.splits; first += kBatch) {
    float4 part[kBatch][kVectors];
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
      const float* row = partials + ((first + s) * int64_t{num_tokens} + token) * (32 * kPerLane);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        part[s][i] = make_float4(0, 0, 0, 0);
        if (first + s < plan.splits)
          part[s][i] = __ldcg(reinterpret_cast<const float4*>(row + lane_expert(lane, 4 * i)));
      }
    }
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        v[4 * i] += part[s][i].x;
        v[4 * i + 1] += part[s][i].y;
        v[4 * i + 2] += part[s][i].z;
        v[4 * i + 3] += part[s][i].w;
      }
    }
  }
}

__device__ __forceinline__ void add_release(uint32_t* p, uint32_t v) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
// Stores to shared memory of another block of the cluster; its barrier counts the bytes when they are there, so nobody
// needs a fence.
__device__ __forceinline__ void store_remote(uint32_t address, int32_t v, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(address), "r"(v),
               "r"(barrier)
               : "memory");
}

// Block 0, with the ids of all pairs. masks: (256, 4) of zeros.
__device__ __forceinline__ void place_small(const DeviceRouteArgs& args, const int32_t* ids, uint32_t* masks,
                                            int* starts, int* warp_totals) {
  const int top_k = args.shape.top_k, pairs = args.num_tokens * top_k;
  for (int p = threadIdx.x; p < pairs; p += kRouteThreads) {
    const int token = p / top_k;
    if (ids[p] >= 0) atomicOr(&masks[ids[p] * kMaskWords + token / 32], 1u << (token % 32));
  }
  __syncthreads();
  const int expert = threadIdx.x;
  int count = 0;
  for (int w = 0; w < kMaskWords; ++w) count += __popc(masks[expert * kMaskWords + w]);
  const int first = prefix_over_experts(count, warp_totals);
  starts[expert] = first;
  store_indptr(args, expert, first, count);
  __syncthreads();
  for (int p = threadIdx.x; p < pairs; p += kRouteThreads) {
    if (ids[p] < 0) {
      place_padding(args, p);
      continue;
    }
    const int token = p / top_k;
    const uint32_t* mask = masks + ids[p] * kMaskWords;
    int row = starts[ids[p]] + __popc(mask[token / 32] & ((1u << (token % 32)) - 1));
    for (int w = 0; w < token / 32; ++w) row += __popc(mask[w]);
    place_row(args, p, token, row);
  }
}

template <int kPerLane>
__global__ void __launch_bounds__(kRouteThreads, 1)
    route_small_kernel(const __grid_constant__ DeviceRouteArgs args, const SmallPlan plan) {
  extern __shared__ uint8_t dynamic[];
  __shared__ float exchange[kWarps * 256];  // products of the warps; later a row of choice values for each
  __shared__ int32_t ids[kRouteSmallTokens * kRouteMaxTopK];
  __shared__ uint32_t masks[kRouteMaxExperts * kMaskWords];
  __shared__ int starts[kRouteMaxExperts];
  __shared__ int warp_totals[kWarps];
  __shared__ uint64_t loaded, ids_in;
  constexpr int kPadded = 32 * kPerLane;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Share share = share_of_block(plan);
  const int rows = 1 << plan.row_bits;
  uint8_t* weights = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  const uint32_t x = shared_address(weights) + plan.most_chunks * 2 * kSliceBytes;
  auto* counters = static_cast<RouteCounters*>(args.scratch);
  auto* partials = reinterpret_cast<float*>(static_cast<uint8_t*>(args.scratch) + kRouteCounterBytes);
  const bool chooses = blockIdx.x == 0 || (blockIdx.x < kChoosers && static_cast<int>(blockIdx.x) < args.num_tokens);
  const int top_k = args.shape.top_k;

  if (threadIdx.x == 0) {
    barrier_init(&loaded, 1);
    barrier_init(&ids_in, 1);
    barrier_init_fence();
    fetch_weights(args, share, kPadded, weights, &loaded);
    if (blockIdx.x == 0) barrier_arrive_expect(&ids_in, args.num_tokens * top_k * sizeof(int32_t));
  }
  const auto* scales = reinterpret_cast<const float*>(static_cast<const uint8_t*>(args.weight) +
                                                      int64_t{plan.chunks} * 2 * kPadded * 128);
  const float scale = scales[share.slice * kSliceExperts + threadIdx.x % 16];
  float bias[kPerLane];
  if (chooses) load_per_expert(bias, args.bias, args.shape.num_experts, lane);
  for (int i = threadIdx.x; i < kRouteMaxExperts * kMaskWords; i += kRouteThreads) masks[i] = 0;

  wait_for_inputs();
  let_next_start();
  fetch_rows(args, share, plan.row_bits, x);
  const int valid = chooses ? valid_tokens(args) : 0;
  copy_async_wait<0>();
  __syncthreads();
  barrier_wait(&loaded, 0);
  multiply_share(shared_address(weights), x, rows, warp % plan.row_tiles * 16, warp / plan.row_tiles, share.chunks * 4,
                 kWarps / plan.row_tiles, exchange + warp * 256);
  __syncthreads();
  if (share.split < plan.splits) store_partials(args, plan, share, kPadded, exchange, scale, partials);
  __syncthreads();
  if (threadIdx.x == 0) add_release(&counters->partials_in, 1);
  if (!chooses) return;

  if (threadIdx.x == 0) {
    while (load_acquire(&counters->partials_in) != gridDim.x) {
    }
  }
  __syncthreads();
  for (int token = blockIdx.x + kChoosers * warp; token < args.num_tokens; token += kChoosers * kWarps) {
    float v[kPerLane];
    add_partials(plan, partials, args.num_tokens, token, lane, v);
    const int32_t id = route_token(args, token, token >= valid, v, bias, exchange + warp * 256, lane);
    if (lane < top_k) store_remote(remote_address(ids + token * top_k + lane, 0), id, remote_address(&ids_in, 0));
  }
  if (blockIdx.x != 0) return;
  barrier_wait(&ids_in, 0);
  __syncthreads();
  if (threadIdx.x == 0) counters->partials_in = 0;  // all that wait for it have seen it full: they sent ids
  place_small(args, ids, masks, starts, warp_totals);
}

}  // namespace

bool route_small_fits(const DeviceRouteArgs& args) {
  constexpr int64_t kFree = 192 * 1024;  // of 227 KB, beside 22 KB of fixed shared memory
  return args.num_tokens <= kRouteSmallTokens && dynamic_bytes(small_plan(args)) <= kFree;
}

void launch_route_small(CudaStream stream, const DeviceRouteArgs& args) {
  const SmallPlan plan = small_plan(args);
  LaunchShape shape;
  shape.grid = dim3((plan.slices * plan.splits + kChoosers - 1) / kChoosers * kChoosers);
  shape.block = dim3(kRouteThreads);
  shape.shared_bytes = static_cast<size_t>(dynamic_bytes(plan));
  shape.cluster = kChoosers;
  auto* kernel = padded_experts(args.shape.num_experts) == 128 ? route_small_kernel<4> : route_small_kernel<8>;
  launch_overlapped(kernel, shape, stream, args, plan);
}

}  // namespace vayu::ops
