// One kernel for add_norm and for the combine of the experts, which differ in where the added row comes from.
//
// A block takes a row and holds it in registers, eight elements a thread at hidden 4096 (512 threads), so memory is
// read once. rms is a common positive factor of a row, so the largest |s * weight| that the FP8 scale needs is reduced
// together with the sum of squares: one block barrier a row. The weight is constant and is loaded before the wait for
// the previous kernel. A row of experts' outputs is read eight vectors a thread at a time (all of top 6 or top 8): 128
// bytes in flight a thread, 1,024 threads on a multiprocessor at 64 registers.
#pragma once

#include "ops/cuda/launch.cuh"
#include "ops/cuda/require.h"
#include "ops/norm/add_norm.h"
#include "ops/norm/quantize_rows_math.cuh"

namespace vayu::ops {

struct ExpertRows {
  const Bf16* rows;         // (num_pairs, hidden)
  const int32_t* position;  // (num_tokens, top_k)
  const float* weights;     // (num_tokens, top_k)
  int32_t top_k;            // at most one a lane of a warp
};

// The pairs of a token over the lanes of each warp: lane j has pair j. An absent pair has row -1 and weight 0.
struct LanePair {
  int32_t row = -1;
  float weight = 0;
};
__device__ __forceinline__ LanePair load_pair(const ExpertRows& experts, int64_t token) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  if (token < 0 || lane >= experts.top_k) return {};
  const int32_t row = experts.position[token * experts.top_k + lane];
  return {row, row >= 0 ? experts.weights[token * experts.top_k + lane] : 0.0f};
}

// sum[e] += weight of pair j * rows[row of pair j][column + e], j ascending. All lanes of a warp come here; those that
// are not `inside` read nothing. An absent pair adds zero times zero.
template <int kChunk>
__device__ __forceinline__ void add_experts(const ExpertRows& experts, const LanePair& pair, int64_t hidden, int column,
                                            bool inside, float (&sum)[8]) {
  for (int first = 0; first < experts.top_k; first += kChunk) {
    Bytes16 rows[kChunk] = {};
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const int32_t row = __shfl_sync(0xffffffffu, pair.row, first + j);
      if (inside && row >= 0) rows[j] = *reinterpret_cast<const Bytes16*>(experts.rows + row * hidden + column);
    }
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const float weight = __shfl_sync(0xffffffffu, pair.weight, first + j);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 v = unpack_bf16x2(rows[j].word[i]);
        sum[2 * i] = fmaf(weight, v.x, sum[2 * i]);
        sum[2 * i + 1] = fmaf(weight, v.y, sum[2 * i + 1]);
      }
    }
  }
}

struct SumAndPeak {
  float sum;
  float peak;
};
__device__ __forceinline__ SumAndPeak block_sum_and_peak(float sum, uint32_t peak, float2* shared) {
  sum = warp_sum(sum);
  peak = __reduce_max_sync(0xffffffffu, peak);
  const unsigned lane = threadIdx.x % 32;
  if (lane == 0) shared[threadIdx.x / 32] = make_float2(sum, __uint_as_float(peak));
  __syncthreads();
  const float2 mine = lane < blockDim.x / 32 ? shared[lane] : make_float2(0.0f, 0.0f);
  return {warp_sum(mine.x), __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(mine.y)))};
}

struct Loaded {
  Bytes16 residual = {};
  Bytes16 delta = {};
};
__device__ __forceinline__ Loaded load_row(const AddNormArgs& args, int64_t source, int column, bool inside) {
  Loaded loaded;
  const int64_t at = source * args.hidden + column;
  if (inside) loaded.residual = *reinterpret_cast<const Bytes16*>(args.residual + at);
  if (inside && args.delta) loaded.delta = *reinterpret_cast<const Bytes16*>(args.delta + at);
  return loaded;
}

// s of eight columns, as floats that are exact BF16; zeros when not `inside`. Stored back unless a list picks the rows.
template <bool kExperts, int kChunk>
__device__ __forceinline__ void add_row(const AddNormArgs& args, const ExpertRows& experts, const LanePair& pair,
                                        const Loaded& loaded, int64_t source, int column, bool inside, float (&s)[8]) {
  float sum[8] = {};
  if constexpr (kExperts) add_experts<kChunk>(experts, pair, args.hidden, column, inside, sum);
  float delta[8];
  unpack_bf16x8(loaded.residual, s);
  unpack_bf16x8(loaded.delta, delta);
  if (!kExperts && !args.delta) return;
  Bytes16 packed;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    packed.word[i] =
        pack_bf16x2(s[2 * i] + (sum[2 * i] + delta[2 * i]), s[2 * i + 1] + (sum[2 * i + 1] + delta[2 * i + 1]));
    const float2 rounded = unpack_bf16x2(packed.word[i]);
    s[2 * i] = rounded.x;
    s[2 * i + 1] = rounded.y;
  }
  if (inside && !args.row_ids) *reinterpret_cast<Bytes16*>(args.residual + source * args.hidden + column) = packed;
}

