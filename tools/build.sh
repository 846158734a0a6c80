#!/usr/bin/env bash
# Configures and builds: tools/build.sh DIR TARGETS... [-- CMAKE_OPTIONS...]
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$1; shift
targets=() options=()
while [ $# -gt 0 ]; do
  if [ "$1" = -- ]; then shift; options=("$@"); break; fi
  targets+=("$1"); shift
done
if [ ! -f "$dir/build.ninja" ] || [ ${#options[@]} -gt 0 ]; then
  cmake -S . -B "$dir" -G Ninja "${options[@]}" >"/tmp/vayu-cmake-$$.log" 2>&1 || { cat "/tmp/vayu-cmake-$$.log" >&2; exit 1; }
  rm -f "/tmp/vayu-cmake-$$.log"
fi
exec ninja -C "$dir" "${targets[@]}"
