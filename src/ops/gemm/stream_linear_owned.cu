// A linear of a step for at most 8 rows of x in FP8: what counts is the time from the arrival of x to the end, since
// the weights are fetched while the kernel before still runs.
//
// A block an SM owns whole weight rows, 32 or 40 of 4 KB where the matrix has 4096 or 4608: all of them are asked for
// at once, a bulk copy each, before wait_for_inputs(). Nothing is summed between blocks. The 16 warps share the depth:
// a warp takes 64 bytes of every 1024, x for them in registers (four loads a thread, straight from the L2 cache).
//
// Products are mma.m16n8k16 in half precision with float sums: E4M3 is exact in half precision and sm_90 has no mma of
// E4M3. Weights are the M side (16 rows), x the N side (8 rows). Which element of a fragment has which place in the
// depth does not matter as long as weights and x agree: a thread takes 16 bytes that lie together. Rows are 64 bytes
// longer in shared memory than their length, so that eight neighbouring threads, two rows, meet no bank twice.
// 160 KB of rows are 1,280 cycles of shared memory, as many of conversions (16 lanes a cycle and scheduler) and about
// as many of products.
//
// 64 registers, so that a norm of 64 registers and 512 threads runs beside it.
#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/num_sms.h"
#include "ops/cuda/require.h"
#include "ops/cuda/sm90.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/gemm/stream_linear_forms.h"

namespace vayu::ops {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kWidth = 8;  // rows of x
constexpr int kTiles = 3;  // of 16 weight rows, at most
constexpr int kMaxRows = 16 * kTiles;
constexpr int kSteps = 4;  // pieces of 64 bytes of a warp, at most
constexpr int kStepBytes = 64 * kWarps;
constexpr int kPad = 64;
constexpr int kSumPitch = kMaxRows + 4;  // floats: twice it is 8 modulo 32

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

struct Shared {
  float sums[kWarps][kWidth][kSumPitch];
  uint64_t full[kTiles];
};

__device__ __forceinline__ void copy_bytes(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(kEvictFirst)
      : "memory");
}

// By warp 0: a barrier and up to 16 rows a tile.
__device__ __forceinline__ void fetch_rows(const Params& p, Shared& s, uint8_t* rows, int first, int count) {
  const int lane = static_cast<int>(threadIdx.x);
  if (lane == 0) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) barrier_init(&s.full[m], 1);
    barrier_init_fence();
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      if (16 * m < count) barrier_arrive_expect(&s.full[m], min(16, count - 16 * m) * p.row_bytes);
    }
  }
  __syncwarp();
#pragma unroll 1
  for (int r = lane; r < count; r += 32) {
    copy_bytes(rows + r * (p.row_bytes + kPad), p.weights + int64_t{first + r} * p.row_bytes, p.row_bytes,
               &s.full[r / 16]);
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

// sum[m]: weight rows 16 m + lane / 4 (+ 8), rows of x 2 (lane % 4) (+ 1), over this warp's part of the depth.
__device__ __forceinline__ void multiply_rows(const Params& p, Shared& s, const uint8_t* rows, int tiles, bool wait,
                                              float (&sum)[kTiles][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4;
  const int column = warp * 64 + lane % 4 * 16;
  const int pitch = p.row_bytes + kPad;
  uint4 packed[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    packed[i] = make_uint4(0, 0, 0, 0);
    if (row < p.num_rows && i * kStepBytes < p.row_bytes) {
      packed[i] = __ldcg(reinterpret_cast<const uint4*>(p.x + int64_t{row} * p.row_bytes + i * kStepBytes + column));
    }
  }
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    if (wait && m < tiles) barrier_wait(&s.full[m], 0);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (i * kStepBytes >= p.row_bytes) break;
    const Halves x[4] = {to_halves(packed[i].x), to_halves(packed[i].y), to_halves(packed[i].z),
                         to_halves(packed[i].w)};
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      if (m >= tiles) break;
      const uint8_t* at = rows + (16 * m + row) * pitch + i * kStepBytes + column;
      const uint4 top = *reinterpret_cast<const uint4*>(at), bottom = *reinterpret_cast<const uint4*>(at + 8 * pitch);
      multiply16(sum[m], to_halves(top.x), to_halves(bottom.x), x[0]);
      multiply16(sum[m], to_halves(top.y), to_halves(bottom.y), x[1]);
      multiply16(sum[m], to_halves(top.z), to_halves(bottom.z), x[2]);
      multiply16(sum[m], to_halves(top.w), to_halves(bottom.w), x[3]);
    }
  }
}

