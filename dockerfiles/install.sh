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
apt() { apt-get -q -o Acquire::Retries=3 "$@"; }
if [ -n "${DSBUILD_APT_MIRROR-}" ]; then
    # The sources are read from a copy: the image must not know the mirror.
    sources=$(dsbuild_temporary -d)
    for list in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
        [ ! -f "$list" ] || sed "/^\(URIs:\|deb\)/s#https\?://[^/ ]*#$DSBUILD_APT_MIRROR#g" "$list" >"$sources/${list##*/}"
    done
    apt() {
        apt-get -q -o Acquire::Retries=3 -o Acquire::https::CAInfo="${SSL_CERT_FILE-}" \
            -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$sources" "$@"
    }
fi
apt update
apt -y install --no-install-recommends "$@"
rm -rf /var/lib/apt/lists/* ${sources:+"$sources"}
