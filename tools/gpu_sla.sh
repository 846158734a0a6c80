#!/usr/bin/env bash
# sarvam-30b served from one H200, asked by the OpenAI SDK and loaded by `vayu bench serve`: from the root of the tree after
# tools/gpu_pack.sh, with the SDK's wheels in build-whl. Arguments go to bench/h200_sla.py, as --step-tokens 1280 2048.
# $OUT (default build-gpu/out) gets h200_sla.json for bench/results/, and sla.log.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tools/gpu_env.sh || exit
use_wheels || echo "no OpenAI SDK: build-whl has no wheels for this Python" >&2
timeout 540 python3 bench/h200_sla.py --vayu build-gpu/bin/vayu --out "$OUT/h200_sla.json" "$@" 2>&1 | tee "$OUT/sla.log"
