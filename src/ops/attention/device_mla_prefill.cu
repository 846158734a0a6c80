// Prompt attention over expanded latents, the loop of device_prefill_sm90.cuh for keys of 192 and values of 128: two
// warpgroups of 64 queries, blocks of 128 keys, the logits of one block computed beside the values of the one before,
// exponentials beside the products of the other warpgroup, in turns.
//
// What is particular to this one:
// - A block of keys is three columns of 64 dimensions: two of the head's own, and one rotated key that all heads share
//   and that is read from where it lies.
// - A block of 64 queries and 128 keys costs 768 cycles of the tensor cores for its logits and 512 for its values, and
//   some 500 issue slots of exponentials: the tensor cores are the bound. Shared memory comes next: the operands of
//   both warpgroups and the filling are 288 KiB a block, 2,304 cycles of 2,560.
// - Queries come through the copy engine as well, one buffer a warpgroup: it is free once the last logits of a tile are
//   computed, and the next tile's queries land beside the last values and the output.
// - Three warps feed, one each for keys, values and queries, so that none waits for room of another kind.
// - Every head has keys and values of its own, 1.8 MB at 3,584 tokens; the plan lets heads pass in groups that the
//   second-level cache holds.
//
// Shared memory: 2 stages of 48 KiB of keys and 32 of values, 2 x 24 KiB of queries, 208 KiB in all. Registers of a
// consumer: 64 logits, 64 outputs, 32 packed weights.
#include "ops/attention/device_mla_prefill_kernel.h"
#include "ops/attention/device_prefill_sm90.cuh"

namespace vayu::ops {
namespace {

using prefill::kGroupRows;
using prefill::kKeyColumnBytes;
using prefill::kKeys;
using prefill::kQueryColumnBytes;
using prefill::Softmax;

struct Config {
  static constexpr int kKeyColumns = 3;
  static constexpr int kColumns = 2;  // of values and outputs, as the functions of prompt attention know them
  static constexpr int kStages = 2;
  static constexpr int kConsumers = 2;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static constexpr int kKeyBytes = kKeyColumns * kKeyColumnBytes;
  static constexpr int kValueBytes = kColumns * kKeyColumnBytes;
  static constexpr int kQueryBytes = kKeyColumns * kQueryColumnBytes;
  static constexpr int kSharedBytes =
      1024 + kStages * (kKeyBytes + kValueBytes) + kConsumers * kQueryBytes + (4 * kStages + 2 * kConsumers) * 8 + 16;
  static constexpr int kFeederRegisters = 24, kConsumerRegisters = 240;
};
using C = Config;
using Ring = prefill::Ring<C::kStages>;
static_assert(kMlaPrefillTileTokens == C::kConsumers * kGroupRows);

struct MlaShared {
  uint8_t* keys;  // [stage][column][key]: rows of 128 bytes, swizzled
  uint8_t* values;
  uint8_t* queries;  // [consumer][column][row]
  uint64_t *keys_full, *keys_empty, *values_full, *values_empty;
  uint64_t *queries_full, *queries_empty;  // [consumer]
  float* spare;                            // see Softmax::settle

