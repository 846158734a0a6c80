// A linear of a step whose weights fit the shared memory of all SMs about once (qkv, o): what counts is the time from
// the arrival of x to the end, since the weights are fetched while the kernel before still runs.
//
// x is the M side of wgmma (64 rows, whatever is there), the weights are the N side, because N goes in steps of 8: a
// pair of blocks takes 64 or 80 whole weight rows, so that 4096 rows are one tile for each of 64 pairs and 4608 one for
// each of 58. The two blocks (a cluster) share the depth: each reads half of x, 128 KB of 64 rows, and no sum leaves
// the pair.
//   warps 0-3   one warpgroup multiplies: two steps of 128 bytes are under way at a time, nothing waits but for data
//   warp 4      feeds the ring: 100 to 164 KB of weights before wait_for_inputs(), all of them at 8 rows of FP8
//   warps 5-7   scales
// then every thread of the warpgroup pushes its sums to the blocks that add them up (half of the columns each); stores
// that complete on the receiver's barrier need no fence, which a barrier of the cluster has (MEMBAR.ALL.GPU), and
// whoever has received everything may leave. They are added in the order of the depth.
//
// M = 64 costs 38 cycles of the tensor cores for 80 weight rows and 32 bytes: 2,450 cycles for half of 4096, however
// few rows there are; reading the operands takes shared memory 36 of those 38. Four blocks that share the depth of 144
// rows have 2,200 of them and were slower all the same, by 1 to 6 us.
// Registers: N / 2 sums a thread; two blocks an SM leave half of the register file to the norm that runs before.
#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/num_sms.h"
#include "ops/cuda/require.h"
#include "ops/cuda/stream_ring.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/vector.cuh"
#include "ops/gemm/stream_linear_forms.h"

