#!/usr/bin/env bash
# Installs what tests need, builds and runs them all. CI calls exactly this.
#   ./test.sh          everything: unit tests, end-to-end tests, sanitizers, short fuzz runs
#   ./test.sh --quick  without sanitizers and fuzzing
set -euo pipefail
cd "$(dirname "$0")"
quick=no
[ "${1:-}" = --quick ] && quick=yes

part() { printf '\n\033[1m[test]\033[0m %s (%d min %d s so far)\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

part "set-up"
tools/setup.sh --tests
. tools/pins.sh
export VAYU_TEST_MODEL=$PWD/models/$MODEL_FILE

part "include order and headers that compile alone"
.venv/bin/python tools/check_includes.py --headers

part "build"
tools/build.sh build -- -DVAYU_TESTS=ON

part "unit tests"
ctest --test-dir build --output-on-failure

part "end-to-end tests against the running server"
VAYU_BIN=$PWD/build/apps/vayu .venv/bin/python -m pytest -q -p no:cacheprovider tests/e2e

if [ $quick = no ]; then
  # The unit tests again, on a model small enough for instrumented code (no VAYU_TEST_MODEL).
  for sanitizer in address,undefined thread; do
    part "unit tests under the $sanitizer sanitizer"
    dir=build-${sanitizer%%,*}
    tools/build.sh "$dir" -- -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" \
      -DVAYU_TESTS=ON -DVAYU_SANITIZE="$sanitizer"
    env -u VAYU_TEST_MODEL VAYU_SIM_STEPS=5000 UBSAN_OPTIONS=print_stacktrace=1 \
      ctest --test-dir "$dir" --output-on-failure --exclude-regex '^e2e'
  done
  part "fuzzing, 20 s a parser"
  tools/fuzz.sh 20
fi
part "all passed"
