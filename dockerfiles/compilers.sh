#!/bin/sh
# Brings compilers into an image, and the distribution's CUDA toolkit where that
# is the CUDA_SOURCE. GCC: major of the compiler, or nothing for the distribution's own;
# PYTHON: X.Y, whose headers are needed.
set -eu
set -- libc6-dev binutils ccache patch
if [ -n "${GCC-}" ]; then set -- "gcc-$GCC" "g++-$GCC" "$@"; else set -- gcc g++ "$@"; fi
# A Python that did not come from the distribution has its headers with it.
header=$("python$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
[ -e "$header" ] || set -- "$@" "python$PYTHON-dev"
case $CUDA_SOURCE in debian*)
    # It is in the section for what is not free.
    for list in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
        [ ! -f "$list" ] || sed -i 's/^\(Components:\|deb .*\) main\>.*/\1 main contrib non-free non-free-firmware/' "$list"
    done
    set -- "$@" nvidia-cuda-toolkit
    ;;
esac
exec sh "$(dirname "$0")/install.sh" "$@"
