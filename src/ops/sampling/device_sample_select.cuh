// Selection within a row, by a cluster: the first token, most likely first, at which a running amount exceeds a target.
// The amount of a token is 1 (top-k) or its weight (top-p and the draw). Weights are exp((logit - max) / T) in units of
// 2^-44, and integers add up the same in any order: histograms with atomics stay deterministic, and what all blocks
// compute from the same sums they agree on without talking.
//
// select() narrows an interval of keys: gather its tokens; when they fit into kList, sort them and walk; otherwise
// spread them over kBins by key and go on with the bin in which the target is crossed. Keys are distinct, so this ends:
// 64 bits / 11 a round. The first histogram of a draw is by distance from the maximum instead, linear in the logit:
// it gives the row's total, and a bin of it holds the tokens within 2 % of one weight, most often few enough to sort.
#pragma once

#include "ops/sampling/device_sample_row.cuh"

namespace vayu::ops {

constexpr int kDrawThreads = 1024;
constexpr int kDrawWarps = kDrawThreads / 32;
constexpr int kBins = 2 * kDrawThreads;
constexpr int kList = kDrawThreads;
constexpr int kDrawVectors = 4;  // of 4 logits, in flight a thread
constexpr int kWeightBits = 44;  // 2^44 * 2^19 tokens stay below 2^63
constexpr float kReach = 45;     // halvings from the maximum at which a weight rounds to 0
constexpr int kEditGroup = 8;    // lanes that give one of a block's maxima
constexpr int kEditMaxima = kDrawThreads / kEditGroup;

enum Histogram { kByDistance, kByKey };

struct Gathered {
  uint64_t min;
  uint64_t max;
  int32_t count;
};
struct Found {
  uint64_t key;      // 0: the target is not reached
  uint64_t through;  // amount of all tokens down to the key
};
struct FoundBin {
  int32_t bin;  // -1: the target is not reached
  uint64_t before;
};
struct EditedScan {
  uint64_t max;  // key
  float min;
  int32_t any_winner;
};

struct DrawShared {                  // 64 KiB and a little
  uint32_t low[kBins], high[kBins];  // this block's part of a histogram: 64-bit sums in two words
  uint64_t cumulative[2][kBins];     // of the whole row, by Histogram
  uint64_t local_keys[kList];        // gathered by this block
  uint64_t keys[kList];              // gathered by the cluster, sorted
  uint64_t warp_totals[kDrawWarps];
  Gathered local;
  Found found;
  FoundBin found_bin;
  uint64_t local_mass;
  EditedScan edited;
  float maxima[kEditMaxima];
};

__device__ __forceinline__ DrawShared& draw_shared() {
  extern __shared__ __align__(16) unsigned char draw_memory[];
  return *reinterpret_cast<DrawShared*>(draw_memory);
}

// What a pass over the row needs.
struct Row {
  const float* logits;
  Slice slice;
  bool aligned;
  int blocks;
  float max;
  float min;            // of the possible tokens
  uint64_t floor_key;   // tokens with lower keys are out
  bool counting;        // amounts are 1
  float scale;          // log2(e) / T
  float bins_per_unit;  // of distance
};

__device__ __forceinline__ float distance_of(const Row& row, float logit) {  // in halvings of the weight
  return __fmul_rn(__fsub_rn(row.max, logit), row.scale);
}
__device__ __forceinline__ int distance_bin(const Row& row, float logit) {
  return static_cast<int>(fminf(__fmul_rn(distance_of(row, logit), row.bins_per_unit), kBins - 1.0f));
}
__device__ __forceinline__ uint64_t amount_of(const Row& row, float logit) {
  return row.counting ? 1 : __float2ull_rn(exp2f(-distance_of(row, logit)) * (1ull << kWeightBits));
}

// visit(logit, key) for every possible token of this block's slice that is not below the floor.
template <class Visit>
__device__ __forceinline__ void for_each_token(const Row& row, Visit&& visit) {
  constexpr int kStride = 4 * kDrawThreads;
  for (int32_t first = row.slice.begin + static_cast<int32_t>(threadIdx.x) * 4; first < row.slice.end;
       first += kStride * kDrawVectors) {
    float4 v[kDrawVectors];
#pragma unroll
    for (int i = 0; i < kDrawVectors; ++i) {
      v[i] = load_logits(row.logits, first + i * kStride, row.slice.end, row.aligned);
    }
#pragma unroll
    for (int i = 0; i < kDrawVectors; ++i) {
      const float four[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint64_t key = key_of(four[e], first + i * kStride + e);
        if (four[e] > -kInfinity && key >= row.floor_key) visit(four[e], key);
      }
    }
  }
}

// Inclusive sums over the threads of the block.
__device__ __forceinline__ uint64_t block_scan(DrawShared& s, uint64_t v) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint64_t before = __shfl_up_sync(kWholeWarp, v, offset);
    if (lane >= offset) v += before;
  }
  if (lane == 31) s.warp_totals[warp] = v;
  __syncthreads();
  if (warp == 0) {
    uint64_t total = s.warp_totals[lane];
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const uint64_t before = __shfl_up_sync(kWholeWarp, total, offset);
      if (lane >= offset) total += before;
    }
    s.warp_totals[lane] = total;
  }
  __syncthreads();
  if (warp > 0) v += s.warp_totals[warp - 1];
  __syncthreads();
  return v;
}

