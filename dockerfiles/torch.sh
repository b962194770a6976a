#!/bin/sh
# Makes the environment DSBUILD_ENV with the torch to build for.
#
# PYTHON (X.Y, or the path of an interpreter), TORCH (X.Y.Z)
# TORCH_INDEX: which of torch's own indexes has it (cu126), or nothing: the package index
# packages.txt pins it, as all packages, by the sha256 of its file.
#
# DSBUILD_BESIDE: package directories, joined by colons, of an environment that
# has torch already. It is seen, behind what this one has itself, and not written to.
set -eu
here=$(dirname "$0")
. "$here/site.sh"
uv venv -q --python "$PYTHON" "$DSBUILD_ENV"
if [ -n "${DSBUILD_BESIDE-}" ]; then
    own=$("$DSBUILD_ENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf '%s\n' "$DSBUILD_BESIDE" | tr ':' '\n' >"$own/dsbuild-beside.pth"
    exit 0
fi
if [ -n "${TORCH_INDEX-}" ]; then
    export UV_INDEX="$DSBUILD_TORCH_INDEX/$TORCH_INDEX${UV_INDEX:+ $UV_INDEX}"
fi
grep '^torch==' "$here/packages.txt" | uv pip install --python "$DSBUILD_ENV" --no-deps --require-hashes --only-binary :all: -r -
