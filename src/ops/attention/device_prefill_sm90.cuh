// Prompt attention on Hopper, after the ideas of FlashAttention-3 (arXiv 2407.08608): one warpgroup feeds K and V
// through a ring in shared memory, the others each own 64 rows of queries and overlap the products of one block of 128
// keys with the softmax of another.
//
// What is particular to this one:
// - A row of the tile is (token, head of the group), heads inside. With 16 heads a KV head a tile of 192 rows is 12
//   tokens: the diagonal wastes about 64 of 1,800 keys instead of the 160 that a tile of 192 tokens would, and a short
//   row still fills its tile. Warpgroups share only the KV ring: each loads its own queries (the next item's during
//   this one), masks, and stores on its own, so the end of a tile in one is covered by the products of the others.
// - At head dim 64 a block of 64 x 128 keys costs 512 cycles of the tensor cores and, at 16 exponentials a cycle, 512
//   cycles of the special function unit; the warpgroups take turns, so that one's exponentials run beside the products
//   of the others (247 -> 224 us at 3,584 tokens of sarvam-30b). A part of the exponentials as polynomials on the FMA
//   units, where they run beside anything, was slower for every part tried: instructions are the scarcer good (a
//   quarter 236 us, an eighth 232). Sums and outputs are rescaled only when a logit exceeds the current base by 8 (a
//   factor of 256): the weights may be that large, their relative precision is the same.
// - Tiles are dealt out whole where that keeps all SMs busy. Where it does not (512 tokens of 3,584 are 172 tiles and
//   heads for 132 SMs, and a tile of 100 tokens of 8,192 alone takes as long as 64 blocks of keys) the plan cuts them
//   into parts, each over some of the keys, whose sums are added up by a second kernel (device_prefill_merge.cu).
// - A (page, head) run of K is 16 rows of 128 bytes (two columns of them at head dim 128), one box of the copy engine,
//   written in the 128-byte swizzle. FP8 pages are widened into BF16 pages before (device_widen.h): 3 us a layer for a
//   prompt of 3,584 tokens, where widening inside, once for each of 300 tiles of queries, took 130 us more.
//
// Shared memory at head dim 64: 5 stages of K and V of 16 KiB = 160 KiB, 3 x 2 buffers of 64 queries = 48 KiB. At 128:
// 2 stages of 32 KiB = 128 KiB, 2 x 2 x 16 KiB of queries = 64 KiB. Registers of a consumer at head dim 64: 64 logits +
// 32 outputs + 32 packed weights of the block before; of 65,536, 3 x 128 threads at 160 leave 32 for the feeder (at 152
// the products are serialised for want of registers). At 128: 64 + 64 + 32; 240 and 24.
#pragma once

#include "ops/attention/device_prefill_kernels.h"
#include "ops/cuda/divide.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/sm90.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/cuda/wgmma.cuh"

namespace vayu::ops {
namespace prefill {

constexpr int kKeys = kPrefillBlockKeys;
constexpr int kPageSize = 16;
constexpr int kPages = kKeys / kPageSize;
constexpr int kGroupRows = 64;                       // query rows of a warpgroup
constexpr int kKeyColumnBytes = kKeys * 128;         // a column of 128 bytes (64 BF16) of all rows of a K or V block
constexpr int kQueryColumnBytes = kGroupRows * 128;  // likewise of queries
constexpr float kSlackLog2 = 8;                      // see the story above
constexpr uint64_t kEvictNormal = 0x1000000000000000;

template <int kHeadDim>
struct Config {
  static constexpr int kConsumers = kHeadDim == 64 ? 3 : 2;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static constexpr int kStages = kHeadDim == 64 ? 5 : 2;
  static constexpr int kColumns = kHeadDim / 64;
  static constexpr int kBlockBytes = kColumns * kKeyColumnBytes;
  static constexpr int kQueryBytes = kColumns * kQueryColumnBytes;
  static constexpr int kSharedBytes =
      1024 + 2 * kStages * kBlockBytes + kConsumers * 2 * kQueryBytes + 4 * kStages * 8 + 16;
  static constexpr int kFeederRegisters = kHeadDim == 64 ? 32 : 24;
  static constexpr int kConsumerRegisters = kHeadDim == 64 ? 160 : 240;
};

template <class C>
struct Shared {
  uint8_t* keys;  // [stage][column][key]: rows of 128 bytes, swizzled
  uint8_t* values;
  uint8_t* queries;  // [consumer][2][column][row]
  uint64_t *keys_full, *keys_empty, *values_full, *values_empty;
  float* spare;  // see Softmax::settle