namespace vayu::ops {
namespace {

constexpr int kThreads = 256;
constexpr int kFeeder = 128;       // the thread that feeds the ring
constexpr int kFirstScaler = 160;  // the threads from here fetch scales
constexpr int kMaxStages = 16;
constexpr int kMaxShared = 208'000;  // dynamic; leaves room for a block of the kernels that run before
constexpr int kRowTile = 64 * 128;   // bytes that a product reads of x

struct Params {
  const float* x_scales;
  const float* scales;
  Bf16* y;
  float* y_float;
  int32_t out_rows, num_rows, depth_blocks;
  int32_t stages;
  int32_t row_bytes;       // of x in a stage: 128 times the rows of a box
  int32_t received_bytes;  // in front of the ring: (block of the pair, row of x, kPitch) floats
  int32_t in_vectors;      // four outputs are stored at once
};

// Either block adds up half of the columns of a tile: 32 or 40.
template <int kN>
constexpr int kColumns = kN / 2;
constexpr int kPitch = 40;  // floats of a received row; 8 modulo 32, so that fragments meet no bank twice

template <int kN>
struct Shared {
  uint64_t full[kMaxStages], empty[kMaxStages];
  uint64_t received;
  alignas(16) float out_scales[kN];
  float row_scales[kStreamLinearMaxRows];
};

template <int kN>
__device__ __forceinline__ void feed(const Params& p, Shared<kN>& s, uint8_t* memory, const CUtensorMap* weights,
                                     const CUtensorMap* x, int tile, int begin, int end) {
  const int stage_bytes = kN * 128 + p.row_bytes;
  const auto weights_of = [&](int stage) { return memory + stage * stage_bytes; };
  const int ahead = min(p.stages, end - begin);
  prefetch_map(x);
#pragma unroll 1
  for (int i = 0; i < ahead; ++i) {
    barrier_arrive_expect(&s.full[i], stage_bytes);
    copy_tile(weights, &s.full[i], weights_of(i), (begin + i) * 128, tile * kN, kEvictFirst);
  }
  wait_for_inputs();
#pragma unroll 1
  for (int i = 0; i < ahead; ++i) {
    copy_tile(x, &s.full[i], weights_of(i) + kN * 128, (begin + i) * 128, 0, kEvictLast);
  }
  Ring ring;
  ring.phase = 1;  // the second time around
#pragma unroll 1
  for (int unit = begin + p.stages; unit < end; ++unit) {
    uint64_t* full = &s.full[ring.stage];
    barrier_wait(&s.empty[ring.stage], ring.phase ^ 1);
    barrier_arrive_expect(full, stage_bytes);
    copy_tile(weights, full, weights_of(ring.stage), unit * 128, tile * kN, kEvictFirst);
    copy_tile(x, full, weights_of(ring.stage) + kN * 128, unit * 128, 0, kEvictLast);
    ring.advance(p.stages);
  }
}

// Scales of the outputs before the kernel before has ended, those of x after.
template <int kN>
__device__ __forceinline__ void fetch_scales(const Params& p, Shared<kN>& s, int tile) {
  const int thread = static_cast<int>(threadIdx.x) - kFirstScaler;
#pragma unroll 1
  for (int i = thread; i < kN; i += kThreads - kFirstScaler) {
    s.out_scales[i] = p.scales && tile * kN + i < p.out_rows ? p.scales[tile * kN + i] : 1.0f;
  }
  wait_for_inputs();
  if (thread < kStreamLinearMaxRows) {
    s.row_scales[thread] = p.x_scales && thread < p.num_rows ? __ldcg(&p.x_scales[thread]) : 1.0f;
  }
}

// The sums of this block's part of the depth.
template <int kElementBytes, int kN>
__device__ __forceinline__ void multiply_part(const Params& p, Shared<kN>& s, const uint8_t* memory, int units,
                                              float (&sum)[kN / 2]) {
  const int stage_bytes = kN * 128 + p.row_bytes;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) sum[i] = 0;
  wgmma_pin(sum);
  Ring ring;
  int before = 0;
#pragma unroll 1
  for (int unit = 0; unit < units; ++unit) {
    const uint8_t* stage = memory + ring.stage * stage_bytes;
    const uint64_t weights = swizzled_descriptor(stage), rows = swizzled_descriptor(stage + kN * 128);
    barrier_wait(&s.full[ring.stage], ring.phase);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      multiply<kElementBytes, kN>(sum, rows + k * kDescriptorStep, weights + k * kDescriptorStep, 1);
    }
    wgmma_commit();
    wgmma_wait<1>();  // the unit before has been read
    if (unit > 0 && threadIdx.x % 32 == 0) barrier_arrive(&s.empty[before]);
    before = ring.stage;
    ring.advance(p.stages);
  }
  wgmma_wait<0>();
  wgmma_pin(sum);
}

// Two floats to a block of the pair, counted by its barrier there.
__device__ __forceinline__ void push2(uint32_t address, float a, float b, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(address),
               "f"(a), "f"(b), "r"(barrier)
               : "memory");
}

template <int kN>
__device__ __forceinline__ void push_parts(const Params& p, Shared<kN>& s, const float* received, int rank,
                                           const float (&sum)[kN / 2]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t to[2] = {remote_address(received, 0), remote_address(received, 1)};
  const uint32_t barriers[2] = {remote_address(&s.received, 0), remote_address(&s.received, 1)};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = 16 * warp + lane / 4 + 8 * half;
    if (row >= p.num_rows) continue;
    const uint32_t place = ((rank * p.num_rows + row) * kPitch + 2 * (lane % 4)) * 4;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      const int owner = 8 * j / kColumns<kN>;
      push2(to[owner] + place + (8 * j - owner * kColumns<kN>)*4, sum[4 * j + 2 * half], sum[4 * j + 2 * half + 1],
            barriers[owner]);
    }
  }
}

