#!/usr/bin/env bash
# Installs what tests need, builds and runs them all. CI calls exactly this.
#   ./test.sh          unit tests, end-to-end tests, sanitizers; fuzzers are compiled, not run
#   ./test.sh --quick  without sanitizers
#   ./test.sh --full   the server, the models and all of ops under the thread sanitizer too, and every parser fuzzed for a minute
set -euo pipefail
cd "$(dirname "$0")"
quick=no full=no
case "${1:-}" in
  --quick) quick=yes ;;
  --full) full=yes ;;
esac

part() { printf '\n\033[1m[test]\033[0m %s (%d min %d s so far)\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

part "set-up"
tools/setup.sh --tests
. tools/pins.sh
export VAYU_TEST_MODEL=$PWD/models/$MODEL_FILE

part "include order and headers that compile alone"
.venv/bin/python tools/check_includes.py --headers

part "fuzzers compile"
find src -name '*_fuzz.cc' -print0 | xargs -0 -P2 -n1 clang++-14 -std=c++20 -I src -DVAYU_SOURCE_DIR='""' -fsyntax-only

part "build"
tools/build.sh build -- -DVAYU_TESTS=ON

# Instrumented builds go on behind the tests, one after the other, so that both keep the cores busy. Each has its unit tests run
# on models small enough for instrumented code (no VAYU_TEST_MODEL); the thread sanitizer gets folders that have threads.
threaded="base telemetry ops"
fuzz_seconds=60
fuzzers="gguf_fuzz jinja_fuzz json_request_fuzz safetensors_fuzz tokenizer_fuzz tokenizer_json_fuzz"
[ $full = no ] || threaded+=" engine model server"
build_in_background() {
  local dir=$1
  shift
  rm -f "$dir.built" "$dir.failed"
  if nice -n 5 tools/build.sh "$dir" "$@" >"$dir.log" 2>&1; then touch "$dir.built"; else touch "$dir.failed"; fi
}
wait_for_build() {
  until [ -f "$1.built" ]; do
    if [ -f "$1.failed" ] || ! kill -0 "$builds" 2>/dev/null; then
      [ -f "$1.built" ] && break
      tail -n 60 "$1.log"
      exit 1
    fi
    sleep 1
  done
}
# Of the instruction sets with code of their own, instrumented tests have plain x86-64 and the widest that this machine runs, with --full
# all; line numbers are in reports with --full.
left_out=HWY_AVX3_DL debug_info=-g0
grep -qw avx512_vnni /proc/cpuinfo && left_out=HWY_AVX2
[ $full = no ] || left_out='' debug_info=-g1
sanitized() {
  echo -DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=$debug_info" -DVAYU_TESTS=ON "-DVAYU_SANITIZE=$1" \
    "-DVAYU_SANITIZED_WITHOUT=$left_out"
}
if [ $quick = no ]; then
  rm -f build-address.built build-thread.built build-fuzz.built
  {
    # Instrumented builds have no CUDA backend.
    suites=$(ctest --test-dir build -N | sed -n 's/.*Test *#[0-9]*: \(.*\)/\1_test/p' | grep -v '_cuda_test$')
    build_in_background build-address $suites -- $(sanitized address,undefined)
    build_in_background build-thread $(printf '%s_test ' $threaded) -- $(sanitized thread)
    if [ $full = yes ]; then
      if nice -n 5 tools/fuzz.sh 0 $fuzzers >build-fuzz.log 2>&1; then touch build-fuzz.built; else touch build-fuzz.failed; fi
    fi
  } &
  builds=$!
  trap 'kill $builds 2>/dev/null || true' EXIT
fi

part "unit tests"
ctest --test-dir build --output-on-failure

part "end-to-end tests against the running server"
VAYU_BIN=$PWD/build/apps/vayu .venv/bin/python -m pytest -q -p no:cacheprovider tests/e2e

if [ $quick = no ]; then
  run_instrumented() {
    env -u VAYU_TEST_MODEL VAYU_SIM_STEPS=5000 UBSAN_OPTIONS=print_stacktrace=1 ctest -j2 --no-tests=error --output-on-failure --test-dir "$@"
  }
  part "unit tests under the address and undefined-behaviour sanitizers"
  wait_for_build build-address
  run_instrumented build-address
  part "unit tests under the thread sanitizer"
  wait_for_build build-thread
  # A few formats of weights stand for all, and the longest tests of little threading are left to --full.
  [ $full = yes ] || export GTEST_FILTER="-RopeKvWrite.CpuMatchesReference:DeviceGemm.*:Sample.*:*LinearFormatTest.*/Q4_1:*LinearFormatTest.*/Q5_?:*LinearFormatTest.*/Q?_K:*LinearFormatTest.*/F*"
  run_instrumented build-thread --tests-regex "^(${threaded// /|})\$"
  unset GTEST_FILTER
fi
if [ $full = yes ]; then
  part "fuzzing, $fuzz_seconds s a parser"
  wait_for_build build-fuzz
  tools/fuzz.sh $fuzz_seconds $fuzzers
fi
part "all passed"