  __device__ explicit Shared(uint8_t* memory) {
    uint8_t* base = memory + ((1024 - (shared_address(memory) & 1023)) & 1023);
    keys = base;
    values = keys + C::kStages * C::kBlockBytes;
    queries = values + C::kStages * C::kBlockBytes;
    keys_full = reinterpret_cast<uint64_t*>(queries + C::kConsumers * 2 * C::kQueryBytes);
    keys_empty = keys_full + C::kStages;
    values_full = keys_empty + C::kStages;
    values_empty = values_full + C::kStages;
    spare = reinterpret_cast<float*>(values_empty + C::kStages);
  }
  __device__ void init_barriers() const {
    for (int i = 0; i < C::kStages; ++i) {
      barrier_init(keys_full + i, 1);
      barrier_init(values_full + i, 1);
      barrier_init(keys_empty + i, 4 * C::kConsumers);  // one a warp
      barrier_init(values_empty + i, 4 * C::kConsumers);
    }
    barrier_init_fence();
  }
};

template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

__device__ __forceinline__ int token_of(const PrefillParams& params, int packed_row) {
  return divide(packed_row, params.group_reciprocal);
}

__device__ __forceinline__ void sync_group(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }
__device__ __forceinline__ float max_nan(float a, float b) {
  float v;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
}

// --- the feeding warpgroup

// One warp: lane (8 * column + page) asks for its box. Pages beyond the row's last are not read; the keys in them are
// masked and the values zeroed by the consumers.
template <class C>
__device__ __forceinline__ void feed(const PrefillParams& params, const CUtensorMap* map, const Shared<C>& shared) {
  const int lane = threadIdx.x % 32, page = lane % kPages, column = lane / kPages;
  Ring<C::kStages> ring;
  for (int index = blockIdx.x, following; index >= 0; index = following) {
    const PrefillItem& item = params.items[index];
    following = item.next;
    const int head = item.head, first_block = item.first_block, page_begin = item.page_begin;
    const int num_pages = (item.kv_len + kPageSize - 1) / kPageSize;
    const auto page_at = [&](int i) {
      return params.page_table != nullptr ? params.page_table[page_begin + i] : page_begin + i;
    };
    int n = item.end_block - 1;
    int next = n * kPages + page < num_pages ? page_at(n * kPages + page) : 0;
    for (; n >= first_block; --n) {
      const int row = (next * params.num_kv_heads + head) * 2 * kPageSize;
      if (n > first_block) next = page_at((n - 1) * kPages + page);
      const bool mine = column < C::kColumns && n * kPages + page < num_pages;
      const uint32_t bytes = min(kPages, num_pages - n * kPages) * C::kColumns * kPageSize * 128;
      const int offset = ring.stage * C::kBlockBytes + column * kKeyColumnBytes + page * kPageSize * 128;
      barrier_wait(shared.keys_empty + ring.stage, ring.parity ^ 1);
      if (lane == 0) barrier_arrive_expect(shared.keys_full + ring.stage, bytes);
      __syncwarp();
      if (mine) copy_tile(map, shared.keys_full + ring.stage, shared.keys + offset, column * 128, row, kEvictNormal);
      barrier_wait(shared.values_empty + ring.stage, ring.parity ^ 1);
      if (lane == 0) barrier_arrive_expect(shared.values_full + ring.stage, bytes);
      __syncwarp();
      if (mine) {
        copy_tile(map, shared.values_full + ring.stage, shared.values + offset, column * 128, row + kPageSize,
                  kEvictNormal);
      }
      ring.advance();
    }
  }
}

// --- the consuming warpgroups

// 64 packed rows of the tile into this warpgroup's buffer; rows beyond the end become zeros.
template <class C>
__device__ __forceinline__ void load_queries(const PrefillParams& params, int index, int group, uint8_t* buffer) {
  constexpr int kChunks = C::kColumns * 8;
  const PrefillItem& item = params.items[index];
  const int first = item.first + group * kGroupRows, q_len = item.q_len;
  const int thread = threadIdx.x % 128, chunk = thread % kChunks;
  const Bf16* source =
      params.q + item.q_begin * params.q_stride + int64_t{item.head} * params.group * (C::kColumns * 64) + chunk * 8;
  const uint32_t column = shared_address(buffer) + chunk / 8 * kQueryColumnBytes;
#pragma unroll
  for (int row = thread / kChunks, i = 0; i < kGroupRows * kChunks / 128; ++i, row += 128 / kChunks) {
    const int token = token_of(params, first + row), head = first + row - token * params.group;
    const bool inside = token < q_len;
    copy_async16(column + swizzled_offset(row, chunk % 8),
                 inside ? source + token * params.q_stride + head * (C::kColumns * 64) : params.q, inside ? 16 : 0);
  }
}

// s (64 rows, 128 keys) = q k^T, both K-major.
template <class C>
__device__ __forceinline__ void issue_logits(float (&s)[64], uint64_t q, uint64_t k) {
#pragma unroll
  for (int step = 0; step < C::kColumns * 4; ++step) {
    const int column = step / 4;
    WgmmaBf16<kKeys>::run(s, q + column * (kQueryColumnBytes >> 4) + step % 4 * kDescriptorStep,
                          k + column * (kKeyColumnBytes >> 4) + step % 4 * kDescriptorStep, step != 0);
  }
}

// V is N-major: its rows are keys, 64 dims of 128 bytes each. In this form of the 128-byte swizzle the stride offset
// leads from 8 keys to the next 8 (1024 bytes) and the leading offset from 64 dims to the next 64 (a column of the
// block); 16 keys further are 2048 bytes (PTX ISA, strides of the wgmma matrix descriptor).
__device__ __forceinline__ uint64_t value_descriptor(const void* block) {
  const uint64_t address = (shared_address(block) & 0x3FFFF) >> 4;
  return address | (uint64_t{kKeyColumnBytes >> 4} << 16) | (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 62);
}
template <class C>
__device__ __forceinline__ void issue_values(float (&o)[C::kColumns * 32], const uint32_t (&weights)[8][4],
                                             uint64_t v) {
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    WgmmaBf16Rs<C::kColumns * 64>::template run<1>(o, weights[step], v + step * (2048 >> 4), 1);
  }
}

__device__ __forceinline__ void pin(uint32_t (&weights)[8][4]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) asm volatile("" : "+r"(weights[i / 4][i % 4])::"memory");
}

