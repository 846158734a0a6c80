#!/usr/bin/env bash
# SmolLM2's GGUF file on a machine with a GPU, with what tools/gpu_pack.sh packed and the file in models/ (tools/gpu.sh carries both):
#   tools/gpu_smollm2.sh run       the GPU against the CPU (bench/smollm2_cuda.py); $OUT gets h200_smollm2.json and smollm2.log
#   tools/gpu_smollm2.sh fp8       which linears may be FP8 (bench/fp8_parts.py); $OUT gets h200_fp8_parts.json and fp8_parts.log
#   tools/gpu_smollm2.sh e2e       the end-to-end tests with the model on the GPU (wheels in build-whl); $OUT gets h200_e2e.json and e2e.log
# To a machine that takes 64 MiB a call, this tree among them, the file goes in parts, over the calls of one lease:
#   tools/gpu_smollm2.sh parts     here: build-gpu-model/part1, part2, ... to be carried one a call
#   tools/gpu_smollm2.sh keep      there, in each of those calls: the part that came along is put into /tmp, where the others find it
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/pins.sh
mode=${1:-}
shift || true
kept=/tmp/vayu-smollm2
joined=$kept/$MODEL_FILE

join() {
  if [ -f "models/$MODEL_FILE" ]; then joined=$PWD/models/$MODEL_FILE; return; fi
  mkdir -p "$kept"
  cp build-gpu-model/part* "$kept" 2>/dev/null || true
  [ -f "$joined" ] || cat "$kept"/part* >"$joined"
  echo "$MODEL_SHA256  $joined" | sha256sum --check --status ||
    { rm "$joined" && echo "not the whole model: $(ls -m "$kept")" >&2 && exit 1; }
}

case "$mode" in
  parts)
    tree=$({ git ls-files -z && git ls-files -z --others --exclude-standard; } | xargs -0 du -cb | tail -1 | cut -f1)
    rm -rf build-gpu-model
    mkdir build-gpu-model
    split -b $(((62 << 20) - tree)) -a 1 --numeric-suffixes=1 "models/$MODEL_FILE" build-gpu-model/part
    ls -l build-gpu-model
    ;;
  keep)
    mkdir -p "$kept"
    cp build-gpu-model/part* "$kept"
    ls -l "$kept"
    ;;
  run)
    join
    . tools/gpu_env.sh
    timeout 300 python3 bench/smollm2_cuda.py --vayu build-gpu/bin/vayu --model "$joined" --out "$OUT/h200_smollm2.json" "$@" 2>&1 |
      tee "$OUT/smollm2.log"
    ;;
  fp8)
    join
    . tools/gpu_env.sh
    timeout 300 python3 bench/fp8_parts.py --vayu build-gpu/bin/vayu --model "$joined" --out "$OUT/h200_fp8_parts.json" "$@" 2>&1 |
      tee "$OUT/fp8_parts.log"
    ;;
  e2e)
    join
    . tools/gpu_env.sh
    use_wheels || echo "no wheels in build-whl for this Python: its own pytest and SDK" >&2
    rm -f "$OUT/e2e.xml"
    code=0
    VAYU_E2E_DEVICE=cuda VAYU_BIN=$PWD/build-gpu/bin/vayu VAYU_TEST_MODEL=$joined timeout 400 python3 -m pytest -q -p no:cacheprovider \
      --junitxml "$OUT/e2e.xml" tests/e2e --ignore tests/e2e/test_web_page.py --ignore tests/e2e/test_eval.py \
      --ignore tests/e2e/test_gpu_tools.py "$@" 2>&1 | tee "$OUT/e2e.log" | tail -40 || code=$?
    [ -f "$OUT/e2e.xml" ] || echo "the tests did not end: no report" >&2
    python3 tools/gpu_results.py "$OUT" || code=1
    exit $code
    ;;
  *)
    sed -n '2,8p' "$0"
    exit 2
    ;;
esac
