// Hopper's own instructions: mbarriers, the bulk tensor copy engine, shared memory descriptors, wgmma ordering
// (PTX ISA 8.0). Needs sm_90a.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace vayu::ops {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// --- mbarrier
// ---------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// After the inits, before anyone else (the copy engine, other blocks of the cluster) uses them; then a block barrier.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void barrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// Waits until the phase with this parity has completed; a fresh barrier is in phase 0, so parity 1 returns at once.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finish;\n"
      "bra again;\n"
      "finish:\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
// The barrier is arrived at, without counting one more, when this thread's cp.async so far have landed.
__device__ __forceinline__ void barrier_arrive_on_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// --- copies
// -----------------------------------------------------------------------------------------------------------

// 16 bytes, global to shared; `bytes` of them read (0 or 16), the rest zeroed.
__device__ __forceinline__ void copy_async16(uint32_t shared, const void* global, uint32_t bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

constexpr uint64_t kEvictFirst = 0x12F0000000000000;  // createpolicy encodings of L2: weights stream, activations stay
constexpr uint64_t kEvictLast = 0x14F0000000000000;

// One box of a 2-D tensor map, columns first, completing on `barrier`.
__device__ __forceinline__ void copy_tile(const CUtensorMap* map, uint64_t* barrier, void* shared, int32_t column,
                                          int32_t row, uint64_t cache_policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4}], "
      "[%2], %5;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "l"(cache_policy)
      : "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// Shared memory written by ordinary stores, before the copy engine or the tensor cores read it (then a barrier).
__device__ __forceinline__ void fence_shared_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- wgmma
// ------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving uses of accumulators across wgmma_wait.
template <int kCount>
__device__ __forceinline__ void wgmma_pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// A K-major tile of rows of 128 bytes in the 128-byte swizzle (what a tensor map with SWIZZLE_128B writes): the 16-byte
// chunk c of row r lies at r * 128 + ((c ^ (r % 8)) * 16). The tile starts at a multiple of 1024 bytes. Groups of 8
// rows are 1024 bytes apart. A step of 32 bytes along K adds 32 to the address: kDescriptorStep to the descriptor.
__device__ __forceinline__ uint64_t swizzled_descriptor(const void* tile) {
  const uint64_t address = (shared_address(tile) & 0x3FFFF) >> 4;
  return address | (uint64_t{1} << 16) | (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 62);
}
constexpr uint64_t kDescriptorStep = 32 >> 4;

__device__ __forceinline__ uint32_t swizzled_offset(uint32_t row, uint32_t chunk) {
  return row * 128 + ((chunk ^ (row & 7)) << 4);
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// --- clusters
// ---------------------------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// The same place in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ uint32_t remote_address(const void* shared, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(shared)), "r"(rank));
  return address;
}
__device__ __forceinline__ float load_remote(uint32_t address) {
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
  return v;
}

}  // namespace vayu::ops