// limit[h]: keys of this block that the thread's row h sees.
__device__ __forceinline__ void mask(float (&s)[64], const int (&limit)[2]) {
  const int column = 2 * (threadIdx.x % 4);
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    if (column + i / 4 * 8 + i % 2 >= limit[i / 2 % 2]) s[i] = __int_as_float(0xff800000);
  }
}

struct Softmax {
  float base[2], sum[2];  // logits (before the scale) that weights are relative to; sums of this thread's weights

  __device__ __forceinline__ void reset() {
    base[0] = base[1] = __int_as_float(0xff800000);
    sum[0] = sum[1] = 0;
  }
  // Moves the bases if a row of the warp needs it; true: what was summed so far is to be multiplied by `factor`.
  __device__ __forceinline__ bool raise(const float (&s)[64], float slack, float scale_log2, float (&factor)[2]) {
    float top[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float a = s[2 * h], b = s[2 * h + 1];
#pragma unroll
      for (int j = 1; j < 16; ++j) {
        a = max_nan(a, s[4 * j + 2 * h]);
        b = max_nan(b, s[4 * j + 2 * h + 1]);
      }
      top[h] = max_nan(a, b);
      top[h] = max_nan(top[h], __shfl_xor_sync(0xffffffffu, top[h], 1));
      top[h] = max_nan(top[h], __shfl_xor_sync(0xffffffffu, top[h], 2));
    }
    const bool enough = top[0] <= base[0] + slack && top[1] <= base[1] + slack;  // false for NaN
    if (__all_sync(0xffffffffu, enough)) return false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float raised = max_nan(base[h], top[h]);
      factor[h] = raised == __int_as_float(0xff800000) ? 1.0f : exp2_approx((base[h] - raised) * scale_log2);
      base[h] = raised;
      sum[h] *= factor[h];
    }
    return true;
  }
  // Of the row's four lanes.
  __device__ __forceinline__ float total(int h) const {
    const float pair = sum[h] + __shfl_xor_sync(0xffffffffu, sum[h], 1);
    return pair + __shfl_xor_sync(0xffffffffu, pair, 2);
  }
  // Sums are never negative, so nothing is stored. That the store might be, and depends on all weights, keeps ptxas
  // from moving the exponentials behind the wait for the products that run meanwhile (an empty asm leaves no trace in
  // PTX).
  __device__ __forceinline__ void settle(uint32_t spare) const {
    asm volatile("{.reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p st.shared.f32 [%1], %0;}" ::"f"(sum[0] + sum[1]),
                 "r"(spare)
                 : "memory");
  }
  __device__ __forceinline__ void weigh(float (&s)[64], float scale_log2) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float shift = base[h] == __int_as_float(0xff800000) ? 0.0f : base[h] * scale_log2;
      float odd = 0;
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        float* pair = s + 4 * j + 2 * h;
#pragma unroll
        for (int c = 0; c < 2; ++c) pair[c] = exp2_approx(fmaf(pair[c], scale_log2, -shift));
        sum[h] += pair[0];
        odd += pair[1];
      }
      sum[h] += odd;
    }
  }
};

