// Selection within a row, by a cluster: the first token, most likely first, at which a running amount exceeds a target.
// The amount of a token is 1 (top-k) or its weight (top-p and the draw). Weights are exp((logit - max) / T) in units of
// 2^-44, and integers add up the same in any order: histograms with atomics stay deterministic, and what all blocks
// compute from the same sums they agree on without talking.
//
// The passes are functions of their own, called, and find the row in shared memory: inlined wherever they are used they
// made 670 KB of code, far beyond the instruction caches.
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

// What a pass over the row needs.
struct Row {
  const float* logits;
  Slice slice;
  bool aligned;
  bool counting;  // amounts are 1
  int blocks;
  float max;
  float min;            // of the possible tokens
  float scale;          // log2(e) / T
  float bins_per_unit;  // of distance
  uint64_t floor_key;   // tokens with lower keys are out
};
// Tokens with keys in [low, high], and of one bin by distance if bin >= 0.
struct Interval {
  uint64_t low;
  uint64_t high;
  int32_t bin;
};
constexpr uint64_t kHighestKey = ~uint64_t{0};

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
  Row row;  // changed by change_row alone
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

// change(row) by one thread, between barriers of the block.
template <class Change>
__device__ __forceinline__ void change_row(DrawShared& s, Change&& change) {
  __syncthreads();
  if (threadIdx.x == 0) change(s.row);
  __syncthreads();
}

__device__ __forceinline__ float distance_of(const Row& row, float logit) {  // in halvings of the weight
  return __fmul_rn(__fsub_rn(row.max, logit), row.scale);
}
__device__ __forceinline__ int distance_bin(const Row& row, float logit) {
  return static_cast<int>(fminf(__fmul_rn(distance_of(row, logit), row.bins_per_unit), kBins - 1.0f));
}
__device__ __forceinline__ uint64_t amount_of(const Row& row, float logit) {
  return row.counting ? 1 : __float2ull_rn(exp2f(-distance_of(row, logit)) * (1ull << kWeightBits));
}

// visit(logit, key) for every possible token of this block's slice with a key in [low, high].
template <class Visit>
__device__ __forceinline__ void for_each_token(const Row& row, uint64_t low, uint64_t high, Visit&& visit) {
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
        if (four[e] > -kInfinity && key >= low && key <= high) visit(four[e], key);
      }
    }
  }
}

