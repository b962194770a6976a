#!/bin/sh
# Makes a root file system of Debian 12 for aarch64 in FOLDER: Python, the programs of a build, and what emulated.sh makes. If it is
# there already, it stays.
#
# usage: root.sh FOLDER PACKAGES DOCKERFILES      uv is on PATH; CC: a compiler for aarch64
set -eu
[ ! -d "$1" ] || exit 0
rm -rf "$1.part"
# The packages are unpacked, and not configured: what their scripts would write of users and certificates is written here.
mmdebstrap --quiet --architectures=arm64 --variant=extract \
    --include=base-files,bash,coreutils,dash,findutils,g++,grep,gzip,libc-bin,libgomp1,python3-dev,python3-venv,sed,tar bookworm "$1.part"
echo 'root:x:0:0::/root:/bin/sh' >"$1.part/etc/passwd"
mkdir -p "$1.part/home" "$1.part/root" "$1.part/etc/ssl/certs"
cp -L "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$1.part/etc/ssl/certs/ca-certificates.crt"
cp -L /etc/resolv.conf "$1.part/etc/resolv.conf"
sh "$3/emulated.sh" "$1.part" "$2" 3.11
mv "$1.part" "$1"
