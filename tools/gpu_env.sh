# Sourced by the scripts for a machine with a GPU, from the root of the tree: unpacks what tools/gpu_pack.sh packed, and sets
# LD_LIBRARY_PATH, OUT (where results go; default build-gpu/out) and COMMIT (of the packed binaries).
[ -d build-gpu/bin ] && [ ! build-gpu/pack.tar.xz -nt build-gpu/bin ] || { tar -C build-gpu -xf build-gpu/pack.tar.xz && touch build-gpu/bin; } || return
export LD_LIBRARY_PATH=$PWD/build-gpu/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} VAYU_SOURCE_DIR=$PWD
export OUT=${OUT:-build-gpu/out}
export COMMIT=${COMMIT:-$(cat build-gpu/bin/commit 2>/dev/null || git rev-parse --short HEAD 2>/dev/null || echo unknown)}
mkdir -p "$OUT" || return
# tools/gpu_results.py makes files of all that lies there: none of another commit's.
if [ -f "$OUT/commit" ] && [ "$(cat "$OUT/commit")" != "$COMMIT" ]; then
  echo "$OUT holds results of $(cat "$OUT/commit"), and these are binaries of $COMMIT: empty it, or set OUT" >&2
  return 1
fi
echo "$COMMIT" >"$OUT/commit"

# The OpenAI SDK and what it needs, from wheels in build-whl (tools/gpu.sh fetches them for the Python that is there).
use_wheels() {
  local site=$PWD/build-whl/site
  [ -d "$site/openai" ] || python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --root-user-action ignore \
    --upgrade --target "$site" build-whl/*.whl || return
  export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
}
