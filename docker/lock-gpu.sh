#!/bin/sh
# Resolves the GPU image's packages, from their metadata alone, and writes the lock; or says whether it still holds:
#   sh docker/lock-gpu.sh uv [--check]     (uv: the program, e.g. of `pip install uv`)
# --check resolves with the locked versions preferred: what comes out must be what is locked.
set -eu
cd "$(dirname "$0")/.."
uv=$1
lock=docker/requirements-gpu.lock
made=$(mktemp)
trap 'rm -f "$made"' EXIT
if [ "${2:-}" = --check ]; then cp "$lock" "$made"; fi
"$uv" pip compile --quiet pyproject.toml docker/requirements-gpu.in --extra gpu --python-version 3.11 \
  --python-platform x86_64-manylinux_2_31 --no-header --no-annotate --output-file "$made"
if [ "${2:-}" = --check ]; then
  grep -v '^#' "$lock" | diff - "$made" && echo "$lock holds"
else
  { echo "# Locked versions of the GPU image, Python 3.11, x86_64 Linux. Made with: sh docker/lock-gpu.sh uv"; cat "$made"; } >"$lock"
fi
