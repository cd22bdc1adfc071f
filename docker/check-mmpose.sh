#!/bin/sh
# Makes .venv-mmpose where it is not there yet, and estimates poses through the `mmpose` engine with an RTMPose of random
# weights: mmpose's own code, its own configuration, nothing downloaded but the packages.
#   sh docker/check-mmpose.sh [PYTHON]      (of the project's environment; default .venv/bin/python)
set -eu
cd "$(dirname "$0")/.."
sh docker/mmpose-env.sh
CHECK_MMPOSE=1 HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 "${1:-.venv/bin/python}" -m pytest tests/backends/test_mmpose_real.py
