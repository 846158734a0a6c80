// Prompt attention over expanded latents, the loop of device_prefill_loop.cuh for keys of 192 and values of 128: two
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
#include "ops/attention/device_prefill_loop.cuh"
#include "ops/cuda/launch.cuh"

namespace vayu::ops {
namespace {

using prefill::kGroupRows;
using prefill::kKeyColumnBytes;
using prefill::kKeys;
using prefill::kQueryColumnBytes;

struct Config {
  static constexpr int kKeyColumns = 3;
  static constexpr int kValueColumns = 2;
  static constexpr int kStages = 2;
  static constexpr int kConsumers = 2;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static constexpr int kQueryBuffers = kConsumers;
  static constexpr int kQueryBarriers = kConsumers;
  static constexpr int kFeederRegisters = 24, kConsumerRegisters = 240;
  static __device__ int after(int consumer) { return consumer ^ 1; }
};
using C = Config;
using Ring = prefill::Ring<C::kStages>;
using Shared = prefill::Shared<C>;
static_assert(kMlaPrefillTileTokens == C::kConsumers * kGroupRows);

// --- the feeding warps, a thread each

__device__ __forceinline__ void feed_keys(const MlaPrefillParams& params, const MlaPrefillMaps& maps,
                                          const Shared& shared) {
  Ring ring;
  for (int index = blockIdx.x; index >= 0;) {
    const MlaPrefillItem item = params.items[index];
    index = item.next;
#pragma unroll 1
    for (int n = item.num_blocks - 1; n >= 0; --n) {
      const int row = item.kv_first + n * kKeys;
      uint64_t* full = shared.keys_full + ring.stage;
      uint8_t* to = shared.keys + ring.stage * Shared::kKeyBytes;
      barrier_wait(shared.keys_empty + ring.stage, ring.parity ^ 1);
      barrier_arrive_expect(full, Shared::kKeyBytes);
      copy_tile(&maps.kv, full, to, item.head * 256, row, prefill::kEvictNormal);
      copy_tile(&maps.kv, full, to + kKeyColumnBytes, item.head * 256 + 128, row, prefill::kEvictNormal);
      copy_tile(&maps.rope, full, to + 2 * kKeyColumnBytes, 0, row, prefill::kEvictNormal);
      ring.advance();
    }
  }
}

__device__ __forceinline__ void feed_values(const MlaPrefillParams& params, const MlaPrefillMaps& maps,
                                            const Shared& shared) {
  Ring ring;
  for (int index = blockIdx.x; index >= 0;) {
    const MlaPrefillItem item = params.items[index];
    index = item.next;
    const int column = (params.num_heads + item.head) * 256;
#pragma unroll 1
    for (int n = item.num_blocks - 1; n >= 0; --n) {
      const int row = item.kv_first + n * kKeys;
      uint64_t* full = shared.values_full + ring.stage;
      uint8_t* to = shared.values + ring.stage * Shared::kValueBytes;
      barrier_wait(shared.values_empty + ring.stage, ring.parity ^ 1);
      barrier_arrive_expect(full, Shared::kValueBytes);
      copy_tile(&maps.kv, full, to, column, row, prefill::kEvictNormal);
      copy_tile(&maps.kv, full, to + kKeyColumnBytes, column + 128, row, prefill::kEvictNormal);
      ring.advance();
    }
  }
}

// Rows behind those of the row or of the batch are other queries or zeros: nothing of them is stored.
__device__ __forceinline__ void feed_queries(const MlaPrefillParams& params, const MlaPrefillMaps& maps,
                                             const Shared& shared) {
  uint32_t parity = 0;
  for (int index = blockIdx.x; index >= 0; parity ^= 1) {
    const MlaPrefillItem item = params.items[index];
    index = item.next;
#pragma unroll 1
    for (int group = 0; group < C::kConsumers; ++group) {
      uint64_t* full = shared.queries_full + group;
      barrier_wait(shared.queries_empty + group, parity ^ 1);
      barrier_arrive_expect(full, Shared::kQueryBytes);
#pragma unroll
      for (int column = 0; column < C::kKeyColumns; ++column) {
        copy_tile(&maps.q, full, shared.queries + group * Shared::kQueryBytes + column * kQueryColumnBytes,
                  item.head * 384 + column * 128, item.q_begin + item.first + group * kGroupRows,
                  prefill::kEvictNormal);
      }
    }
  }
}

// --- the consuming warpgroups

__device__ __forceinline__ void store_rows(const MlaPrefillParams& params, const MlaPrefillItem& item, int first,
                                           const float (&o)[C::kValueColumns * 32], const prefill::Softmax& softmax) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float inverse = softmax.inverse_total(h);
    const int token = first + threadIdx.x % 128 / 32 * 16 + lane / 4 + 8 * h;
    Bf16* out =
        params.out + ((int64_t{item.q_begin} + token) * params.num_heads + item.head) * kMlaPrefillValue + lane % 4 * 8;
#pragma unroll
    for (int a = 0; a < 4; ++a) {
      const uint4 piece = prefill::row_piece(o, h, a, inverse);
      if (token < item.q_len) *reinterpret_cast<uint4*>(out + 32 * a) = piece;
    }
  }
}

struct MlaConsumer : prefill::Consumer<C, MlaPrefillParams> {
  // Tokens [first, first + 64) of the row over the blocks of keys below `end`. The queries are in place.
  __device__ __forceinline__ void run(const MlaPrefillItem& item, int first, int end) {
    const int cached = item.kv_len - item.q_len, last = item.q_len - 1;
    const int row = first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    const int fewest = cached + first + 1;  // keys that the first row sees
    const auto mask_block = [&](float(&s)[64], int n) {
      if ((n + 1) * kKeys <= fewest) return;
      const int limit[2] = {cached + min(row, last) + 1 - n * kKeys, cached + min(row + 8, last) + 1 - n * kKeys};
      prefill::mask(s, limit);
    };
    float o[kOutputs];
    prefill::Softmax softmax;
    multiply(shared.queries + group * Shared::kQueryBytes, item.kv_len, 0, end, mask_block, o, softmax);
    store_rows(params, item, first, o, softmax);
  }
};

__device__ __forceinline__ void consume(const MlaPrefillParams& params, const Shared& shared) {
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128) - 1, 0);  // known to be uniform
  MlaConsumer consumer = {{params, shared, group, {}, {}}};
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
  const Shared shared(memory);
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
                    {.grid = dim3(num_blocks), .block = dim3(C::kThreads), .shared_bytes = Shared::kBytes}, stream,
                    params, maps);
}

}  // namespace vayu::ops