// s.keys[0, count) descending; the rest up to a power of two becomes 0.
__device__ __forceinline__ void sort_keys(DrawShared& s, int count) {
  const int i = static_cast<int>(threadIdx.x);
  int size = 2;
  while (size < count) size *= 2;
  if (i >= count && i < size) s.keys[i] = 0;
  __syncthreads();
  for (int run = 2; run <= size; run *= 2) {  // bitonic: runs alternate in direction until there is one
    for (int distance = run / 2; distance > 0; distance /= 2) {
      const int partner = i ^ distance;
      if (partner > i && partner < size) {
        const uint64_t a = s.keys[i], b = s.keys[partner];
        if ((a < b) == ((i & run) == 0)) {
          s.keys[i] = b;
          s.keys[partner] = a;
        }
      }
      __syncthreads();
    }
  }
}

// Tokens for which `wanted` holds, from all blocks. When they fit into kList they lie sorted in s.keys.
template <class Wanted>
__device__ Gathered gather(DrawShared& s, const Row& row, Wanted&& wanted) {
  if (threadIdx.x == 0) s.local = {~uint64_t{0}, 0, 0};
  __syncthreads();
  uint64_t min = ~uint64_t{0}, max = 0;
  for_each_token(row, [&](float logit, uint64_t key) {
    if (!wanted(logit, key)) return;
    const int place = atomicAdd(&s.local.count, 1);
    if (place < kList) s.local_keys[place] = key;
    min = key < min ? key : min;
    max = key > max ? key : max;
  });
  if (max > 0) {
    atomicMin(reinterpret_cast<unsigned long long*>(&s.local.min), static_cast<unsigned long long>(min));
    atomicMax(reinterpret_cast<unsigned long long*>(&s.local.max), static_cast<unsigned long long>(max));
  }
  cluster_sync();
  Gathered all = {~uint64_t{0}, 0, 0};
  for (int rank = 0; rank < row.blocks; ++rank) {
    const Gathered part = *peer(&s.local, rank);
    all.min = part.min < all.min ? part.min : all.min;
    all.max = part.max > all.max ? part.max : all.max;
    all.count += part.count;
  }
  if (all.count <= kList) {
    int32_t place = 0;
    for (int rank = 0; rank < row.blocks; ++rank) {
      const int32_t count = peer(&s.local, rank)->count;
      const int i = static_cast<int>(threadIdx.x);
      if (i < count) s.keys[place + i] = peer(s.local_keys, rank)[i];
      place += count;
    }
  }
  cluster_sync();  // nobody gathers anew before all have read
  if (all.count <= kList) sort_keys(s, all.count);
  return all;
}

// bin_of(logit, key): the token's bin, most likely first, or -1. Leaves the sums through each bin in s.cumulative.
template <class BinOf>
__device__ void fill_histogram(DrawShared& s, const Row& row, Histogram which, BinOf&& bin_of) {
  const int pair = 2 * static_cast<int>(threadIdx.x);
  s.low[pair] = s.low[pair + 1] = s.high[pair] = s.high[pair + 1] = 0;
  __syncthreads();
  for_each_token(row, [&](float logit, uint64_t key) {
    const uint64_t amount = amount_of(row, logit);
    const int bin = bin_of(logit, key);
    if (bin < 0 || amount == 0) return;
    // The low word wraps as often as a carry is seen here, whatever the order.
    const auto low = static_cast<uint32_t>(amount);
    auto high = static_cast<uint32_t>(amount >> 32);
    if (low != 0 && atomicAdd(&s.low[bin], low) + low < low) ++high;
    if (high != 0) atomicAdd(&s.high[bin], high);
  });
  cluster_sync();
  uint64_t first = 0, second = 0;
  for (int rank = 0; rank < row.blocks; ++rank) {
    const uint32_t* low = peer(s.low, rank);
    const uint32_t* high = peer(s.high, rank);
    first += (uint64_t{high[pair]} << 32) + low[pair];
    second += (uint64_t{high[pair + 1]} << 32) + low[pair + 1];
  }
  const uint64_t through = block_scan(s, first + second);
  s.cumulative[which][pair] = through - second;
  s.cumulative[which][pair + 1] = through;
  cluster_sync();  // nobody clears its part before all have read
}

