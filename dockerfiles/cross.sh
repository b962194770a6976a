#!/bin/sh
# Brings into a toolchain's image what wheels for another machine need: the distribution's
# cross compiler, and the packages that ops need of that machine.
# CROSS: aarch64, or nothing; GCC: as in compilers.sh; SYSTEM: packages, joined by spaces.
set -eu
[ -n "${CROSS-}" ] || exit 0
dpkg --add-architecture arm64 # Debian's name for it
set -- "g++${GCC:+-$GCC}-aarch64-linux-gnu"
for package in ${SYSTEM-}; do set -- "$@" "$package:arm64"; done
exec sh "$(dirname "$0")/install.sh" "$@"