  __device__ explicit MlaShared(uint8_t* memory) {
    keys = memory + ((1024 - (shared_address(memory) & 1023)) & 1023);
    values = keys + C::kStages * C::kKeyBytes;
    queries = values + C::kStages * C::kValueBytes;
    keys_full = reinterpret_cast<uint64_t*>(queries + C::kConsumers * C::kQueryBytes);
    keys_empty = keys_full + C::kStages;
    values_full = keys_empty + C::kStages;
    values_empty = values_full + C::kStages;
    queries_full = values_empty + C::kStages;
    queries_empty = queries_full + C::kConsumers;
    spare = reinterpret_cast<float*>(queries_empty + C::kConsumers);
  }
  __device__ void init_barriers() const {
    for (int i = 0; i < C::kStages; ++i) {
      barrier_init(keys_full + i, 1);
      barrier_init(values_full + i, 1);
      barrier_init(keys_empty + i, 4 * C::kConsumers);  // one a warp
      barrier_init(values_empty + i, 4 * C::kConsumers);
    }
    for (int i = 0; i < C::kConsumers; ++i) {
      barrier_init(queries_full + i, 1);
      barrier_init(queries_empty + i, 4);
    }
    barrier_init_fence();
  }
};

// --- the feeding warps, a thread each

__device__ __forceinline__ void feed_keys(const MlaPrefillParams& params, const MlaPrefillMaps& maps,
                                          const MlaShared& shared) {
  Ring ring;
  for (int index = blockIdx.x; index >= 0;) {
    const MlaPrefillItem item = params.items[index];
    index = item.next;
#pragma unroll 1
    for (int n = item.num_blocks - 1; n >= 0; --n) {
      const int row = item.kv_first + n * kKeys;
      uint64_t* full = shared.keys_full + ring.stage;
      uint8_t* to = shared.keys + ring.stage * C::kKeyBytes;
      barrier_wait(shared.keys_empty + ring.stage, ring.parity ^ 1);
      barrier_arrive_expect(full, C::kKeyBytes);
      copy_tile(&maps.kv, full, to, item.head * 256, row, prefill::kEvictNormal);
      copy_tile(&maps.kv, full, to + kKeyColumnBytes, item.head * 256 + 128, row, prefill::kEvictNormal);
      copy_tile(&maps.rope, full, to + 2 * kKeyColumnBytes, 0, row, prefill::kEvictNormal);
      ring.advance();
    }
  }
}

__device__ __forceinline__ void feed_values(const MlaPrefillParams& params, const MlaPrefillMaps& maps,
                                            const MlaShared& shared) {
  Ring ring;
  for (int index = blockIdx.x; index >= 0;) {
    const MlaPrefillItem item = params.items[index];
    index = item.next;
    const int column = (params.num_heads + item.head) * 256;
#pragma unroll 1
    for (int n = item.num_blocks - 1; n >= 0; --n) {
      const int row = item.kv_first + n * kKeys;
      uint64_t* full = shared.values_full + ring.stage;
      uint8_t* to = shared.values + ring.stage * C::kValueBytes;
      barrier_wait(shared.values_empty + ring.stage, ring.parity ^ 1);
      barrier_arrive_expect(full, C::kValueBytes);
      copy_tile(&maps.kv, full, to, column, row, prefill::kEvictNormal);
      copy_tile(&maps.kv, full, to + kKeyColumnBytes, column + 128, row, prefill::kEvictNormal);
      ring.advance();
    }
  }
}

// Rows behind those of the row or of the batch are other queries or zeros: nothing of them is stored.
__device__ __forceinline__ void feed_queries(const MlaPrefillParams& params, const MlaPrefillMaps& maps,
                                             const MlaShared& shared) {
  uint32_t parity = 0;
  for (int index = blockIdx.x; index >= 0; parity ^= 1) {
    const MlaPrefillItem item = params.items[index];
    index = item.next;
#pragma unroll 1
    for (int group = 0; group < C::kConsumers; ++group) {
      uint64_t* full = shared.queries_full + group;
      barrier_wait(shared.queries_empty + group, parity ^ 1);
      barrier_arrive_expect(full, C::kQueryBytes);
#pragma unroll
      for (int column = 0; column < C::kKeyColumns; ++column) {
        copy_tile(&maps.q, full, shared.queries + group * C::kQueryBytes + column * kQueryColumnBytes,
                  item.head * 384 + column * 128, item.q_begin + item.first + group * kGroupRows,
                  prefill::kEvictNormal);
      }
    }
  }
}

// --- the consuming warpgroups

// s (64 rows, 128 keys) = q k^T, both K-major.
__device__ __forceinline__ void issue_logits(float (&s)[64], uint64_t q, uint64_t k) {
#pragma unroll
  for (int step = 0; step < C::kKeyColumns * 4; ++step) {
    const int column = step / 4;
    WgmmaBf16<kKeys>::run(s, q + column * (kQueryColumnBytes >> 4) + step % 4 * kDescriptorStep,
                          k + column * (kKeyColumnBytes >> 4) + step % 4 * kDescriptorStep, step != 0);
  }
}

// The thread has columns 8 j + 2 (t % 4) + {0, 1} of its two rows; after exchanges in fours, 16 bytes of a row.
__device__ __forceinline__ void store_rows(const MlaPrefillParams& params, const MlaPrefillItem& item, int first,
                                           const float (&o)[64], const Softmax& softmax) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float total = softmax.total(h);
    // No logit above -inf is 0 / 0.
    const float inverse = softmax.base[h] == __int_as_float(0xff800000) ? __int_as_float(0x7fc00000) : 1.0f / total;
    const int token = first + threadIdx.x % 128 / 32 * 16 + lane / 4 + 8 * h;
    Bf16* out =
        params.out + ((int64_t{item.q_begin} + token) * params.num_heads + item.head) * kMlaPrefillValue + lane % 4 * 8;
#pragma unroll
    for (int a = 0; a < 4; ++a) {
      uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = 4 * a + i;
        word[i] = pack_bf16x2(o[4 * j + 2 * h] * inverse, o[4 * j + 2 * h + 1] * inverse);
      }
      prefill::transpose_quad(word);
      if (token < item.q_len) *reinterpret_cast<uint4*>(out + 32 * a) = make_uint4(word[0], word[1], word[2], word[3]);
    }
  }
}

