#!/bin/sh
# Installs what an image needs besides Python packages, or lists it:
#   sh docker/system-packages.sh cpu|gpu [--list]
# Not pinned: Debian and Ubuntu take a version off their servers when a fix replaces it, so that a pin would soon not build.
set -eu
case "${1:-}" in
  cpu)  # Debian 12. mediapipe's OpenCV links to these.
    packages="libgl1 libglib2.0-0" ;;
  gpu)  # Ubuntu 24.04. A compiler for Triton's launchers and xtcocotools; then what the copied Python links to.
    packages="g++ libgl1 libglib2.0-0t64
      ca-certificates libbz2-1.0 libffi8 liblzma5 libncursesw6 libreadline8t64 libsqlite3-0 libssl3t64 libuuid1 zlib1g" ;;
  *)
    echo "usage: sh docker/system-packages.sh cpu|gpu [--list]" >&2
    exit 2 ;;
esac
if [ "${2:-}" = --list ]; then
  for package in $packages; do echo "$package"; done
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update
# shellcheck disable=SC2086  # one word a package
apt-get install --yes --no-install-recommends $packages
rm -rf "${APT_LISTS:-/var/lib/apt/lists}"/*
ldconfig
