#!/bin/sh
# Makes .venv-mmpose: mmpose 1.3.2 with the pins it works with, apart from .venv because pip cannot join the two.
#   sh docker/mmpose-env.sh [FOLDER]      (default .venv-mmpose; PYTHON=python3.11 chooses the interpreter)
# mmpose asks for chumpy, which no longer builds and which it never imports, and with mmengine for opencv-python, whose
# window code wants a display's libraries: they go in without their own lists, opencv headless. xtcocotools is compiled
# here against the numpy that is installed (its wheel is for numpy 1). mmcv-lite is mmcv without compiled operators:
# RTMPose and HRNet need none. A folder that is whole has the file .ready; half of one is finished.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-.venv-mmpose}
if [ -e "$folder/.ready" ]; then
  echo "$folder is there already"
  exit 0
fi
echo "installing mmpose into $folder (some minutes, 1.5 GB)"
test -x "$folder/bin/python" || "${PYTHON:-python3}" -m venv "$folder"
export PIP_DISABLE_PIP_VERSION_CHECK=1
pip() { "$folder/bin/python" -m pip install --quiet "$@"; }
pip torch==2.13.0
pip "setuptools<81" wheel cython "numpy>=2.2,<3" scipy safetensors opencv-python-headless \
  addict matplotlib pyyaml rich termcolor yapf pillow packaging six json_tricks munkres
pip --no-deps mmengine==0.10.7 mmcv-lite==2.2.0
pip --no-deps --no-build-isolation --no-binary xtcocotools xtcocotools==1.14.3
pip --no-deps mmpose==1.3.2
touch "$folder/.ready"