__device__ __forceinline__ FoundBin find_bin(DrawShared& s, Histogram which, uint64_t target) {
  if (threadIdx.x == 0) s.found_bin = {-1, 0};
  __syncthreads();
  for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kDrawThreads) {
    const uint64_t before = bin > 0 ? s.cumulative[which][bin - 1] : 0;
    if (before <= target && target < s.cumulative[which][bin]) s.found_bin = {bin, before};
  }
  __syncthreads();
  const FoundBin found = s.found_bin;
  __syncthreads();
  return found;
}

// Walks the sorted list; `before` is the amount of the tokens above it.
__device__ __forceinline__ Found find_in_list(DrawShared& s, const Row& row, int count, uint64_t before,
                                              uint64_t target) {
  const int i = static_cast<int>(threadIdx.x);
  if (i == 0) s.found = {0, before};
  const uint64_t amount = i < count ? amount_of(row, logit_of(s.keys[i])) : 0;
  const uint64_t through = before + block_scan(s, amount);
  if (through - amount <= target && target < through) s.found = {s.keys[i], through};
  __syncthreads();
  const Found found = s.found;
  __syncthreads();
  return found;
}

// Among the tokens for which `wanted` holds: all between two keys, with `before` the amount of those above.
template <class Wanted>
__device__ Found select(DrawShared& s, const Row& row, uint64_t before, uint64_t target, Wanted&& wanted) {
  Gathered tokens = gather(s, row, wanted);
  while (tokens.count > kList) {
    const uint64_t top = tokens.max, bottom = tokens.min;
    const int shift = max(0, 64 - __clzll(static_cast<long long>(top - bottom)) - 11);
    static_assert(kBins == 1 << 11);
    fill_histogram(s, row, kByKey, [=](float, uint64_t key) {
      return key >= bottom && key <= top ? static_cast<int>((top - key) >> shift) : -1;
    });
    const FoundBin found = find_bin(s, kByKey, target - before);
    if (found.bin < 0) return {0, before};
    before += found.before;
    const uint64_t high = top - (static_cast<uint64_t>(found.bin) << shift);
    const uint64_t width = uint64_t{1} << shift;
    const uint64_t low = high - bottom >= width ? high - (width - 1) : bottom;
    tokens = gather(s, row, [=](float, uint64_t key) { return key >= low && key <= high; });
  }
  return find_in_list(s, row, tokens.count, before, target);
}

// Key of the k-th most likely token, 0 when fewer are possible. `bound`: a logit no larger than the k-th.
__device__ inline uint64_t kth_key(DrawShared& s, Row row, int32_t k, float bound) {
  row.counting = true;
  row.floor_key = bound > -kInfinity ? uint64_t{ordered_bits(bound)} << 32 : 0;
  return select(s, row, 0, static_cast<uint64_t>(k - 1), [](float, uint64_t) { return true; }).key;
}

// The k-th largest of `count` maxima of disjoint parts of the row, -inf when there are fewer.
template <class MaximumAt>
__device__ float kth_maximum(DrawShared& s, int32_t k, int count, MaximumAt&& maximum_at) {
  if (k > count) return -kInfinity;
  const int i = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (i < count) s.keys[i] = key_of(maximum_at(i), i);
  sort_keys(s, count);
  const float maximum = logit_of(s.keys[k - 1]);
  __syncthreads();
  return maximum;
}

// By weight, from the histogram by distance; target is below the total.
__device__ inline Found select_by_mass(DrawShared& s, const Row& row, uint64_t target) {
  const FoundBin found = find_bin(s, kByDistance, target);
  return select(s, row, found.before, target,
                [&](float logit, uint64_t) { return distance_bin(row, logit) == found.bin; });
}

// Weight of all tokens that are not below the floor.
__device__ inline uint64_t total_mass(DrawShared& s, const Row& row) {
  uint64_t mass = 0;
  for_each_token(row, [&](float logit, uint64_t) { mass += amount_of(row, logit); });
  mass = block_scan(s, mass);
  if (threadIdx.x == kDrawThreads - 1) s.local_mass = mass;
  cluster_sync();
  uint64_t all = 0;
  for (int rank = 0; rank < row.blocks; ++rank) all += *peer(&s.local_mass, rank);
  cluster_sync();
  return all;
}

}  // namespace vayu::ops