// Accumulators are A fragments as they are: 16 keys are two groups of 8 columns.
__device__ __forceinline__ void pack(uint32_t (&weights)[8][4], const float (&s)[64]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) weights[i / 4][i % 4] = pack_bf16x2(s[2 * i], s[2 * i + 1]);
}

// Value rows from `first` on become zeros: what lies there may be NaN, and 0 * NaN is NaN. All consumers may do it to
// the same block, which is harmless.
template <class C>
__device__ __forceinline__ void clear_values(uint8_t* block, int first, int group) {
  for (int i = first * 8 + threadIdx.x % 128; i < kKeys * 8; i += 128) {
#pragma unroll
    for (int column = 0; column < C::kColumns; ++column) {
      *reinterpret_cast<uint4*>(block + column * kKeyColumnBytes + i * 16) = make_uint4(0, 0, 0, 0);
    }
  }
  fence_shared_for_async();
  sync_group(group);
}

// Four lanes have 4 words each: word i of lane c becomes word c of lane i.
__device__ __forceinline__ void transpose_quad(uint32_t (&word)[4]) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const uint32_t sent = (lane & bit) ? word[i] : word[i | bit];
      const uint32_t received = __shfl_xor_sync(0xffffffffu, sent, bit);
      word[i] = (lane & bit) ? received : word[i];
      word[i | bit] = (lane & bit) ? word[i | bit] : received;
    }
  }
}

// The thread has columns 8 j + 2 (t % 4) + {0, 1} of its two rows; after exchanges in fours, 16 bytes of a row.
template <class C>
__device__ __forceinline__ void store_rows(const PrefillParams& params, const PrefillItem& item, int first,
                                           const float (&o)[C::kColumns * 32], const Softmax& softmax) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float total = softmax.total(h);
    // No logit above -inf is 0 / 0.
    const float inverse = softmax.base[h] == __int_as_float(0xff800000) ? __int_as_float(0x7fc00000) : 1.0f / total;
    const int row = first + threadIdx.x % 128 / 32 * 16 + lane / 4 + 8 * h;
    const int token = token_of(params, row);
    const int64_t q_row = int64_t{item.q_begin + token} * params.num_kv_heads * params.group +
                          item.head * params.group + (row - token * params.group);
    Bf16* out = params.out + q_row * (C::kColumns * 64);
#pragma unroll
    for (int a = 0; a < C::kColumns * 2; ++a) {
      uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = 4 * a + i;
        word[i] = pack_bf16x2(o[4 * j + 2 * h] * inverse, o[4 * j + 2 * h + 1] * inverse);
      }
      transpose_quad(word);
      if (token < item.q_len) {
        *reinterpret_cast<uint4*>(out + (4 * a + lane % 4) * 8) = make_uint4(word[0], word[1], word[2], word[3]);
      }
    }
  }
}

