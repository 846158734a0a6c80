#!/usr/bin/env bash
# The kernel table and the times of whole steps, on a machine with a Hopper GPU, from the root of the tree after
# tools/gpu_pack.sh:
#   tools/gpu_kernels.sh kernels   PyTorch baseline, then `vayu bench kernels` beside it (BASELINE=FILE: one made before;
#                                  COMPILE=none, prefill or all: for which shapes torch.compile is tried, a minute each)
#   tools/gpu_kernels.sh steps     `vayu bench steps`: decode at 1, 32 and 64 rows, one prompt of 3,584 tokens
#   tools/gpu_kernels.sh profile   `vayu profile`: kernels of such steps through CUPTI
#   tools/gpu_kernels.sh           all of it
# Tables and JSON go to $OUT (default build-gpu/out), files for bench/results/ among them; COMMIT names the commit.
set -uo pipefail
cd "$(dirname "$0")/.."
. tools/gpu_env.sh
DTYPES=${DTYPES:-fp8 bf16}
VAYU=build-gpu/bin/vayu
failed=0

flags_of() { [ "$1" = fp8 ] && echo --quantization fp8 --kv-cache-dtype fp8 || echo --dtype bfloat16 --kv-cache-dtype bf16; }

kernels() {
  local baseline=${BASELINE:-$OUT/layer_baseline.json}
  [ -n "${BASELINE:-}" ] || (unset LD_LIBRARY_PATH && python3 tools/bench_layer_baseline.py --tokens 3584 \
    --decode 1,32,64 --compile "${COMPILE:-prefill}" --json "$baseline" 2>"$OUT/layer_baseline.log") || { failed=1; tail -20 "$OUT/layer_baseline.log"; }
  local with=()
  [ -f "$baseline" ] && with=(--baseline "$baseline")
  for dtype in $DTYPES; do
    $VAYU bench kernels --tokens 3584 --decode 1,32,64 --dtype "$dtype" "${with[@]}" --json "$OUT/kernels_$dtype.json" \
      2>&1 | tee "$OUT/kernels_$dtype.txt" || failed=1
  done
}

steps() {
  for dtype in $DTYPES; do
    $VAYU bench steps --model sarvam-30b --load-format dummy $(flags_of "$dtype") --decode 1,32,64 --context 3650 \
      --prefill 3584 --json "$OUT/steps_$dtype.json" 2>&1 | tee "$OUT/steps_$dtype.txt" || failed=1
  done
}

profile() {
  $VAYU profile --model sarvam-30b --load-format dummy $(flags_of fp8) --decode 32 --context 3650 --prompts 512 \
    --steps 4 --trace "$OUT/profile_mixed.trace.json" 2>&1 | tee "$OUT/profile_mixed.txt" || failed=1
  $VAYU profile --model sarvam-30b --load-format dummy $(flags_of fp8) --decode 32 --context 3650 --steps 4 \
    --trace "$OUT/profile_decode.trace.json" 2>&1 | tee "$OUT/profile_decode.txt" || failed=1
  $VAYU profile --model sarvam-30b --load-format dummy $(flags_of fp8) --prompts 3584 --steps 2 \
    --trace "$OUT/profile_prompt.trace.json" 2>&1 | tee "$OUT/profile_prompt.txt" || failed=1
}

case "${1:-all}" in
  kernels) kernels ;;
  steps) steps ;;
  profile) profile ;;
  all) kernels; steps; profile ;;
esac
python3 tools/gpu_results.py "$OUT" || failed=1
exit $failed
