#!/bin/sh
# Installs packages of the distribution into an image.
#
# usage: system.sh runtime          PYTHON: its version, X.Y
#        system.sh compilers        and GCC: its major, or nothing for the
#                                   distribution's own; ROAD
#        system.sh PACKAGE...
#
# What the base brings itself is used as it is; apt is needed for the rest.
set -eu
. "$(dirname "$0")/site.sh"
case ${1-} in
"") exit 0 ;; # no op needs any
runtime)
    set -- ca-certificates libstdc++6
    command -v "python$PYTHON" >/dev/null && "python$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
        set -- "$@" "python$PYTHON" "python$PYTHON-venv"
    ;;
compilers)
    set -- libc6-dev binutils ccache patch
    if [ -n "${GCC-}" ]; then set -- "gcc-$GCC" "g++-$GCC" "$@"; else set -- gcc g++ "$@"; fi
    # A Python of the base itself has its headers with it.
    header=$("python$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
    [ -e "$header" ] || set -- "$@" "python$PYTHON-dev"
    case $ROAD in debian*)
        # The distribution's CUDA is in its section for what is not free.
        sed -i '/^Components:/s/main.*/main contrib non-free non-free-firmware/; /^deb/s/ main.*/ main contrib non-free non-free-firmware/' \
            /etc/apt/sources.list /etc/apt/sources.list.d/*.sources 2>/dev/null || true
        set -- "$@" nvidia-cuda-toolkit
        ;;
    esac
    ;;
esac
if ! command -v apt-get >/dev/null; then
    echo "error: this base has no apt-get, with which dsbuild would install: $*" >&2
    exit 1
fi
rm -f /etc/apt/apt.conf.d/docker-clean
export DEBIAN_FRONTEND=noninteractive
apt-get -q -o Acquire::Retries=3 update
apt-get -qy -o Acquire::Retries=3 install --no-install-recommends "$@"
rm -rf /var/lib/apt/lists/*