// The sums of a part as they are; four lanes write 32 bytes of a row. Rows beyond the end are written too.
template <class C>
__device__ __forceinline__ void store_part(const PrefillParams& params, int part, int group,
                                           const float (&o)[C::kColumns * 32], const Softmax& softmax) {
  constexpr int kDim = C::kColumns * 64, kRows = C::kConsumers * kGroupRows;
  float* sums = params.parts + part * kPrefillPartFloats<kDim>;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = group * kGroupRows + threadIdx.x % 128 / 32 * 16 + lane / 4 + 8 * h;
    auto* out = reinterpret_cast<float2*>(sums + row * kDim) + lane % 4;
#pragma unroll
    for (int j = 0; j < C::kColumns * 8; ++j) out[4 * j] = make_float2(o[4 * j + 2 * h], o[4 * j + 2 * h + 1]);
    const float total = softmax.total(h);
    if (lane % 4 == 0) reinterpret_cast<float2*>(sums + kRows * kDim)[row] = make_float2(softmax.base[h], total);
  }
}

template <class C>
struct Consumer {
  const PrefillParams& params;
  const Shared<C>& shared;
  int group;  // this warpgroup among the consumers
  Ring<C::kStages> key_ring, value_ring;

  // Left alone, the warpgroups fall into step: all products together, then all exponentials together, and the sum of
  // both times is what a block costs (measured: 2,800 cycles for three blocks of 512 and 490). Issuing in turn, one's
  // exponentials run beside the products of the others. Every warpgroup has a turn for each block of a tile, whether it
  // sees the block or not, so the turns go round.
  __device__ __forceinline__ void take_turn() const { asm volatile("bar.sync %0, 256;" ::"r"(4 + group) : "memory"); }
  __device__ __forceinline__ void pass_turn() const {
    const int next = group + 1 == C::kConsumers ? 0 : group + 1;
    asm volatile("bar.arrive %0, 256;" ::"r"(4 + next) : "memory");
  }

  __device__ __forceinline__ void release(uint64_t* barrier) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }
  __device__ __forceinline__ void wait_keys() const {
    barrier_wait(shared.keys_full + key_ring.stage, key_ring.parity);
  }
  __device__ __forceinline__ void wait_values() const {
    barrier_wait(shared.values_full + value_ring.stage, value_ring.parity);
  }
  __device__ __forceinline__ void release_keys() {
    release(shared.keys_empty + key_ring.stage);
    key_ring.advance();
  }
  __device__ __forceinline__ void release_values() {
    release(shared.values_empty + value_ring.stage);
    value_ring.advance();
  }
  // A block that none of this warpgroup's rows sees. Waiting first keeps its arrivals in their phases.
  __device__ __forceinline__ void skip_block() {
    take_turn();
    pass_turn();
    wait_keys();
    release_keys();
    wait_values();
    release_values();
  }
  __device__ __forceinline__ uint64_t keys() const {
    return swizzled_descriptor(shared.keys + key_ring.stage * C::kBlockBytes);
  }
  __device__ __forceinline__ uint64_t values() const {
    return value_descriptor(shared.values + value_ring.stage * C::kBlockBytes);
  }

  // Rows [first, first + 64) of the tile over the item's blocks of keys below `end`, which may hold the diagonal, down
  // to its first. Logits of block n are computed while the values of block n + 1 are summed, and become weights
  // meanwhile.
  __device__ __forceinline__ void run(const PrefillItem& item, int first, int end, const uint8_t* queries) {
    constexpr int kOutputs = C::kColumns * 32;
    const int cached = item.kv_len - item.q_len, last_row = item.q_len * params.group - 1;
    const int first_block = item.first_block;
    const int row = first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    const int fewest = cached + token_of(params, first) + 1;  // keys that the first row sees
    const float slack = kSlackLog2 / params.scale_log2;
    const uint64_t q = swizzled_descriptor(queries);
    float s[64], o[kOutputs], factor[2];
    uint32_t weights[8][4];
    Softmax softmax;
    softmax.reset();
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0;

    const auto mask_block = [&](int n) {
      if ((n + 1) * kKeys <= fewest) return;
      const int limit[2] = {cached + token_of(params, min(row, last_row)) + 1 - n * kKeys,
                            cached + token_of(params, min(row + 8, last_row)) + 1 - n * kKeys};
      mask(s, limit);
    };
    if (end * kKeys > item.kv_len) {
      wait_values();
      clear_values<C>(shared.values + value_ring.stage * C::kBlockBytes, item.kv_len - (end - 1) * kKeys, group);
    }
    wait_keys();
    take_turn();
    wgmma_fence();
    issue_logits<C>(s, q, keys());
    wgmma_commit();
    pass_turn();
    wgmma_wait<0>();
    wgmma_pin(s);
    release_keys();
    mask_block(end - 1);
    softmax.raise(s, slack, params.scale_log2, factor);
    softmax.weigh(s, params.scale_log2);
    pack(weights, s);

    for (int n = end - 2; n >= first_block; --n) {
      wait_keys();
      wgmma_pin(o);
      pin(weights);
      take_turn();
      wgmma_fence();
      issue_logits<C>(s, q, keys());
      wgmma_commit();
      wait_values();
      wgmma_fence();
      issue_values<C>(o, weights, values());
      wgmma_commit();
      pass_turn();
      wgmma_wait<1>();
      wgmma_pin(s);
      release_keys();
      mask_block(n);
      const bool raised = softmax.raise(s, slack, params.scale_log2, factor);
      softmax.weigh(s, params.scale_log2);
      softmax.settle(shared_address(shared.spare));
      wgmma_wait<0>();
      wgmma_pin(o);
      pin(weights);
      release_values();
      if (raised) {
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) o[i] *= factor[i / 2 % 2];
      }
      pack(weights, s);
    }
    wait_values();
    wgmma_pin(o);
    pin(weights);
    wgmma_fence();
    issue_values<C>(o, weights, values());
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(o);
    pin(weights);
    release_values();
    if (item.part < 0) {
      store_rows<C>(params, item, first, o, softmax);
    } else {
      store_part<C>(params, item.part, group, o, softmax);
    }
  }
};

