#!/usr/bin/env bash
# The whole proof of the CUDA backend: builds and packs (tools/gpu_pack.sh), runs every step, puts what it gives into bench/results/ and
# lists each step's exit code and seconds. One failure does not stop the rest; the exit code is 0 where all passed.
#   tools/gpu.sh [--packed] [STEP...]                                   on this machine
#   tools/gpu.sh [--packed] --host [USER@]MACHINE [--dir DIR] [STEP...] on another, over ssh: the tracked files, the pack, SmolLM2 and the
#                                                                       wheels of the OpenAI SDK and pytest go to DIR (default vayu-gpu, in
#                                                                       the home folder there; made anew each time), $OUT comes back
# --packed: with the build-gpu/pack.tar.xz that is there; without --host nothing is fetched then. STEP, all by default, in this order:
#   tests sanitize fault speed     tools/gpu_proof.sh       kernels steps profile     tools/gpu_kernels.sh
#   sla                            tools/gpu_sla.sh         smollm2 fp8_parts e2e     tools/gpu_smollm2.sh
#   sarvam_tiny                    bench/sarvam_tiny.py     peers                     bench/peers.py
# There it takes a driver, bash, tar, xz, python3, compute-sanitizer (sanitize) and PyTorch (kernels, peers).
# VAYU_GPU_SSH: a command in place of ssh, called with the machine and one line of shell. OUT: in place of build-gpu/out, which is emptied.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tools/pins.sh
ALL=(tests sanitize fault speed kernels steps profile sla smollm2 fp8_parts e2e sarvam_tiny peers)
host='' dir=vayu-gpu packed=no steps=()
usage() { sed -n '2,13p' "$0" >&2; exit 2; }

while [ $# -gt 0 ]; do
  case $1 in
    --host) host=${2:-} && shift 2 && [ -n "$host" ] || usage ;;
    --dir) dir=${2:-} && shift 2 && [ -n "$dir" ] || usage ;;
    --packed) packed=yes && shift ;;
    *) [[ " ${ALL[*]} " == *" $1 "* ]] || usage
       steps+=("$1") && shift ;;
  esac
