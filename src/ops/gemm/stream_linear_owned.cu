// A linear of a step for at most 8 rows of x in FP8: what counts is the time from the arrival of x to the end, since
// the weights are fetched while the kernel before still runs.
//
// A block an SM owns whole weight rows, 32 or 40 of 4 KB where the matrix has 4096 or 4608: all of them are asked for
// at once, a bulk copy each, before wait_for_inputs(). Nothing is summed between blocks. The 8 warps share the depth: a
// warp takes 64 bytes of every 512, x for them in registers (eight loads a thread, straight from the L2 cache).
//
// Products are mma.m16n8k16 in half precision with float sums: E4M3 is exact in half precision and sm_90 has no mma of
// E4M3. Weights are the M side (16 rows), x the N side (8 rows). Which element of a fragment has which place in the
// depth does not matter as long as weights and x agree: a thread takes 16 bytes that lie together. Rows are 64 bytes
// longer in shared memory than their length, so that eight neighbouring threads, two rows, meet no bank twice.
// 40 rows are 1,280 cycles of shared memory, 1,540 of conversions (16 lanes a cycle and scheduler) and about 1,200 of
// products, side by side: the sums of the tiles of 16 rows do not wait for each other.
//
// At most 128 registers for 256 threads leave half of the register file to the norm that runs before.
#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/num_sms.h"
#include "ops/cuda/require.h"
#include "ops/cuda/sm90.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/gemm/stream_linear_forms.h"

namespace vayu::ops {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kWidth = 8;  // rows of x
constexpr int kSteps = 8;  // pieces of 64 bytes of a warp, at most
constexpr int kStepBytes = 64 * kWarps;
constexpr int kPad = 64;
constexpr int kMaxGroups = 6;  // of 8 weight rows, of a block

struct Params {
  const uint8_t* x;
  const float* x_scales;
  const uint8_t* weights;
  const float* scales;
  Bf16* y;
  float* y_float;
  int32_t out_rows, num_rows, row_bytes;
  uint32_t groups;  // of 8 weight rows
};

template <int kGroups>
struct Shared {
  float sums[kWarps][kWidth][8 * kGroups + 4];  // twice the pitch is 8 or 24 modulo 32
  uint64_t full;
};

__device__ __forceinline__ void copy_bytes(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(kEvictFirst)
      : "memory");
}

// By warp 0.
__device__ __forceinline__ void fetch_rows(const Params& p, uint64_t* full, uint8_t* rows, int first, int count) {
  const int lane = static_cast<int>(threadIdx.x);
  if (lane == 0) {
    barrier_init(full, 1);
    barrier_init_fence();
    barrier_arrive_expect(full, count * p.row_bytes);
  }
  __syncwarp();
#pragma unroll 1
  for (int r = lane; r < count; r += 32) {
    copy_bytes(rows + r * (p.row_bytes + kPad), p.weights + int64_t{first + r} * p.row_bytes, p.row_bytes, full);
  }
}

struct Halves {
  uint32_t low, high;  // two of half precision each
};
__device__ __forceinline__ Halves to_halves(uint32_t e4m3x4) {
  Halves h;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}"
      : "=r"(h.low), "=r"(h.high)
      : "r"(e4m3x4));
  return h;
}
__device__ __forceinline__ void multiply16(float (&d)[4], const Halves& top, const Halves& bottom, const Halves& x) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(top.low), "r"(bottom.low), "r"(top.high), "r"(bottom.high), "r"(x.low), "r"(x.high));
}

// x of this warp's part of the depth, row lane / 4.
__device__ __forceinline__ void load_x(const Params& p, Bytes16 (&x)[kSteps]) {
  const int row = static_cast<int>(threadIdx.x) % 32 / 4;
  const int column = static_cast<int>(threadIdx.x) / 32 * 64 + static_cast<int>(threadIdx.x) % 4 * 16;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    x[i] = {};
    if (row < p.num_rows && i * kStepBytes < p.row_bytes) {
      const uint4 v = __ldcg(reinterpret_cast<const uint4*>(p.x + row * p.row_bytes + i * kStepBytes + column));
      x[i] = {{v.x, v.y, v.z, v.w}};
    }
  }
}

// sum[m]: weight rows 16 m + lane / 4 (+ 8), rows of x 2 (lane % 4) (+ 1), over this warp's part of the depth.
template <int kGroups>
__device__ __forceinline__ void multiply_rows(const Params& p, const uint8_t* rows, const Bytes16 (&x)[kSteps],
                                              float (&sum)[(kGroups + 1) / 2][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int pitch = p.row_bytes + kPad;
  const uint8_t* mine = rows + lane / 4 * pitch + warp * 64 + lane % 4 * 16;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (i * kStepBytes >= p.row_bytes) break;
    Bytes16 weights[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      weights[g] = *reinterpret_cast<const Bytes16*>(mine + 8 * g * pitch + i * kStepBytes);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Halves right = to_halves(x[i].word[j]);
#pragma unroll
      for (int m = 0; m < (kGroups + 1) / 2; ++m) {
        const Halves top = to_halves(weights[2 * m].word[j]);
        Halves bottom = {0, 0};
        if (2 * m + 1 < kGroups) bottom = to_halves(weights[(2 * m + 1) % kGroups].word[j]);
        multiply16(sum[m], top, bottom, right);
      }
    }
  }
}

