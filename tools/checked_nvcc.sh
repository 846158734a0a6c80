#!/usr/bin/env bash
# Compiler launcher for .cu files: tools/checked_nvcc.sh [ccache] nvcc ARGS... A compilation fails where ptxas says, in
# passing, that the kernel came out slow: products of the matrix units are serialised (C7510 to C7516; an innocent edit
# next to them is enough), or more registers are stored to memory (-Xptxas --warn-on-spills) than 16 bytes or than
# tools/ptxas_spills.txt allows the file. A remark that ccache replays counts as well.
set -uo pipefail
exec 3>&1
remarks=$("$@" 2>&1 >&3)
status=$?
[ -z "$remarks" ] || printf '%s\n' "$remarks" >&2
[ $status = 0 ] || exit $status

source=unknown object=
for ((i = 1; i < $#; ++i)); do
  next=$((i + 1))
  case "${!i}" in
    -c) source=${!next} ;;
    -o) object=${!next} ;;
    -G) exit 0 ;;  # debug builds are not fast, and ptxas says so
  esac
done

fault=$(grep -m1 -E '\(C751[0-6]\)|wgmma\.mma_async instructions are serialized' <<<"$remarks")
spilled=$(sed -n "s/.*spilled to local memory in function '\([^']*\)', \([0-9]*\) bytes spill stores.*/\2 \1/p" <<<"$remarks" |
  sort -rn | head -1)
allowed=$(awk -v file="$source" '$1 != "#" && (file == $1 || substr(file, length(file) - length($1)) == "/" $1) {print $2}' \
  "$(dirname "$0")/ptxas_spills.txt" | tail -1)
allowed=${allowed:-16}
if [ -z "$fault" ] && [ "${spilled%% *}" -gt "$allowed" ] 2>/dev/null; then
  fault="${spilled#* } stores ${spilled%% *} bytes of registers to memory, $allowed are allowed (tools/ptxas_spills.txt)"
fi
[ -n "$fault" ] || exit 0
rm -f "$object"
printf '%s: %s\n' "$source" "$fault" >&2
exit 1
