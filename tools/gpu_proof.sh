#!/usr/bin/env bash
# The proof of the CUDA backend, on a machine with a Hopper GPU, from the root of the tree after tools/gpu_pack.sh:
#   tools/gpu_proof.sh tests       every op against its reference and whole models against oracle and CPU, in parallel
#   tools/gpu_proof.sh sanitize    the same under compute-sanitizer (memcheck; racecheck for shared memory)
#   tools/gpu_proof.sh speed       the time of every op beside its ceiling
# Logs go to $OUT (default build-gpu/out).
set -uo pipefail
cd "$(dirname "$0")/.."
[ -d build-gpu/bin ] && [ ! build-gpu/pack.tar.xz -nt build-gpu/bin ] || { tar -C build-gpu -xJf build-gpu/pack.tar.xz && touch build-gpu/bin; }
export LD_LIBRARY_PATH=$PWD/build-gpu/lib VAYU_SOURCE_DIR=$PWD
OUT=${OUT:-build-gpu/out}
mkdir -p "$OUT"
failed=0

# shards NAME COUNT COMMAND...: a gtest binary in COUNT processes at once; prints failures and the sum.
shards() {
  local name=$1 count=$2
  shift 2
  local pids=()
  for ((i = 0; i < count; ++i)); do
    GTEST_TOTAL_SHARDS=$count GTEST_SHARD_INDEX=$i "$@" >"$OUT/$name.$i.log" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  cat "$OUT/$name".*.log >"$OUT/$name.log"
  rm -f "$OUT/$name".[0-9]*.log
  grep -hE "Failure|FAILED  |check failed|ERROR SUMMARY: [1-9]|Expected|MODEL|actual" "$OUT/$name.log" | head -80
  echo "$name: $(grep -c '       OK ' "$OUT/$name.log") passed, $(grep -c '^\[  FAILED  \] .* ms)' "$OUT/$name.log") failed"
}

case "${1:-tests}" in
  tests)
    shards ops 12 build-gpu/bin/ops_cuda_test --gtest_filter="${2:-*}"
    shards model 6 build-gpu/bin/model_cuda_test
    shards engine 2 build-gpu/bin/engine_cuda_test
    ;;
  sanitize)
    shards memcheck 12 compute-sanitizer --tool memcheck --error-exitcode 1 build-gpu/bin/ops_cuda_test --gtest_filter="${2:-*}"
    ;;
  speed)
    VAYU_SPEED=1 build-gpu/bin/ops_cuda_test --gtest_filter="${2:-*}Speed*" >"$OUT/speed.log" 2>&1 || failed=1
    grep -E "SPEED|Failure" "$OUT/speed.log"
    ;;
esac
exit $failed