// Inclusive sums over the threads of the block.
__device__ __noinline__ uint64_t block_scan(DrawShared& s, uint64_t v) {
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
__device__ __noinline__ void sort_keys(DrawShared& s, int count) {
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

// The tokens of an interval that are not below the floor, from all blocks. When they fit into kList they lie sorted in
// s.keys.
__device__ __noinline__ Gathered gather(DrawShared& s, Interval interval) {
  const Row row = s.row;
  if (threadIdx.x == 0) s.local = {kHighestKey, 0, 0};
  __syncthreads();
  uint64_t min = kHighestKey, max = 0;
  for_each_token(row, interval.low > row.floor_key ? interval.low : row.floor_key, interval.high,
                 [&](float logit, uint64_t key) {
                   if (interval.bin >= 0 && distance_bin(row, logit) != interval.bin) return;
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
  Gathered all = {kHighestKey, 0, 0};
  for (int rank = 0; rank < row.blocks; ++rank) {
    const Gathered part = *peer(&s.local, rank);
    if (all.count + part.count <= kList && static_cast<int>(threadIdx.x) < part.count) {
      s.keys[all.count + threadIdx.x] = peer(s.local_keys, rank)[threadIdx.x];
    }
    all.min = part.min < all.min ? part.min : all.min;
    all.max = part.max > all.max ? part.max : all.max;
    all.count += part.count;
  }
  cluster_sync();  // nobody gathers anew before all have read
  if (all.count <= kList) sort_keys(s, all.count);
  return all;
}

// Amounts of the tokens not below the floor, by bin, most likely first: by distance, or for keys in [bottom, top] by
// (top - key) >> shift. Leaves the sums through each bin in s.cumulative.
__device__ __noinline__ void fill_histogram(DrawShared& s, Histogram which, uint64_t bottom, uint64_t top, int shift) {
  const Row row = s.row;
  const int pair = 2 * static_cast<int>(threadIdx.x);
  s.low[pair] = s.low[pair + 1] = s.high[pair] = s.high[pair + 1] = 0;
  __syncthreads();
  for_each_token(row, bottom > row.floor_key ? bottom : row.floor_key, top, [&](float logit, uint64_t key) {
    const uint64_t amount = amount_of(row, logit);
    const int bin = which == kByDistance ? distance_bin(row, logit) : static_cast<int>((top - key) >> shift);
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

__device__ __noinline__ FoundBin find_bin(DrawShared& s, Histogram which, uint64_t target) {
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
__device__ __forceinline__ Found find_in_list(DrawShared& s, int count, uint64_t before, uint64_t target) {
  const int i = static_cast<int>(threadIdx.x);
  if (i == 0) s.found = {0, before};
  const uint64_t amount = i < count ? amount_of(s.row, logit_of(s.keys[i])) : 0;
  const uint64_t through = before + block_scan(s, amount);
  if (through - amount <= target && target < through) s.found = {s.keys[i], through};
  __syncthreads();
  const Found found = s.found;
  __syncthreads();
  return found;
}

// In an interval, with `before` the amount of the tokens above it.
__device__ __noinline__ Found select(DrawShared& s, Interval interval, uint64_t before, uint64_t target) {
  static_assert(kBins == 1 << 11);
  Gathered tokens = gather(s, interval);
  while (tokens.count > kList) {
    const uint64_t top = tokens.max, bottom = tokens.min;
    const int shift = max(0, 64 - __clzll(static_cast<long long>(top - bottom)) - 11);
    fill_histogram(s, kByKey, bottom, top, shift);
    const FoundBin found = find_bin(s, kByKey, target - before);
    if (found.bin < 0) return {0, before};
    before += found.before;
    const uint64_t high = top - (static_cast<uint64_t>(found.bin) << shift);
    const uint64_t width = uint64_t{1} << shift;
    tokens = gather(s, {high - bottom >= width ? high - (width - 1) : bottom, high, -1});
  }
  return find_in_list(s, tokens.count, before, target);
}

// The k-th largest of `count` values, -inf when there are fewer.
template <class ValueAt>
__device__ __forceinline__ float kth_largest(DrawShared& s, int32_t k, int count, ValueAt&& value_at) {
  if (k > count) return -kInfinity;
  const int i = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (i < count) s.keys[i] = key_of(value_at(i), i);
  sort_keys(s, count);
  const float value = logit_of(s.keys[k - 1]);
  __syncthreads();
  return value;
}

// Makes the key of the k-th most likely token the floor; none when fewer are possible. The k-th largest of the maxima
// of disjoint parts of the row bounds the k-th logit from below: those of the scan, or of scan_edited.
__device__ __noinline__ void keep_top_k(DrawShared& s, int32_t k, const float* scan_maxima) {
  const int count = scan_maxima ? kRowMaxima : s.row.blocks * kEditMaxima;
  const float bound = kth_largest(s, k, count, [&](int i) {
    return scan_maxima ? scan_maxima[i] : peer(s.maxima, i / kEditMaxima)[i % kEditMaxima];
  });
  const bool counting = s.row.counting;
  change_row(s, [&](Row& row) { row.counting = true; });
  const uint64_t low = bound > -kInfinity ? uint64_t{ordered_bits(bound)} << 32 : 0;
  const Found last = select(s, {low, kHighestKey, -1}, 0, static_cast<uint64_t>(k - 1));
  change_row(s, [&](Row& row) {
    row.counting = counting;
    row.floor_key = last.key;
  });
}

// By weight, from the histogram by distance; target is below the total.
__device__ __forceinline__ Found select_by_mass(DrawShared& s, uint64_t target) {
  const FoundBin found = find_bin(s, kByDistance, target);
  return select(s, {0, kHighestKey, found.bin}, found.before, target);
}

// Weight of all tokens that are not below the floor.
__device__ __noinline__ uint64_t total_mass(DrawShared& s) {
  const Row row = s.row;
  uint64_t mass = 0;
  for_each_token(row, row.floor_key, kHighestKey, [&](float logit, uint64_t) { mass += amount_of(row, logit); });
  mass = block_scan(s, mass);
  if (threadIdx.x == kDrawThreads - 1) s.local_mass = mass;
  cluster_sync();
  uint64_t all = 0;
  for (int rank = 0; rank < row.blocks; ++rank) all += *peer(&s.local_mass, rank);
  cluster_sync();
  return all;
}

}  // namespace vayu::ops
