// The scan: one pass over every row of logits. The floor is the read: 64 rows of 262,144 floats are 67 MB, 15.8 us at
// 4.25 TB/s; the exponentials are 16.8 M / (132 SMs x 16 a clock) = 4.6 us beside it.
//
// A cluster of 8 blocks takes a row, so that one row alone still runs on 8 SMs. A thread keeps 8 vectors of 16 bytes in
// flight (64 KiB a block, 2 blocks an SM; 2 MB over the chip would hide 500 ns, this is 16 MB) and carries (maximum,
// its lowest id, sum of exp relative to the maximum) from one group to the next, so nothing but the final merge needs a
// barrier. The merge is a fixed tree, hence deterministic. NaN and +inf need no test of their own: either makes the sum
// NaN (exp(NaN), exp(inf - inf)), and NaN survives every merge.
#include "ops/cuda/require.h"
#include "ops/sampling/device_sample_row.cuh"

namespace vayu::ops {

void launch_draw(CudaStream stream, const DeviceSampleArgs& args);  // device_sample_draw.cu

namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocks = 8;   // of a cluster
constexpr int kVectors = 8;  // of 4 logits, in flight a thread
constexpr int kGroup = 8;    // lanes that give one of the row's maxima
static_assert(kRowMaxima == kBlocks * kThreads / kGroup);

struct Peak {
  double sum = 0;  // of exp(logit - base), base = max(max, -FLT_MAX)
  float max = -kInfinity;
  float min = kInfinity;
  int32_t id = INT32_MAX;
};

__device__ __forceinline__ float base_of(float max) { return fmaxf(max, -FLT_MAX); }

__device__ __forceinline__ Peak merge(const Peak& a, const Peak& b) {
  Peak merged;
  merged.max = fmaxf(a.max, b.max);
  merged.min = fminf(a.min, b.min);
  merged.id = a.max > b.max ? a.id : b.max > a.max ? b.id : min(a.id, b.id);
  const float base = base_of(merged.max);
  merged.sum = a.sum * expf(base_of(a.max) - base) + b.sum * expf(base_of(b.max) - base);
  return merged;
}

__device__ __forceinline__ Peak merge_across(const Peak& mine, int offset) {
  Peak other;
  other.sum = __shfl_xor_sync(kWholeWarp, mine.sum, offset);
  other.max = __shfl_xor_sync(kWholeWarp, mine.max, offset);
  other.min = __shfl_xor_sync(kWholeWarp, mine.min, offset);
  other.id = __shfl_xor_sync(kWholeWarp, mine.id, offset);
  // The sum of two is the same either way round only if both lanes add in the same order.
  return threadIdx.x & offset ? merge(other, mine) : merge(mine, other);
}

// Takes kVectors vectors, a block's width apart, into the thread's peak.
__device__ __forceinline__ void take(const float (&v)[4 * kVectors], int32_t first, Peak& peak) {
  float max = v[0];
#pragma unroll
  for (int i = 1; i < 4 * kVectors; ++i) max = fmaxf(max, v[i]);
  if (max > peak.max) {  // ids only grow, so a tie with an earlier group keeps the earlier id
    const float base = base_of(max);
    peak.sum *= expf(base_of(peak.max) - base);
    peak.max = max;
#pragma unroll
    for (int i = 4 * kVectors - 1; i >= 0; --i) {
      if (v[i] == max) peak.id = first + (i / 4) * (4 * kThreads) + i % 4;
    }
  }
  const float base = base_of(peak.max);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4 * kVectors; ++i) {
    sum += __expf(v[i] - base);
    peak.min = fminf(peak.min, v[i] == -kInfinity ? kInfinity : v[i]);
  }
  peak.sum += sum;
}

__device__ __forceinline__ Peak scan_slice(const float* row, Slice slice, bool aligned) {
  Peak peak;
  for (int32_t first = slice.begin + static_cast<int32_t>(threadIdx.x) * 4; first < slice.end;
       first += 4 * kThreads * kVectors) {
    float v[4 * kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float4 four = load_logits(row, first + i * 4 * kThreads, slice.end, aligned);
      v[4 * i] = four.x;
      v[4 * i + 1] = four.y;
      v[4 * i + 2] = four.z;
      v[4 * i + 3] = four.w;
    }
    take(v, first, peak);
  }
  return peak;
}