__device__ __forceinline__ void leave_sums(const Params& p, Shared& s, int tiles, const float (&sum)[kTiles][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int x_row = 2 * (lane % 4) + i;
    if (x_row >= p.num_rows) continue;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      if (m >= tiles) break;
      s.sums[warp][x_row][16 * m + lane / 4] = sum[m][i];
      s.sums[warp][x_row][16 * m + lane / 4 + 8] = sum[m][2 + i];
    }
  }
}

__global__ void __launch_bounds__(kThreads, 2) owned_linear_kernel(const Params p) {
  extern __shared__ __align__(128) uint8_t raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  uint8_t* const rows = raw + (sizeof(Shared) + 127) / 128 * 128;
  const int first = static_cast<int>(blockIdx.x * p.groups / gridDim.x) * 8;
  const int behind = min(static_cast<int>((blockIdx.x + 1) * p.groups / gridDim.x) * 8, p.out_rows);
  const int count = behind - first, tiles = (count + 15) / 16;
  if (threadIdx.x < 32) fetch_rows(p, s, rows, first, count);
  // The output of this thread: neighbours have neighbouring outputs of one row of x.
  const int x_row = static_cast<int>(threadIdx.x) / kMaxRows, out = static_cast<int>(threadIdx.x) % kMaxRows;
  const bool has_output = x_row < p.num_rows && out < count;
  float scale = has_output && p.scales ? p.scales[first + out] : 1.0f;
  __syncthreads();  // the barriers are there

  // The first turn fetches the code and meets whatever lies there; nothing of it is used.
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    if (turn == 1) {
      wait_for_inputs();
      let_next_start();
      if (has_output && p.x_scales) scale *= __ldcg(&p.x_scales[x_row]);
    }
    float sum[kTiles][4] = {};
    multiply_rows(p, s, rows, tiles, turn == 1, sum);
    leave_sums(p, s, tiles, sum);
    __syncthreads();
  }
  if (!has_output) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += s.sums[w][x_row][out];
  total *= scale;
  const int64_t at = int64_t{x_row} * p.out_rows + first + out;
  if (p.y) {
    p.y[at] = to_bf16(total);
  } else {
    p.y_float[at] = total;
  }
}

int32_t groups_of(const StreamLinearArgs& a) { return static_cast<int32_t>((a.weight.rows + 7) / 8); }

}  // namespace

bool owned_linear_fits(const StreamLinearArgs& a) {
  return stream_linear_fits(a) && a.weight.scale == WeightScale::kRow && a.x.scale_group == 0 && a.num_rows <= kWidth &&
         a.weight.cols % kStepBytes == 0 && a.weight.cols <= kSteps * kStepBytes &&
         (groups_of(a) + num_sms() - 1) / num_sms() * 8 <= kMaxRows;
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
  const int32_t rows = (((groups + blocks - 1) / blocks) * 8 + 15) / 16 * 16;
  const size_t bytes = (sizeof(Shared) + 127) / 128 * 128 + static_cast<size_t>(rows) * (p.row_bytes + kPad);
  launch_overlapped(owned_linear_kernel,
                    {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads), .shared_bytes = bytes},
                    stream, p);
}

}  // namespace vayu::ops
