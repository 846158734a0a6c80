#!/usr/bin/env bash
# The proof of the CUDA backend, on a machine with a Hopper GPU, from the root of the tree after tools/gpu_pack.sh:
#   tools/gpu_proof.sh tests [FILTER]     every op against its reference and whole models against oracle and CPU
#   tools/gpu_proof.sh sanitize [FILTER]  under compute-sanitizer, at smaller sizes: memcheck, then racecheck for the ops; 5 min. What is
#                                         left out, and why: NOT_RACED and ALONE in tools/gpu_tests.py, by name in the results
#   tools/gpu_proof.sh fault              a device that is lost under load: requests fail with the reason, the process ends; 30 s
#   tools/gpu_proof.sh speed [FILTER]     the time of every op beside its ceiling
# Logs and counts go to $OUT (default build-gpu/out); tools/gpu_results.py makes h200_proof.json of the counts.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tools/gpu_env.sh || exit
failed=0
case "${1:-tests}" in
  tests | sanitize) python3 tools/gpu_tests.py "${1:-tests}" "${@:2}" || failed=$? ;;
  fault) python3 tools/gpu_fault.py || failed=$? ;;
  speed)
    VAYU_SPEED=1 build-gpu/bin/ops_cuda_test --gtest_filter="${2:-*}Speed*" >"$OUT/speed.log" 2>&1 || failed=$?
    grep -E "SPEED|Failure" "$OUT/speed.log"
    grep -q "^SPEED" "$OUT/speed.log" || failed=1 # skipped, or not a test
    ;;
  *) sed -n '2,8p' "$0"; exit 2 ;;
esac
python3 tools/gpu_results.py "$OUT" || failed=1
exit $failed