__device__ __forceinline__ void store4(const Params& p, int row, int out, const float4& v) {
  const int64_t at = int64_t{row} * p.out_rows + out;
  if (p.in_vectors) {
    if (out >= p.out_rows) return;
    if (p.y) {
      *reinterpret_cast<uint2*>(p.y + at) = make_uint2(pack_bf16x2(v.x, v.y), pack_bf16x2(v.z, v.w));
    } else {
      *reinterpret_cast<float4*>(p.y_float + at) = v;
    }
    return;
  }
  const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (out + i >= p.out_rows) return;
    if (p.y) {
      p.y[at + i] = to_bf16(values[i]);
    } else {
      p.y_float[at + i] = values[i];
    }
  }
}

// This block's columns of the tile, from the parts of both.
template <int kN>
__device__ __forceinline__ void add_parts(const Params& p, const Shared<kN>& s, const float* received, int tile,
                                          int rank) {
#pragma unroll 1
  for (int i = threadIdx.x; i < p.num_rows * kPitch / 4; i += kThreads) {
    const int row = i / (kPitch / 4), column = i % (kPitch / 4) * 4;
    if (column >= kColumns<kN>) continue;
    const float4 a = *reinterpret_cast<const float4*>(received + row * kPitch + column);
    const float4 b = *reinterpret_cast<const float4*>(received + (p.num_rows + row) * kPitch + column);
    const int out = rank * kColumns<kN> + column;
    const float4 scale = *reinterpret_cast<const float4*>(&s.out_scales[out]);
    const float of_row = s.row_scales[row];
    store4(p, row, tile * kN + out,
           make_float4((a.x + b.x) * scale.x * of_row, (a.y + b.y) * scale.y * of_row, (a.z + b.z) * scale.z * of_row,
                       (a.w + b.w) * scale.w * of_row));
  }
}

// Orders no memory, unlike cluster_arrive(), which costs a fence of the device: barrier_init_fence() is enough.
__device__ __forceinline__ void arrive_in_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

template <int kElementBytes, int kN>
__global__ void __launch_bounds__(kThreads, 2)
    pair_linear_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap x,
                       const Params p) {
  extern __shared__ uint8_t raw[];
  __shared__ Shared<kN> s;
  uint8_t* const memory = raw + (1024 - shared_address(raw) % 1024) % 1024;
  const int rank = static_cast<int>(cluster_rank()), tile = static_cast<int>(blockIdx.x) / 2;
  const int begin = rank * p.depth_blocks / 2, end = (rank + 1) * p.depth_blocks / 2;
  const auto* received = reinterpret_cast<const float*>(memory);
  uint8_t* const ring = memory + p.received_bytes;
  if (threadIdx.x == kFeeder) {
#pragma unroll 1
    for (int i = 0; i < p.stages; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], 4);
    }
    barrier_init(&s.received, 1);
    barrier_init_fence();
    barrier_arrive_expect(&s.received, 2 * p.num_rows * kColumns<kN> * 4);
  }
  __syncthreads();
  arrive_in_cluster();  // whoever has waited may push to the other's barrier
  if (threadIdx.x < kFeeder) {
    cluster_wait();
    wait_for_inputs();
    let_next_start();
    float sum[kN / 2];
    multiply_part<kElementBytes, kN>(p, s, ring, end - begin, sum);
    push_parts<kN>(p, s, received, rank, sum);
  } else {
    if (threadIdx.x == kFeeder) {
      feed<kN>(p, s, ring, &weights, &x, tile, begin, end);
    } else if (threadIdx.x >= kFirstScaler) {
      fetch_scales<kN>(p, s, tile);
    } else {
      wait_for_inputs();
    }
    __syncwarp();
    cluster_wait();
  }
  __syncthreads();  // scales
  barrier_wait(&s.received, 0);
  add_parts<kN>(p, s, received, tile, rank);
}