struct MlaConsumer {
  const MlaPrefillParams& params;
  const MlaShared& shared;
  int group;  // this warpgroup among the consumers
  Ring key_ring, value_ring;

  // Every warpgroup has a turn for each block of a tile, whether it sees the block or not, so the turns go round.
  __device__ __forceinline__ void take_turn() const { asm volatile("bar.sync %0, 256;" ::"r"(4 + group) : "memory"); }
  __device__ __forceinline__ void pass_turn() const {
    asm volatile("bar.arrive %0, 256;" ::"r"(4 + (group ^ 1)) : "memory");
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
    return swizzled_descriptor(shared.keys + key_ring.stage * C::kKeyBytes);
  }
  __device__ __forceinline__ uint64_t values() const {
    return prefill::value_descriptor(shared.values + value_ring.stage * C::kValueBytes);
  }

  // Tokens [first, first + 64) of the row over the blocks of keys below `end`, which may hold the diagonal, down to 0.
  // The queries are in place, and released when the last logits are there.
  __device__ __forceinline__ void run(const MlaPrefillItem& item, int first, int end) {
    const int cached = item.kv_len - item.q_len, last = item.q_len - 1;
    const int row = first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    const int fewest = cached + first + 1;  // keys that the first row sees
    const float slack = prefill::kSlackLog2 / params.scale_log2;
    const uint64_t q = swizzled_descriptor(shared.queries + group * C::kQueryBytes);
    float s[64], o[64], factor[2];
    uint32_t weights[8][4];
    Softmax softmax;
    softmax.reset();
#pragma unroll
    for (int i = 0; i < 64; ++i) o[i] = 0;

    const auto mask_block = [&](int n) {
      if ((n + 1) * kKeys <= fewest) return;
      const int limit[2] = {cached + min(row, last) + 1 - n * kKeys, cached + min(row + 8, last) + 1 - n * kKeys};
      prefill::mask(s, limit);
    };
    if (end * kKeys > item.kv_len) {
      wait_values();
      prefill::clear_values<C>(shared.values + value_ring.stage * C::kValueBytes, item.kv_len - (end - 1) * kKeys,
                               group);
    }
    wait_keys();
    take_turn();
    wgmma_fence();
    issue_logits(s, q, keys());
    wgmma_commit();
    pass_turn();
    wgmma_wait<0>();
    wgmma_pin(s);
    release_keys();
    if (end == 1) release_queries();
    mask_block(end - 1);
    softmax.raise(s, slack, params.scale_log2, factor);
    softmax.weigh(s, params.scale_log2);
    prefill::pack(weights, s);

    for (int n = end - 2; n >= 0; --n) {
      wait_keys();
      wgmma_pin(o);
      prefill::pin(weights);
      take_turn();
      wgmma_fence();
      issue_logits(s, q, keys());
      wgmma_commit();
      wait_values();
      wgmma_fence();
      prefill::issue_values<C>(o, weights, values());
      wgmma_commit();
      pass_turn();
      wgmma_wait<1>();
      wgmma_pin(s);
      release_keys();
      if (n == 0) release_queries();
      mask_block(n);
      const bool raised = softmax.raise(s, slack, params.scale_log2, factor);
      softmax.weigh(s, params.scale_log2);
      softmax.settle(shared_address(shared.spare));
      wgmma_wait<0>();
      wgmma_pin(o);
      prefill::pin(weights);
      release_values();
      if (raised) {
#pragma unroll
        for (int i = 0; i < 64; ++i) o[i] *= factor[i / 2 % 2];
      }
      prefill::pack(weights, s);
    }
    wait_values();
    wgmma_pin(o);
    prefill::pin(weights);
    wgmma_fence();
    prefill::issue_values<C>(o, weights, values());
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(o);
    prefill::pin(weights);
    release_values();
    store_rows(params, item, first, o, softmax);
  }
};

