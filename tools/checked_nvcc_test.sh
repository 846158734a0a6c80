#!/usr/bin/env bash
# Test of tools/checked_nvcc.sh: tools/checked_nvcc_test.sh NVCC
set -euo pipefail
checked=$(cd "$(dirname "$0")" && pwd)/checked_nvcc.sh
export CCACHE_DIR
unset CCACHE_DISABLE
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
CCACHE_DIR=$dir/ccache

echo '__global__ void plain(int* p) { *p = 1; }' >plain.cu
echo '__global__ void wrong(int* p) { *p = q; }' >wrong.cu
# An accumulator is touched while its product is under way.
cat >serialised.cu <<'CU'
__global__ void serialised(float* out, unsigned long a, unsigned long b, int steps) {
  float d[4] = {};
  for (int i = 0; i < steps; ++i) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a + i), "l"(b + i));
    d[0] += 1.0f;
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = d[i];
}
CU
# 128 values in the 32 registers that two blocks of 1,024 threads leave each.
cat >spilled.cu <<'CU'
__global__ void __launch_bounds__(1024, 2) spilled(float* p) {
  float v[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) v[i] = p[i * 4096 + threadIdx.x];
#pragma unroll
  for (int i = 0; i < 128; ++i) v[i] = v[i] * v[(i * 37 + 11) % 128] + v[127 - i];
#pragma unroll
  for (int i = 0; i < 128; ++i) p[i * 4096 + threadIdx.x] = v[i];
}
CU

# expect EXIT OBJECT(yes, no) TEXT COMMAND...
expect() {
  local want=$1 object=$2 text=$3 got=0 left=no
  shift 3
  rm -f x.o
  "$checked" "$@" -o x.o >log 2>&1 || got=$?
  [ ! -f x.o ] || left=yes
  if [ $got = "$want" ] && [ $left = "$object" ] && { [ -z "$text" ] || grep -q -- "$text" log; }; then return; fi
  echo "FAILED ($*): exit $got, wanted $want; object $left, wanted $object; wanted '$text' in:" && cat log && exit 1
}
compile=("${1:-nvcc}" -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -Xptxas --warn-on-spills -c)
expect 0 yes "" "${compile[@]}" plain.cu
expect 2 no "identifier \"q\" is undefined" "${compile[@]}" wrong.cu
expect 1 no "serialised.cu: .*are serialized" "${compile[@]}" serialised.cu
expect 1 no "stores [0-9]* bytes of registers to memory, 16 are allowed" "${compile[@]}" spilled.cu
if command -v ccache >/dev/null; then
  for _ in compiled replayed; do expect 1 no "are serialized" ccache "${compile[@]}" serialised.cu; done
  ccache -s | grep -qE 'Hits: *1 ' || { echo "FAILED: nothing was replayed" && ccache -s && exit 1; }
fi
echo passed
