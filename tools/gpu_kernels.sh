#!/usr/bin/env bash
# The kernel table and the times of whole steps, on a machine with a Hopper GPU, from the root of the tree after
# tools/gpu_pack.sh:
#   tools/gpu_kernels.sh kernels   PyTorch baseline, then `vayu bench kernels` beside it (BASELINE=FILE: one made before;
#                                  COMPILE=none, prefill or all: for which shapes torch.compile is tried, a minute each)
#   tools/gpu_kernels.sh steps     `vayu bench steps` of sarvam-30b in FP8 and BF16 and of sarvam-105b in FP8: decode at 1, 8, 32
#                                  and 64 (105b: 1 and 8) rows, one prompt of 3,584 tokens; of 105b also with absorbed prompts
#   tools/gpu_kernels.sh profile   `vayu profile`: kernels of such steps through CUPTI, and of a server's under 32 conversations
#   tools/gpu_kernels.sh           all of it
# Tables and JSON go to $OUT (default build-gpu/out), files for bench/results/ among them; COMMIT names the commit.
# DTYPES=fp8 leaves BF16 out.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tools/gpu_env.sh || exit
DTYPES=${DTYPES:-fp8 bf16}
VAYU=build-gpu/bin/vayu
failed=0 server='' load=''

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

# NAME MODEL FLAGS...: one file of steps.
some_steps() {
  $VAYU bench steps --model "$2" --load-format dummy "${@:3}" --context 3650 --prefill 3584 --json "$OUT/steps_$1.json" \
    2>&1 | tee "$OUT/steps_$1.txt" || failed=1
}

steps() {
  for dtype in $DTYPES; do some_steps "$dtype" sarvam-30b $(flags_of "$dtype") --decode 1,8,32,64; done
  some_steps 105b_fp8 sarvam-105b $(flags_of fp8) --decode 1,8
  some_steps 105b_fp8_absorbed sarvam-105b $(flags_of fp8) --mla-attention absorbed --decode 8
}

# NAME MODEL FLAGS...: one profile.
some_profile() {
  $VAYU profile --model "$2" --load-format dummy $(flags_of fp8) "${@:3}" --trace "$OUT/profile_$1.trace.json" \
    --json "$OUT/profile_$1.json" 2>&1 | tee "$OUT/profile_$1.txt" || failed=1
}

# Steps of a server: PORT.
serving_profile() {
  local url=http://127.0.0.1:$1 begin=$SECONDS
  $VAYU serve sarvam-30b --load-format dummy $(flags_of fp8) --max-num-seqs 32 --max-model-len 8192 --max-num-batched-tokens 1280 \
    --disable-prefix-cache --enable-profiling --log-level warn --port "$1" >"$OUT/profile_serving.log" 2>&1 &
  server=$!
  trap 'kill $server $load 2>/dev/null' EXIT # what is interrupted leaves no server
  until python3 -c "import urllib.request; urllib.request.urlopen('$url/ready', timeout=2)" 2>/dev/null; do
    if ! kill -0 $server 2>/dev/null || [ $((SECONDS - begin)) -gt 120 ]; then break; fi
    sleep 0.2
  done
  $VAYU bench serve --url "$url" --concurrency 32 --num-requests 192 --input-len 3584 --output-len 128 --no-progress \
    >>"$OUT/profile_serving.log" 2>&1 &
  load=$!
  sleep 3 # all of it takes eight
  $VAYU profile --url "$url" --steps 60 --timeout 60 --trace "$OUT/profile_serving.trace.json" --json "$OUT/profile_serving.json" \
    2>&1 | tee "$OUT/profile_serving.txt" || failed=1
  wait $load || failed=1
  kill $server 2>/dev/null
  wait $server || failed=1
  trap - EXIT
  [ $failed = 0 ] || tail -5 "$OUT/profile_serving.log"
}

profile() {
  some_profile decode sarvam-30b --decode 32 --context 3650 --steps 4
  some_profile mixed sarvam-30b --decode 32 --context 3650 --prompts 512 --steps 4
  some_profile prompt sarvam-30b --prompts 3584 --steps 2
  some_profile 105b_prompt sarvam-105b --prompts 3584 --steps 2
  serving_profile 8137
}

case "${1:-all}" in
  kernels) kernels ;;
  steps) steps ;;
  profile) profile ;;
  all) kernels; steps; profile ;;
  *) sed -n '2,11p' "$0"; exit 2 ;;
esac
python3 tools/gpu_results.py "$OUT" || failed=1
exit $failed