template <class C>
__device__ __forceinline__ void consume(const PrefillParams& params, const Shared<C>& shared) {
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128) - 1, 0);  // known to be uniform
  uint8_t* buffers = shared.queries + group * 2 * C::kQueryBytes;
  Consumer<C> consumer = {params, shared, group, {}, {}};
  if (group == C::kConsumers - 1) consumer.pass_turn();  // the first warpgroup begins
  int index = blockIdx.x;
  load_queries<C>(params, index, group, buffers);
  for (int round = 0; index >= 0; ++round) {
    const PrefillItem& item = params.items[index];
    uint8_t* queries = buffers + (round & 1) * C::kQueryBytes;
    // This item's queries, loaded by all threads during the last one, are in place; the other buffer is free, because
    // everyone here is through with the last item.
    copy_async_commit();
    copy_async_wait<0>();
    fence_shared_for_async();
    sync_group(group);
    index = item.next;
    if (index >= 0) load_queries<C>(params, index, group, buffers + (~round & 1) * C::kQueryBytes);
    const int first = item.first + group * kGroupRows, packed_rows = item.q_len * params.group;
    int end = item.first_block;  // of the blocks that some row sees; every row sees some of an item's first
    if (first < packed_rows) {
      const int last_token = token_of(params, min(first + kGroupRows, packed_rows) - 1);
      end = min(item.end_block, (item.kv_len - item.q_len + last_token + kKeys) / kKeys);
    }
    for (int n = item.end_block; n > end; --n) consumer.skip_block();
    if (end > item.first_block) consumer.run(item, first, end, queries);
  }
  if (group == 0) consumer.take_turn();  // the last pass: no barrier is left half full
}

template <int kHeadDim>
__global__ void __launch_bounds__(Config<kHeadDim>::kThreads, 1)
    kernel(const PrefillParams params, const __grid_constant__ CUtensorMap map) {
  using C = Config<kHeadDim>;
  extern __shared__ uint8_t memory[];
  const Shared<C> shared(memory);
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  wait_for_inputs();
  let_next_start();
  if (threadIdx.x < 128) {
    give_registers<C::kFeederRegisters>();
    if (threadIdx.x < 32) feed(params, &map, shared);
  } else {
    take_registers<C::kConsumerRegisters>();
    consume(params, shared);
  }
}

}  // namespace prefill

template <int kHeadDim>
void launch_prefill(CudaStream stream, int32_t blocks, const PrefillParams& params, const CUtensorMap& map) {
  using C = prefill::Config<kHeadDim>;
  launch_overlapped(prefill::kernel<kHeadDim>,
                    {.grid = dim3(blocks), .block = dim3(C::kThreads), .shared_bytes = C::kSharedBytes}, stream, params,
                    map);
}

}  // namespace vayu::ops
