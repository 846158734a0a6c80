#!/usr/bin/env python3
"""Writes src/ops/cuda/wgmma.cuh: wrappers of wgmma.mma_async (PTX ISA 8.0, section "Asynchronous Warpgroup Level Matrix").

python3 tools/make_wgmma.py > src/ops/cuda/wgmma.cuh && clang-format -i src/ops/cuda/wgmma.cuh
"""

HEAD = """// Written by tools/make_wgmma.py. Products of one warpgroup: d (64, N) += a (64, K) b (N, K)^T, float accumulators.
// K is 32 elements of E4M3 or 16 of BF16 (32 bytes). a and b are shared memory descriptors (sm90.cuh) of K-major tiles;
// WgmmaBf16Rs takes a from registers and b either way (kTransposeB: N-major). d: thread t of the warpgroup holds, in
// d[4 j + 2 h + c], row 16 (t / 32) + (t % 32) / 4 + 8 h and column 8 j + 2 (t % 4) + c. accumulate == 0 ignores the old d.
#pragma once

#include <cstdint>

namespace vayu::ops {

template <int N>
struct WgmmaF8;
template <int N>
struct WgmmaBf16;
template <int N>
struct WgmmaBf16Rs;
"""

SIZES = [8, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192]  # that kernels use
RS_SIZES = [64, 128, 256]


def operands(n):
    return ", ".join(f'"+f"(d[{i}])' for i in range(n // 2))


def registers(n):
    return ", ".join(f"%{i}" for i in range(n // 2))


def shared(name, n, kind, suffix):
    f = n // 2
    return f"""template <>
struct {name}<{n}> {{
  static __device__ __forceinline__ void run(float (&d)[{f}], uint64_t a, uint64_t b, int accumulate) {{
    asm volatile(
        "{{.reg .pred p; setp.ne.b32 p, %{f + 2}, 0; wgmma.mma_async.sync.aligned.m64n{n}{kind} {{{registers(n)}}}, %{f}, %{f + 1}, p, {suffix};}}"
        : {operands(n)}
        : "l"(a), "l"(b), "r"(accumulate));
  }}
}};
"""


def from_registers(n):
    f = n // 2
    return f"""template <>
struct WgmmaBf16Rs<{n}> {{
  template <int kTransposeB>
  static __device__ __forceinline__ void run(float (&d)[{f}], const uint32_t (&a)[4], uint64_t b, int accumulate) {{
    asm volatile(
        "{{.reg .pred p; setp.ne.b32 p, %{f + 5}, 0; wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{{registers(n)}}}, {{%{f}, %{f + 1}, %{f + 2}, %{f + 3}}}, %{f + 4}, p, 1, 1, %{f + 6};}}"
        : {operands(n)}
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransposeB));
  }}
}};
"""


print(HEAD)
for n in SIZES:
    print(shared("WgmmaF8", n, "k32.f32.e4m3.e4m3", "1, 1"))
for n in SIZES:
    print(shared("WgmmaBf16", n, "k16.f32.bf16.bf16", "1, 1, 0, 0"))
for n in RS_SIZES:
    print(from_registers(n))
print("}  // namespace vayu::ops")
