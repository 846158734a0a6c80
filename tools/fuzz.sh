#!/usr/bin/env bash
# Fuzzes every parser of untrusted input: tools/fuzz.sh SECONDS [TARGET...]. Builds with clang into build-fuzz; 0 seconds: only that.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-20}
shift || true
tools/build.sh build-fuzz help -- -DCMAKE_C_COMPILER=clang-14 -DCMAKE_CXX_COMPILER=clang++-14 -DVAYU_FUZZ=ON -DVAYU_TESTS=OFF \
  -DVAYU_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" >/dev/null
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  mapfile -t targets < <(git ls-files -co --exclude-standard 'src/*_fuzz.cc' | sed 's|.*/||; s|\.cc$||' | sort)
fi
ninja -C build-fuzz "${targets[@]}"
[ "$seconds" = 0 ] && exit 0
failed=0
for target in "${targets[@]}"; do
  corpus=build-fuzz/corpus/$target
  mkdir -p "$corpus"
  seeds=()
  [ -d "tests/fuzz/$target" ] && seeds=("tests/fuzz/$target")
  binary=$(find build-fuzz -type f -name "$target" -perm -u+x | head -n 1)
  log=build-fuzz/$target.log
  if "$binary" "$corpus" "${seeds[@]}" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 -artifact_prefix="build-fuzz/$target-" \
      >"$log" 2>&1; then
    printf '%-24s no finding; %s\n' "$target" "$(grep -E '^Done|DONE' "$log" | tail -n 1)"
  else
    failed=1
    printf '%-24s FOUND something:\n' "$target"
    tail -n 40 "$log"
  fi
done
exit $failed