// The row's outcome, by one thread.
__device__ void finish_row(const DeviceSampleArgs& args, int32_t index, const Peak& peak) {
  const DeviceSampleTask& task = args.tasks[index];
  DeviceRowScan& scan = args.scans[index];
  const bool finite = !(task.flags & kSamplePoison) && peak.sum == peak.sum && peak.max > -kInfinity;
  const double log_sum = peak.max + log(peak.sum);
  scan.log_sum = log_sum;
  scan.max = peak.max;
  scan.min = peak.min;
  scan.argmax = peak.id;
  scan.finite = finite ? 1 : 0;
  if (!finite) return write_result(args, index, -1, 0, 0, false);
  if (is_for_draw(task)) return;
  const int32_t token = task.fixed_token >= 0 ? task.fixed_token : peak.id;
  float logprob = 0;
  if (task.flags & kSampleLogprob) {
    logprob = static_cast<float>(args.logits[index * args.logits_stride + token] - log_sum);
  }
  write_result(args, index, token, logprob, 0, true);
}

__global__ void __launch_bounds__(kThreads, 2) scan_rows(const DeviceSampleArgs args) {
  __shared__ double storage[(kWarps + kBlocks) * sizeof(Peak) / sizeof(double)];  // Peak has initialisers
  Peak* warp_peaks = reinterpret_cast<Peak*>(storage);
  Peak* block_peaks = warp_peaks + kWarps;  // those of the cluster, in its first block
  cluster_arrive();                         // the others are there before anyone writes to them
  wait_for_inputs();
  let_next_start();
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;
  const int32_t index = static_cast<int32_t>(blockIdx.x) / kBlocks;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Slice slice = slice_of(args.vocab_size, rank, kBlocks);
  Peak peak =
      scan_slice(args.logits + index * args.logits_stride, slice, rows_aligned(args.logits, args.logits_stride));

#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    if (offset == kGroup && lane % kGroup == 0) {
      args.scans[index].maxima[(rank * kThreads + threadIdx.x) / kGroup] = peak.max;
    }
    peak = merge_across(peak, offset);
  }
  if (lane == 0) warp_peaks[warp] = peak;
  __syncthreads();
  cluster_wait();
  if (warp == 0) {
    peak = lane < kWarps ? warp_peaks[lane] : Peak();
#pragma unroll
    for (int offset = 1; offset < kWarps; offset *= 2) peak = merge_across(peak, offset);
    if (lane == 0) *peer(block_peaks + rank, 0) = peak;
  }
  __syncwarp();
  cluster_sync();
  if (rank > 0 || warp > 0) return;
  peak = block_peaks[lane % kBlocks];
#pragma unroll
  for (int offset = 1; offset < kBlocks; offset *= 2) peak = merge_across(peak, offset);
  if (lane == 0) finish_row(args, index, peak);
}

}  // namespace

void device_sample_cuda(CudaStream stream, const DeviceSampleArgs& args) {
  if (args.num_samples == 0) return;
  VAYU_REQUIRE(args.num_samples > 0, "rows");
  VAYU_REQUIRE(args.vocab_size > 0 && args.vocab_size <= kMaxDeviceVocab, "a vocabulary of at most 524,288");
  VAYU_REQUIRE(args.logits_stride >= args.vocab_size, "rows do not overlap");
  VAYU_REQUIRE(args.logits && args.tasks && args.scans && args.results && args.next_tokens, "no null pointer");
  VAYU_REQUIRE(!args.draw || (args.lists && args.edited), "lists and rows to edit");
  VAYU_REQUIRE(!args.prev_tokens || args.prev_tokens != args.next_tokens, "the last step's tokens are not overwritten");
  launch_overlapped(scan_rows, {dim3(args.num_samples * kBlocks), dim3(kThreads), 0, kBlocks}, stream, args);
  if (args.draw) launch_draw(stream, args);
}

}  // namespace vayu::ops
