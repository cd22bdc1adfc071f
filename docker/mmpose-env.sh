#!/bin/sh
# Makes .venv-mmpose: mmpose 1.3.2 with the pins it works with, apart from .venv because pip cannot join the two.
# mmpose asks for chumpy, which no longer builds and which it never imports, so it goes in without its own list;
# xtcocotools is compiled here against the numpy that is installed.
set -eu
cd "$(dirname "$0")/.."
python3 -m venv .venv-mmpose
pip=".venv-mmpose/bin/python -m pip install --quiet --disable-pip-version-check"
$pip torch==2.13.0
$pip "setuptools<81" wheel cython numpy mmengine==0.10.7 mmcv-lite==2.2.0 json_tricks munkres scipy opencv-python-headless
$pip --no-deps --no-build-isolation --no-binary xtcocotools xtcocotools==1.14.3
$pip --no-deps mmpose==1.3.2
