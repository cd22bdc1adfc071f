#!/bin/sh
# What of the images can be tried without a container engine and takes longer than a test may; on Debian 12:
#   sh docker/check-docker.sh      (make check-docker)
# Resolves the GPU image's packages again (metadata alone), lets apt plan the CPU image's system packages, and asks a live
# Prefect server and worker for their health, by .venv/bin/python.
set -eu
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/uv"
"$folder/uv/bin/python" -m pip install --quiet --disable-pip-version-check uv==0.13.9
sh docker/lock-gpu.sh "$folder/uv/bin/uv" --check
if [ "$(. /etc/os-release && echo "$VERSION_ID")" = 12 ]; then
  apt-get update --quiet=2
  # shellcheck disable=SC2046  # one word a package
  apt-get install --quiet=2 --simulate --no-install-recommends $(sh docker/system-packages.sh cpu --list) >/dev/null
  echo "the CPU image's system packages are to be had"
fi
CHECK_DOCKER=1 OMP_NUM_THREADS=1 .venv/bin/python -m pytest tests/docker/test_health.py
