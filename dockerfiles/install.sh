#!/bin/sh
# Installs packages of the distribution into an image: install.sh PACKAGE...
set -eu
[ $# -gt 0 ] || exit 0
. "$(dirname "$0")/site.sh"
if ! command -v apt-get >/dev/null; then
    echo "error: this base has no apt-get, with which dsbuild would install: $*" >&2
    exit 1
fi
rm -f /etc/apt/apt.conf.d/docker-clean
export DEBIAN_FRONTEND=noninteractive
apt-get -q -o Acquire::Retries=3 update
apt-get -qy -o Acquire::Retries=3 install --no-install-recommends "$@"
rm -rf /var/lib/apt/lists/*
