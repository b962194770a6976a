#!/bin/sh
# Makes a root file system of Debian 12 for aarch64 with Python in FOLDER, and in it what emulated.sh makes. If it is there already, it
# stays.
#
# usage: root.sh FOLDER PACKAGES DOCKERFILES      uv is on PATH; CC: a compiler for aarch64
set -eu
[ ! -d "$1" ] || exit 0
rm -rf "$1.part"
mmdebstrap --quiet --architectures=arm64 --variant=extract --include=python3,libstdc++6,libgomp1 bookworm "$1.part"
sh "$3/emulated.sh" "$1.part" "$2" 3.11
mv "$1.part" "$1"