done
[ ${#steps[@]} -gt 0 ] || steps=("${ALL[@]}")

any_of() { for step in "$@"; do [[ " ${steps[*]} " != *" $step "* ]] || return 0; done; return 1; }
say() { printf '\033[1m[gpu]\033[0m %s\n' "$*"; }
fail() { printf '[gpu] error: %s\n' "$*" >&2; exit 1; }

# Wheels for Python $1 in build-whl, where none are there.
get_wheels() {
  ls build-whl/*.whl >/dev/null 2>&1 && return
  local python=python3 platforms=() wanted=() pin
  [ ! -x .venv/bin/python ] || python=.venv/bin/python
  for pin in manylinux2014 manylinux_2_17 manylinux_2_28; do platforms+=(--platform "${pin}_$(uname -m)"); done
  for pin in "${TEST_PYTHON[@]}"; do [[ $pin != openai=* && $pin != pytest=* ]] || wanted+=("$pin"); done
  say "fetching wheels for Python $1: ${wanted[*]}"
  $python -m pip download -q --disable-pip-version-check --only-binary=:all: --implementation cp --python-version "$1" \
    "${platforms[@]}" -d build-whl "${wanted[@]}" || say "no wheels: sla and e2e will miss the OpenAI SDK"
}

python_version='python3 -c "import sys; print(\"%d.%d\" % sys.version_info[:2])"'

prepare() {  # $1: a command that runs a line of shell where the proof will run
  if [ $packed = no ]; then tools/gpu_pack.sh || fail "tools/gpu_pack.sh"; fi
  [ -f build-gpu/pack.tar.xz ] || fail "no build-gpu/pack.tar.xz: without --packed it is built"
  [ -n "$host" ] || [ $packed = no ] || return 0  # carried here, with all that it takes
  ! any_of smollm2 fp8_parts e2e || [ -f "models/$MODEL_FILE" ] || tools/setup.sh || fail "tools/setup.sh"
  ! any_of peers || [ -f build-call/flashinfer_peer.so ] || bench/flashinfer/build.sh || say "peers will miss FlashInfer"
  ! any_of sla e2e || get_wheels "$($1 "$python_version" </dev/null)"
}

run_step() {
  case $1 in
    tests | sanitize | fault | speed) tools/gpu_proof.sh "$1" ;;
    kernels | steps | profile) tools/gpu_kernels.sh "$1" ;;
    sla) tools/gpu_sla.sh ;;
    smollm2) tools/gpu_smollm2.sh run ;;
    fp8_parts) tools/gpu_smollm2.sh fp8 ;;
    e2e) tools/gpu_smollm2.sh e2e ;;
    sarvam_tiny)
      . tools/gpu_env.sh && python3 bench/sarvam_tiny.py --devices cpu cuda --vayu build-gpu/bin/vayu --out "$OUT/h200_sarvam_tiny.json" ;;
    peers) . tools/gpu_env.sh && unset LD_LIBRARY_PATH && python3 bench/peers.py --json "$OUT/h200_peers.json" ;;
  esac
}

keep_results() {  # from folder $1
  local files=("$1"/h200_*.json)
  [ -f "${files[0]}" ] || { say "no results"; return; }
  local file kept=() others=()
  for file in "${files[@]}"; do
    if grep -q '"hardware": ".*H200' "$file"; then kept+=("$file"); else others+=("$file"); fi
  done
  [ ${#others[@]} = 0 ] || say "not of an H200, so not in bench/results: ${others[*]}"
  [ ${#kept[@]} = 0 ] || { cp "${kept[@]}" bench/results/ && say "in bench/results: $(basename -a "${kept[@]}" | tr '\n' ' ')"; }
}

run_here() {
  prepare 'bash -c'
  [ -n "${OUT:-}" ] || rm -rf build-gpu/out
  export OUT=${OUT:-build-gpu/out}
  mkdir -p "$OUT"
  local step begin code failed=0 lines=()
  for step in "${steps[@]}"; do
    say "$step"
    begin=$SECONDS
    run_step "$step" 2>&1 | tee "$OUT/gpu_$step.txt"
    code=${PIPESTATUS[0]}
    [ "$code" = 0 ] || failed=1
    lines+=("$(printf '%-10s exit %3d %5d s' "$step" "$code" $((SECONDS - begin)))")
  done
  keep_results "$OUT"
  printf '%s\n' "${lines[@]}" | tee "$OUT/gpu.txt"
  return $failed
}

on_host() { ${VAYU_GPU_SSH:-ssh -o ServerAliveInterval=30} "$host" "$1"; }

run_there() {
  prepare on_host
  local there
  there=$(printf %q "$dir")
  # A folder that this script did not make stays as it is.
  on_host "if [ -n \"\$(ls -A $there 2>/dev/null)\" ] && [ ! -f $there/.vayu-gpu ]; then echo 'not a folder of this script: '$there >&2; exit 1; fi
    rm -rf $there && mkdir -p $there && touch $there/.vayu-gpu" </dev/null || fail "cannot use $dir on $host"
  local extra=(build-gpu/pack.tar.xz)
  ! any_of sla e2e || extra+=(build-whl/*.whl)
  ! any_of smollm2 fp8_parts e2e || extra+=("models/$MODEL_FILE")
  ! any_of peers || extra+=(build-call/flashinfer_peer.so)
  say "carrying the tree, the pack and what the steps need to $host:$dir"
  { git ls-files && ls "${extra[@]}" 2>/dev/null || true; } | while read -r file; do [ ! -f "$file" ] || echo "$file"; done | tar -T - -cf - |
    on_host "tar -C $there -xf -" || fail "the tree could not be carried"
  local code=0
  on_host "cd $there && env -u OUT tools/gpu.sh --packed ${steps[*]}" </dev/null || code=$?
  rm -rf build-gpu/out
  local out=${OUT:-build-gpu/out}
  mkdir -p "$out"
  on_host "tar -C $there/build-gpu/out -cf - ." </dev/null | tar -C "$out" -xf - || fail "no results came back"
  keep_results "$out"
  cat "$out/gpu.txt"
  return $code
}

if [ -n "$host" ]; then run_there; else run_here; fi
