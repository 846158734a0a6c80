#!/usr/bin/env bash
# Builds build-call/flashinfer_peer.so for bench/peers.py from the headers of a FlashInfer wheel (from PyPI, unless its path
# is given), for sm_90a: 7 MB of headers and CUTLASS, no PyTorch and no GPU. Several minutes on one core.
#   bench/flashinfer/build.sh [WHEEL]
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/pins.sh
folder=build-call/flashinfer
mkdir -p "$folder"
wheel=${1:-}
if [ -z "$wheel" ]; then
  wheel=$folder/flashinfer_python-${PEER_FLASHINFER#*==}-py3-none-any.whl
  [ -f "$wheel" ] || python3 -m pip download -q --no-deps -d "$folder" "$PEER_FLASHINFER"
fi
[ -d "$folder/flashinfer/data/include" ] || python3 - "$wheel" "$folder" <<'PYTHON'
import sys, zipfile
wanted = tuple("flashinfer/data/" + part for part in ("include/", "cutlass/include/", "cutlass/tools/util/include/", "cccl/"))
with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if name.startswith(wanted)])
PYTHON
data=$folder/flashinfer/data
flags=(-std=c++17 -O3 -DNDEBUG -use_fast_math -gencode=arch=compute_90a,code=sm_90a -Xcompiler -fPIC -Xfatbin=-compress-all
  --expt-relaxed-constexpr -DFLASHINFER_ENABLE_F16 -DFLASHINFER_ENABLE_BF16 -DFLASHINFER_ENABLE_FP8_E4M3
  -DFLASHINFER_ENABLE_FP8_E5M2 -DFLASHINFER_ENABLE_FP8_E8M0 -DFLASHINFER_ENABLE_FP4_E2M1 -DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED
  -I"$data/include" -I"$data/cutlass/include" -I"$data/cutlass/tools/util/include"
  -I"$data/cccl/cub" -I"$data/cccl/libcudacxx/include" -I"$data/cccl/thrust" -w)
compile() { # name source flags...
  [ "$folder/$1.o" -nt "bench/flashinfer/$2" ] && [ "$folder/$1.o" -nt bench/flashinfer/peer.h ] && return
  echo "$1"
  nvcc "${flags[@]}" "${@:3}" -c "bench/flashinfer/$2" -o "$folder/$1.o"
}
compile fa2_bf16 fa2.cu
compile fa3 fa3.cu
compile fa2_f8 fa2.cu -DPEER_F8
compile mla_bf16 mla.cu
compile mla_f8 mla.cu -DPEER_F8
nvcc -shared -o build-call/flashinfer_peer.so "$folder"/*.o # the runtime linked in: one file travels
ls -l build-call/flashinfer_peer.so
