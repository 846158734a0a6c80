#!/usr/bin/env bash
# Builds llama.cpp's server from the PyPI source package of llama-cpp-python with native flags, to compare with in one run.
#   tools/build_llama_cpp.sh [DIR]     prints the path of llama-server
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/pins.sh
dir=${1:-.cache/llama.cpp}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
server=$dir/build/bin/llama-server
if [ ! -x "$server" ]; then
  {
    python3 -m pip download -q --no-deps --no-binary :all: -d "$dir" "$PEER_LLAMA_CPP"
    tar -xzf "$dir"/llama_cpp_python-*.tar.gz -C "$dir"
    cmake -S "$dir"/llama_cpp_python-*/vendor/llama.cpp -B "$dir/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
      -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF
    ninja -C "$dir/build" llama-server llama-bench
  } >&2
fi
echo "$server"