template <int kGroups>
__device__ __forceinline__ void leave_sums(const Params& p, Shared<kGroups>& s,
                                           const float (&sum)[(kGroups + 1) / 2][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int x_row = 2 * (lane % 4) + i;
    if (x_row >= p.num_rows) continue;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) s.sums[warp][x_row][8 * g + lane / 4] = sum[g / 2][g % 2 * 2 + i];
  }
}

template <int kGroups>
__global__ void __launch_bounds__(kThreads, 2) owned_linear_kernel(const Params p) {
  extern __shared__ __align__(128) uint8_t raw[];
  constexpr int kRows = 8 * kGroups, kOutputs = (kRows * kWidth + kThreads - 1) / kThreads;
  auto& s = *reinterpret_cast<Shared<kGroups>*>(raw);
  uint8_t* const rows = raw + (sizeof(s) + 127) / 128 * 128;
  const int first = static_cast<int>(blockIdx.x * p.groups / gridDim.x) * 8;
  const int behind = min(static_cast<int>((blockIdx.x + 1) * p.groups / gridDim.x) * 8, p.out_rows);
  const int count = behind - first;  // rows behind these are whatever lies there, and so are their products
  if (threadIdx.x < 32) fetch_rows(p, &s.full, rows, first, count);
  // The outputs of this thread: neighbours have neighbouring outputs of one row of x.
  int x_row[kOutputs], out[kOutputs];
  float scale[kOutputs];
#pragma unroll
  for (int k = 0; k < kOutputs; ++k) {
    const int i = static_cast<int>(threadIdx.x) + k * kThreads;
    x_row[k] = i / kRows;
    out[k] = x_row[k] < p.num_rows && i % kRows < count ? i % kRows : -1;
    scale[k] = out[k] >= 0 && p.scales ? p.scales[first + out[k]] : 1.0f;
  }
  __syncthreads();  // the barrier is there

  // The first turn fetches the code and meets whatever lies there; nothing of it is used.
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    Bytes16 x[kSteps];
    if (turn == 1) {
      wait_for_inputs();
      let_next_start();
    }
    load_x(p, x);
    if (turn == 1) {
#pragma unroll
      for (int k = 0; k < kOutputs; ++k) {
        if (out[k] >= 0 && p.x_scales) scale[k] *= __ldcg(&p.x_scales[x_row[k]]);
      }
      barrier_wait(&s.full, 0);
    }
    __syncwarp();
    float sum[(kGroups + 1) / 2][4] = {};
    multiply_rows<kGroups>(p, rows, x, sum);
    leave_sums<kGroups>(p, s, sum);
    __syncthreads();
  }
#pragma unroll
  for (int k = 0; k < kOutputs; ++k) {
    if (out[k] < 0) continue;
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += s.sums[w][x_row[k]][out[k]];
    total *= scale[k];
    const int64_t at = int64_t{x_row[k]} * p.out_rows + first + out[k];
    if (p.y) {
      p.y[at] = to_bf16(total);
    } else {
      p.y_float[at] = total;
    }
  }
}

template <int kGroups>
void launch(CudaStream stream, const Params& p, int32_t blocks) {
  const size_t bytes = (sizeof(Shared<kGroups>) + 127) / 128 * 128 + size_t{8} * kGroups * (p.row_bytes + kPad);
  launch_overlapped(owned_linear_kernel<kGroups>,
                    {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads), .shared_bytes = bytes},
                    stream, p);
}

int32_t groups_of(const StreamLinearArgs& a) { return static_cast<int32_t>((a.weight.rows + 7) / 8); }

}  // namespace

bool owned_linear_fits(const StreamLinearArgs& a) {
  return stream_linear_fits(a) && a.weight.scale == WeightScale::kRow && a.x.scale_group == 0 && a.num_rows <= kWidth &&
         a.weight.cols % kStepBytes == 0 && a.weight.cols <= kSteps * kStepBytes &&
         (groups_of(a) + num_sms() - 1) / num_sms() <= kMaxGroups;
}

void owned_linear_cuda(CudaStream stream, const StreamLinearArgs& a) {
  VAYU_REQUIRE(owned_linear_fits(a), "shapes of owned rows");
  if (a.num_rows == 0) return;
  const int32_t groups = groups_of(a), blocks = std::min(groups, num_sms());
  const Params p{.x = static_cast<const uint8_t*>(a.x.data),
                 .x_scales = a.x.scales,
                 .weights = static_cast<const uint8_t*>(a.weight.data),
                 .scales = a.weight.scales,
                 .y = a.y,
                 .y_float = a.y_float,
                 .out_rows = static_cast<int32_t>(a.weight.rows),
                 .num_rows = a.num_rows,
                 .row_bytes = static_cast<int32_t>(a.weight.cols),
                 .groups = static_cast<uint32_t>(groups)};
  const int32_t most = (groups + blocks - 1) / blocks;  // of a block
  if (most <= 4) return launch<4>(stream, p, blocks);
  if (most == 5) return launch<5>(stream, p, blocks);
  launch<6>(stream, p, blocks);
}

}  // namespace vayu::ops
