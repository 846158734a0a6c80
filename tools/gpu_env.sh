# Sourced by the scripts for a machine with a GPU, from the root of the tree: unpacks what tools/gpu_pack.sh packed, and sets
# LD_LIBRARY_PATH, OUT (where results go; default build-gpu/out) and COMMIT (of the packed binaries).
[ -d build-gpu/bin ] && [ ! build-gpu/pack.tar.xz -nt build-gpu/bin ] || { tar -C build-gpu -xf build-gpu/pack.tar.xz && touch build-gpu/bin; }
export LD_LIBRARY_PATH=$PWD/build-gpu/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} VAYU_SOURCE_DIR=$PWD
export OUT=${OUT:-build-gpu/out}
export COMMIT=${COMMIT:-$(cat build-gpu/bin/commit 2>/dev/null || git rev-parse --short HEAD 2>/dev/null || echo unknown)}
mkdir -p "$OUT"

# The OpenAI SDK and what it needs, from wheels in build-whl (pip download on a machine with a network, for Python 3.12).
use_wheels() {
  [ -d /tmp/site/openai ] || python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --root-user-action ignore \
    --upgrade --target /tmp/site build-whl/*.whl || return
  export PYTHONPATH=/tmp/site${PYTHONPATH:+:$PYTHONPATH}
}
