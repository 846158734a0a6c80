#!/usr/bin/env bash
# Installs what is missing, builds, fetches the default model and serves it on http://127.0.0.1:8000.
# Arguments go to `vayu serve`: ./start.sh --port 9000   or   ./start.sh path/to/model.gguf --api-key secret
set -euo pipefail
cd "$(dirname "$0")"
tools/setup.sh
. tools/pins.sh
printf '\033[1m[build]\033[0m compiling (minutes the first time)\n'
tools/build.sh build vayu
model=models/$MODEL_FILE
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then model=$1; shift; fi
exec build/apps/vayu serve "$model" "$@"
