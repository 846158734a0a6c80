// The loop of prompt attention on Hopper that device_prefill_sm90.cuh, where its story is told, and
// device_mla_prefill.cu share: a warpgroup takes 64 rows of queries through blocks of 128 keys, which come through a
// ring in shared memory, last block first. What fills the ring, which keys a row sees and where its output lies are the
// kernel's.
//
// A kernel's Config says how many it has of what; a column is 64 BF16, 128 bytes of a row:
//   kKeyColumns, kValueColumns  of keys and queries; of values and outputs
//   kConsumers, kStages         warpgroups that multiply; blocks of keys, and of values, in the ring
//   kQueryBuffers               of 64 rows, for all consumers together
//   kQueryBarriers              pairs of barriers: one a consumer if the copy engine fills its one buffer, otherwise 0
//   after(consumer)             whose turn it is next
#pragma once

#include "ops/attention/device_prefill.h"
#include "ops/cuda/sm90.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/cuda/wgmma.cuh"

namespace vayu::ops::prefill {

constexpr int kKeys = kPrefillBlockKeys;
constexpr int kGroupRows = 64;                       // query rows of a warpgroup
constexpr int kKeyColumnBytes = kKeys * 128;         // a column of 128 bytes (64 BF16) of all rows of a K or V block
constexpr int kQueryColumnBytes = kGroupRows * 128;  // likewise of queries
constexpr float kSlackLog2 = 8;                      // see the story in device_prefill_sm90.cuh
constexpr uint64_t kEvictNormal = 0x1000000000000000;

template <class C>
struct Shared {
  static constexpr int kKeyBytes = C::kKeyColumns * kKeyColumnBytes;  // a block
  static constexpr int kValueBytes = C::kValueColumns * kKeyColumnBytes;
  static constexpr int kQueryBytes = C::kKeyColumns * kQueryColumnBytes;  // a buffer
  static constexpr int kBytes = 1024 + C::kStages * (kKeyBytes + kValueBytes) + C::kQueryBuffers * kQueryBytes +
                                (4 * C::kStages + 2 * C::kQueryBarriers) * 8 + 16;

  uint8_t* keys;  // [stage][column][key]: rows of 128 bytes, swizzled
  uint8_t* values;
  uint8_t* queries;  // [buffer][column][row]
  uint64_t *keys_full, *keys_empty, *values_full, *values_empty;
  uint64_t *queries_full, *queries_empty;  // [consumer]
  float* spare;                            // see Softmax::settle

