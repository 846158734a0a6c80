#!/usr/bin/env bash
# Builds the CUDA tests and the binary, and packs them with the libraries they need into build-gpu/pack.tar.xz (17 MB), for
# a machine with a GPU that has none of our build packages. There: tools/gpu.sh --packed, or single steps, from the root of the tree.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/build.sh build ops_cuda_test model_cuda_test engine_cuda_test vayu -- -DVAYU_TESTS=ON
rm -rf build-gpu
mkdir -p build-gpu/lib build-gpu/bin
binaries=(build/src/ops/ops_cuda_test build/src/model/model_cuda_test build/src/engine/engine_cuda_test build/apps/vayu)
for binary in "${binaries[@]}"; do strip -o "build-gpu/bin/$(basename "$binary")" "$binary"; done
ldd "${binaries[@]}" | awk '/=>/ {print $3}' | sort -u | grep -vE '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so' |
  xargs -I{} cp -L {} build-gpu/lib/
cp -L /usr/local/cuda/lib64/libcupti.so.13 build-gpu/lib/ 2>/dev/null || true  # opened by name: vayu profile
g++ -std=c++20 -O1 -shared -fPIC -I/usr/local/cuda/include tools/gpu_fault.cc -o build-gpu/lib/gpu_fault.so -ldl
git describe --always --dirty >build-gpu/bin/commit
tar -C build-gpu -cf - bin lib | xz -T0 -2 >build-gpu/pack.tar.xz
rm -rf build-gpu/bin build-gpu/lib
ls -l build-gpu/pack.tar.xz
