#!/bin/bash
# One night: the wheel, then every node of the inventory. Its exit code is
# that of the first part that failed (docs/design.md has the list), so cron
# or CI tell people only when something is wrong.
#
#   nightly.sh INVENTORY ARCH [DIR]
#
# DIR (default: nightly) receives the wheel, wheel.json, report.json and the log.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: nightly.sh INVENTORY ARCH [DIR]" >&2
    exit 2
fi
inventory=$1 arch=$2 dir=${3:-nightly}
# The program of this checkout, where it is built, else that on PATH.
PATH=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/bin:$PATH
if ! command -v dsbuild >/dev/null; then
    echo "nightly.sh: no dsbuild in $PATH; hint: make build" >&2
    exit 2
fi
mkdir -p "$dir"
exec 9>"$dir/.lock"
flock --nonblock 9 || { echo "nightly.sh: another night still runs in $dir" >&2; exit 1; }
rm -rf "$dir/dist" "$dir/report.json"
code=0
{
    dsbuild wheel --arch "$arch" --json -o "$dir/dist" >"$dir/wheel.json" &&
        dsbuild deploy "$inventory" --wheel "$dir/dist" --report "$dir/report.json" >"$dir/deploy.txt"
} 2>"$dir/log" 9>&- || code=$? # an engine started here must not hold the lock
if [ "$code" -ne 0 ]; then
    echo "dsbuild nightly failed with exit code $code; the end of $dir/log:" >&2
    tail -n 40 "$dir/log" >&2
fi
exit "$code"
