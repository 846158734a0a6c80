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
#include "ops/attention/device_prefill_loop.cuh"
#include "ops/cuda/divide.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/sm90.cuh"

namespace vayu::ops {
namespace prefill {

constexpr int kPageSize = 16;
constexpr int kPages = kKeys / kPageSize;

template <int kHeadDim>
struct Config {
  static constexpr int kConsumers = kHeadDim == 64 ? 3 : 2;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static constexpr int kStages = kHeadDim == 64 ? 5 : 2;
  static constexpr int kColumns = kHeadDim / 64;
  static constexpr int kKeyColumns = kColumns, kValueColumns = kColumns;
  static constexpr int kQueryBuffers = 2 * kConsumers;  // this item's and the next one's
  static constexpr int kQueryBarriers = 0;
  static constexpr int kFeederRegisters = kHeadDim == 64 ? 32 : 24;
  static constexpr int kConsumerRegisters = kHeadDim == 64 ? 160 : 240;
  static __device__ int after(int consumer) { return consumer + 1 == kConsumers ? 0 : consumer + 1; }
};

__device__ __forceinline__ int token_of(const PrefillParams& params, int packed_row) {
  return divide(packed_row, params.group_reciprocal);
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
      const int offset = ring.stage * Shared<C>::kKeyBytes + column * kKeyColumnBytes + page * kPageSize * 128;
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

template <class C>
__device__ __forceinline__ void store_rows(const PrefillParams& params, const PrefillItem& item, int first,
                                           const float (&o)[C::kColumns * 32], const Softmax& softmax) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float inverse = softmax.inverse_total(h);
    const int row = first + threadIdx.x % 128 / 32 * 16 + lane / 4 + 8 * h;
    const int token = token_of(params, row);
    const int64_t q_row = int64_t{item.q_begin + token} * params.num_kv_heads * params.group +
                          item.head * params.group + (row - token * params.group);
    Bf16* out = params.out + q_row * (C::kColumns * 64);
#pragma unroll
    for (int a = 0; a < C::kColumns * 2; ++a) {
      const uint4 piece = row_piece(o, h, a, inverse);
      if (token < item.q_len) *reinterpret_cast<uint4*>(out + (4 * a + lane % 4) * 8) = piece;
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
struct PrefillConsumer : Consumer<C, PrefillParams> {
  using Base = Consumer<C, PrefillParams>;
  using Base::group, Base::params;

  // Rows [first, first + 64) of the tile over the item's blocks of keys below `end`, down to its first.
  __device__ __forceinline__ void run(const PrefillItem& item, int first, int end, const uint8_t* queries) {
    const int cached = item.kv_len - item.q_len, last_row = item.q_len * params.group - 1;
    const int first_block = item.first_block;
    const int row = first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    const int fewest = cached + token_of(params, first) + 1;  // keys that the first row sees
    const auto mask_block = [&](float(&s)[64], int n) {
      if ((n + 1) * kKeys <= fewest) return;
      const int limit[2] = {cached + token_of(params, min(row, last_row)) + 1 - n * kKeys,
                            cached + token_of(params, min(row + 8, last_row)) + 1 - n * kKeys};
      mask(s, limit);
    };
    float o[Base::kOutputs];
    Softmax softmax;
    Base::multiply(queries, item.kv_len, first_block, end, mask_block, o, softmax);
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
  uint8_t* buffers = shared.queries + group * 2 * Shared<C>::kQueryBytes;
  PrefillConsumer<C> consumer = {{params, shared, group, {}, {}}};
  if (group == C::kConsumers - 1) consumer.pass_turn();  // the first warpgroup begins
  int index = blockIdx.x;
  load_queries<C>(params, index, group, buffers);
  for (int round = 0; index >= 0; ++round) {
    const PrefillItem& item = params.items[index];
    uint8_t* queries = buffers + (round & 1) * Shared<C>::kQueryBytes;
    // This item's queries, loaded by all threads during the last one, are in place; the other buffer is free, because
    // everyone here is through with the last item.
    copy_async_commit();
    copy_async_wait<0>();
    fence_shared_for_async();
    sync_group(group);
    index = item.next;
    if (index >= 0) load_queries<C>(params, index, group, buffers + (~round & 1) * Shared<C>::kQueryBytes);
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
                    {.grid = dim3(blocks), .block = dim3(C::kThreads), .shared_bytes = prefill::Shared<C>::kBytes},
                    stream, params, map);
}

}  // namespace vayu::ops
