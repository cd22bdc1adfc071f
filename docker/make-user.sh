#!/bin/sh
# Makes the user that an image runs as, and the folders it may write to; the code stays root's.
#   sh docker/make-user.sh [ROOT]      (ROOT: another root folder with an etc/ of its own; the machine's where none is given)
# A named volume takes its owner from the folder that it is first mounted on, so the folders have to be in the image.
set -eu
root=${1:-}
id=5000
groupadd ${root:+--prefix "$root"} --gid $id pab
useradd ${root:+--prefix "$root"} --uid $id --gid $id --no-log-init --create-home --shell /usr/sbin/nologin pab
for folder in work out runs .prefect; do
  mkdir -p "$root/app/$folder"
  chown $id:$id "$root/app/$folder"
done
mkdir -p "$root/models"  # weights are mounted here, to be read only
