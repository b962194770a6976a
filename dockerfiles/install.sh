#!/bin/sh
# Installs packages of the distribution into an image: install.sh PACKAGE...
# Where the base has them all, it stays as it is, and no mirror is asked.
set -eu
[ $# -gt 0 ] || exit 0
present() { dpkg-query --show --showformat '${db:Status-Status}\n' "$@" 2>/dev/null | grep -c '^installed$'; }
[ "$(present "$@")" != $# ] || exit 0
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
installed() { dpkg-query --show --showformat '${Package} ${Version} ${Architecture}\n' | sort; }
before=$(installed)
apt update
apt -y install --no-install-recommends "$@"
# apt has compared each file with the signed index of the archive. The mirrors keep the newest
# versions only, so the files' sha256 are recorded, and pinned nowhere.
mkdir -p /opt/dsbuild
installed | while read -r name version arch; do
    case "
$before
" in *"
$name $version $arch
"*) continue ;; esac
    file=/var/cache/apt/archives/${name}_$(printf '%s' "$version" | sed 's/:/%3a/')_$arch.deb
    [ ! -f "$file" ] || printf '%s %s %s %s\n' "$name" "$version" "$arch" "$(sha256sum "$file" | cut -d' ' -f1)"
done >>/opt/dsbuild/debian.sums
rm -rf /var/lib/apt/lists/* ${sources:+"$sources"}