// Blocks of 512 threads that share a multiprocessor: 32, 64 or 128 registers a thread.
constexpr int add_norm_blocks(int vectors, bool experts) {
  if (vectors > 2 || (experts && vectors > 1)) return 1;
  return experts || vectors > 1 ? 2 : 4;
}

template <int kVectors, bool kExperts>
__global__ void __launch_bounds__(512, add_norm_blocks(kVectors, kExperts))
    add_norm_kernel(AddNormArgs args, ExpertRows experts) {
  constexpr int kChunk = kVectors > 2 ? 4 : 8;  // rows of experts read together: what the registers hold
  __shared__ float2 partial[32];
  let_next_start();  // a linear fetches its weights meanwhile
  const int64_t row = blockIdx.x;
  const auto column = [&](int i) { return static_cast<int>(threadIdx.x + i * blockDim.x) * 8; };
  float y[kVectors][8] = {};  // weight, then s * weight
  if (args.weight) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (column(i) < args.hidden) load_float8(args.weight + column(i), y[i]);
    }
  }
  wait_for_inputs();
  const int64_t source = args.row_ids ? args.row_ids[row] : row;
  const LanePair pair = kExperts ? load_pair(experts, source) : LanePair{};
  Loaded loaded[kVectors];  // all of them before the first store, behind which no load may move up
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    loaded[i] = load_row(args, source, column(i), column(i) < args.hidden && source >= 0);
  }
  float squares = 0;
  uint32_t peak = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float s[8];
    const bool inside = column(i) < args.hidden && source >= 0;
    add_row<kExperts, kChunk>(args, experts, pair, loaded[i], source, column(i), inside, s);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      squares = fmaf(s[e], s[e], squares);
      y[i][e] *= s[e];
    }
    peak = peak_bits(y[i], peak);
  }
  if (!args.weight) return;

  const bool is_f8 = args.y.scales != nullptr;
  const SumAndPeak total = block_sum_and_peak(squares, peak, partial);
  const bool finite = total.sum < __int_as_float(0x7f800000);
  const float rms =
      finite ? rsqrtf(total.sum / static_cast<float>(args.hidden) + args.eps) : __int_as_float(0x7fc00000);
  const float scale = is_f8 ? f8_scale(total.peak * rms) : 1.0f;
  const float factor = rms / scale;
  if (threadIdx.x == 0 && is_f8) args.y.scales[row] = scale;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (column(i) >= args.hidden) continue;
    const int64_t at = row * args.hidden + column(i);
    if (is_f8) store_f8x8(static_cast<F8E4M3*>(args.y.data) + at, y[i], factor);
#pragma unroll
    for (int e = 0; e < 8; ++e) y[i][e] *= rms;
    if (!is_f8) store_bf16x8(static_cast<Bf16*>(args.y.data) + at, y[i]);
    if (args.y_bf16) store_bf16x8(args.y_bf16 + at, y[i]);
  }
}

template <bool kExperts>
void launch_add_norm(CudaStream stream, const AddNormArgs& args, const ExpertRows& experts) {
  if (args.num_rows == 0) return;
  VAYU_REQUIRE(args.residual && (args.weight == nullptr || args.y.data), "null pointer");
  VAYU_REQUIRE(args.hidden > 0 && args.hidden % 8 == 0 && args.hidden <= kMaxNormHidden, "hidden");
  VAYU_REQUIRE(!args.weight || args.y.cols == args.hidden, "y has the columns of the residual");
  VAYU_REQUIRE(args.y.scale_group == 0, "one scale a row");
  const RowThreads shape = row_threads(args.hidden);
  const LaunchShape launch{.grid = dim3(static_cast<unsigned>(args.num_rows)), .block = dim3(shape.threads)};
  if (shape.per_thread == 1) {
    launch_overlapped(add_norm_kernel<1, kExperts>, launch, stream, args, experts);
  } else if (shape.per_thread == 2) {
    launch_overlapped(add_norm_kernel<2, kExperts>, launch, stream, args, experts);
  } else {
    launch_overlapped(add_norm_kernel<4, kExperts>, launch, stream, args, experts);
  }
}

}  // namespace vayu::ops