template <int kElementBytes, int kN>
void launch(CudaStream stream, const StreamLinearArgs& a) {
  const auto depth_blocks = static_cast<int32_t>((a.weight.row_bytes() + 127) / 128);
  const int32_t box_rows = a.num_rows <= 8 ? 8 : a.num_rows <= 16 ? 16 : a.num_rows <= 32 ? 32 : 64;
  const int32_t stage_bytes = kN * 128 + box_rows * 128;
  // The product of the last stage reads 64 rows of x, whatever lies behind those that are there; 1023 bytes align.
  const int32_t extra = kRowTile - box_rows * 128 + 1024;
  const int32_t received = (2 * a.num_rows * kPitch * 4 + 1023) / 1024 * 1024;
  const int32_t most_units = (depth_blocks + 1) / 2;
  const int32_t stages = std::min({most_units, kMaxStages, (kMaxShared - extra - received) / stage_bytes});
  const uint64_t alignment = reinterpret_cast<uint64_t>(a.y) | reinterpret_cast<uint64_t>(a.y_float);
  const Params p{.x_scales = a.x.scales,
                 .scales = a.weight.scales,
                 .y = a.y,
                 .y_float = a.y_float,
                 .out_rows = static_cast<int32_t>(a.weight.rows),
                 .num_rows = a.num_rows,
                 .depth_blocks = depth_blocks,
                 .stages = stages,
                 .row_bytes = box_rows * 128,
                 .received_bytes = received,
                 .in_vectors = a.weight.rows % 4 == 0 && alignment % 16 == 0};
  const auto tiles = static_cast<unsigned>((a.weight.rows + kN - 1) / kN);
  const LaunchShape shape{dim3(tiles * 2), dim3(kThreads), static_cast<size_t>(received + stages * stage_bytes + extra),
                          2};
  const CUtensorMap weights = byte_rows_map(a.weight.data, a.weight.rows, a.weight.row_bytes(), kN);
  const CUtensorMap x = byte_rows_map(a.x.data, a.num_rows, a.weight.row_bytes(), box_rows);
  launch_overlapped(pair_linear_kernel<kElementBytes, kN>, shape, stream, weights, x, p);
}

// Pairs that are resident at once when a block fills an SM: how the SMs lie in their groups decides.
int most_pairs() {
  static const int most = [] {
    const auto kernel = pair_linear_kernel<1, 80>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxShared);
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {2, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(2);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kMaxShared;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int pairs = 0;
    return cudaOccupancyMaxActiveClusters(&pairs, kernel, &config) == cudaSuccess ? pairs : 0;
  }();
  return most;
}

// The fewest weight rows a pair with which all SMs are enough; the larger number where neither does.
int rows_a_pair(const StreamLinearArgs& a) { return (a.weight.rows + 63) / 64 * 2 <= num_sms() ? 64 : 80; }

template <int kElementBytes>
void launch_rows(CudaStream stream, const StreamLinearArgs& a) {
  if (rows_a_pair(a) == 64) return launch<kElementBytes, 64>(stream, a);
  launch<kElementBytes, 80>(stream, a);
}

}  // namespace

bool pair_linear_fits(const StreamLinearArgs& a) {
  return stream_linear_fits(a) && a.weight.scale != WeightScale::kBlock && a.x.scale_group == 0;
}

bool pair_linear_fills(const StreamLinearArgs& a) {
  if (!pair_linear_fits(a)) return false;
  const int rows = rows_a_pair(a);
  const int64_t pairs = (a.weight.rows + rows - 1) / rows;
  return pairs <= most_pairs() && pairs * 2 * 4 >= num_sms() * 3;
}

void pair_linear_cuda(CudaStream stream, const StreamLinearArgs& a) {
  VAYU_REQUIRE(pair_linear_fits(a), "shapes of the pairs");
  if (a.num_rows == 0) return;
  if (a.weight.is_f8()) {
    launch_rows<1>(stream, a);
  } else {
    launch_rows<2>(stream, a);
  }
}

}  // namespace vayu::ops