  __device__ explicit Shared(uint8_t* memory) {
    keys = memory + ((1024 - (shared_address(memory) & 1023)) & 1023);
    values = keys + C::kStages * kKeyBytes;
    queries = values + C::kStages * kValueBytes;
    keys_full = reinterpret_cast<uint64_t*>(queries + C::kQueryBuffers * kQueryBytes);
    keys_empty = keys_full + C::kStages;
    values_full = keys_empty + C::kStages;
    values_empty = values_full + C::kStages;
    queries_full = values_empty + C::kStages;
    queries_empty = queries_full + C::kQueryBarriers;
    spare = reinterpret_cast<float*>(queries_empty + C::kQueryBarriers);
  }
  __device__ void init_barriers() const {
    for (int i = 0; i < C::kStages; ++i) {
      barrier_init(keys_full + i, 1);
      barrier_init(values_full + i, 1);
      barrier_init(keys_empty + i, 4 * C::kConsumers);  // one a warp
      barrier_init(values_empty + i, 4 * C::kConsumers);
    }
    for (int i = 0; i < C::kQueryBarriers; ++i) {
      barrier_init(queries_full + i, 1);
      barrier_init(queries_empty + i, 4);
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

__device__ __forceinline__ void sync_group(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }
__device__ __forceinline__ float max_nan(float a, float b) {
  float v;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
}

// s (64 rows, 128 keys) = q k^T, both K-major.
template <class C>
__device__ __forceinline__ void issue_logits(float (&s)[64], uint64_t q, uint64_t k) {
#pragma unroll
  for (int step = 0; step < C::kKeyColumns * 4; ++step) {
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
__device__ __forceinline__ void issue_values(float (&o)[C::kValueColumns * 32], const uint32_t (&weights)[8][4],
                                             uint64_t v) {
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    WgmmaBf16Rs<C::kValueColumns * 64>::template run<1>(o, weights[step], v + step * (2048 >> 4), 1);
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
  // What turns a row of sums into outputs. No logit above -inf is 0 / 0.
  __device__ __forceinline__ float inverse_total(int h) const {
    const float all = total(h);
    return base[h] == __int_as_float(0xff800000) ? __int_as_float(0x7fc00000) : 1.0f / all;
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
    for (int column = 0; column < C::kValueColumns; ++column) {
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

// The thread has columns 8 j + 2 (t % 4) + {0, 1} of its two rows; after an exchange between four, 16 bytes of row h:
// columns 32 a + 8 (t % 4) + {0 .. 7}, multiplied by `factor`.
template <int kOutputs>
__device__ __forceinline__ uint4 row_piece(const float (&o)[kOutputs], int h, int a, float factor) {
  uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int j = 4 * a + i;
    word[i] = pack_bf16x2(o[4 * j + 2 * h] * factor, o[4 * j + 2 * h + 1] * factor);
  }
  transpose_quad(word);
  return make_uint4(word[0], word[1], word[2], word[3]);
}

// A warpgroup that multiplies. Params holds scale_log2: scale * log2(e).
template <class C, class Params>
struct Consumer {
  static constexpr int kOutputs = C::kValueColumns * 32;  // of a thread

  const Params& params;
  const Shared<C>& shared;
  int group;  // this warpgroup among the consumers
  Ring<C::kStages> key_ring, value_ring;

  // Left alone, the warpgroups fall into step: all products together, then all exponentials together, and the sum of
  // both times is what a block costs (measured: 2,800 cycles for three blocks of 512 and 490). Issuing in turn, one's
  // exponentials run beside the products of the others. Every warpgroup has a turn for each block of a tile, whether it
  // sees the block or not, so the turns go round.
  __device__ __forceinline__ void take_turn() const { asm volatile("bar.sync %0, 256;" ::"r"(4 + group) : "memory"); }
  __device__ __forceinline__ void pass_turn() const {
    asm volatile("bar.arrive %0, 256;" ::"r"(4 + C::after(group)) : "memory");
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
  __device__ __forceinline__ void release_queries() const { release(shared.queries_empty + group); }
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
    return swizzled_descriptor(shared.keys + key_ring.stage * Shared<C>::kKeyBytes);
  }
  __device__ __forceinline__ uint64_t values() const {
    return value_descriptor(shared.values + value_ring.stage * Shared<C>::kValueBytes);
  }

  // 64 rows of queries over the blocks of keys [first_block, end), from the last, which may hold the diagonal or end
  // behind kv_len, down to the first. Logits of block n are computed while the values of block n + 1 are summed, and
  // become weights meanwhile. mask_block(s, n) hides the keys of block n that a row does not see. Queries with barriers
  // are released when the last logits are there. o and softmax take the sums. kv_len stays where it lies and is read
  // again behind the wait.
  template <class MaskBlock>
  __device__ __forceinline__ void multiply(const uint8_t* queries, const int32_t& kv_len, int first_block, int end,
                                           const MaskBlock& mask_block, float (&o)[kOutputs], Softmax& softmax) {
    const float slack = kSlackLog2 / params.scale_log2;
    const uint64_t q = swizzled_descriptor(queries);
    float s[64], factor[2];
    uint32_t weights[8][4];
    softmax.reset();
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0;

    if (end * kKeys > kv_len) {
      wait_values();
      clear_values<C>(shared.values + value_ring.stage * Shared<C>::kValueBytes, kv_len - (end - 1) * kKeys, group);
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
    if (C::kQueryBarriers > 0 && end == first_block + 1) release_queries();
    mask_block(s, end - 1);
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
      if (C::kQueryBarriers > 0 && n == first_block) release_queries();
      mask_block(s, n);
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
  }
};

}  // namespace vayu::ops::prefill