__device__ __forceinline__ void consume(const MlaPrefillParams& params, const MlaShared& shared) {
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128) - 1, 0);  // known to be uniform
  MlaConsumer consumer = {params, shared, group, {}, {}};
  if (group == C::kConsumers - 1) consumer.pass_turn();  // the first warpgroup begins
  uint32_t parity = 0;
  for (int index = blockIdx.x; index >= 0; parity ^= 1) {
    const MlaPrefillItem& item = params.items[index];
    index = item.next;
    const int first = item.first + group * kGroupRows;
    int end = 0;  // of the blocks that some row sees
    if (first < item.q_len) {
      end = (item.kv_len - item.q_len + min(first + kGroupRows, item.q_len) + kKeys - 1) / kKeys;
    }
    barrier_wait(shared.queries_full + group, parity);
#pragma unroll 1
    for (int n = item.num_blocks; n > end; --n) consumer.skip_block();
    if (end > 0) {
      consumer.run(item, first, end);
    } else {
      consumer.release_queries();
    }
  }
  if (group == 0) consumer.take_turn();  // the last pass: no barrier is left half full
}

__global__ void __launch_bounds__(C::kThreads, 1)
    mla_prefill_kernel(const MlaPrefillParams params, const __grid_constant__ MlaPrefillMaps maps) {
  extern __shared__ uint8_t memory[];
  const MlaShared shared(memory);
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  wait_for_inputs();
  let_next_start();
  if (threadIdx.x < 128) {
    give_registers<C::kFeederRegisters>();
    if (threadIdx.x == 0) feed_keys(params, maps, shared);
    if (threadIdx.x == 32) feed_values(params, maps, shared);
    if (threadIdx.x == 64) feed_queries(params, maps, shared);
  } else {
    take_registers<C::kConsumerRegisters>();
    consume(params, shared);
  }
}

}  // namespace

void launch_mla_prefill(CudaStream stream, int32_t num_blocks, const MlaPrefillParams& params,
                        const MlaPrefillMaps& maps) {
  launch_overlapped(mla_prefill_kernel,
                    {.grid = dim3(num_blocks), .block = dim3(C::kThreads), .shared_bytes = C::kSharedBytes}, stream,
                    params, maps);
}

}  // namespace vayu::ops
