#!/bin/sh
# Makes the environment DSBUILD_ENV with the torch to build for.
#
# PYTHON (X.Y, or the path of an interpreter), TORCH (X.Y.Z)
# TORCH_INDEX: which of torch's own indexes has it (cu126), or nothing: the package index
# TORCH_SHA256: of its wheel, or nothing
#
# DSBUILD_BESIDE: package directories, joined by colons, of an environment that
# has torch already. It is seen, behind what this one has itself, and not written to.
set -eu
. "$(dirname "$0")/site.sh"
uv venv -q --python "$PYTHON" "$DSBUILD_ENV"
if [ -n "${DSBUILD_BESIDE-}" ]; then
    own=$("$DSBUILD_ENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf '%s\n' "$DSBUILD_BESIDE" | tr ':' '\n' >"$own/dsbuild-beside.pth"
    exit 0
fi
torch="torch==$TORCH"
if [ -n "${TORCH_INDEX-}" ]; then
    torch="$torch+$TORCH_INDEX"
    export UV_INDEX="$DSBUILD_TORCH_INDEX/$TORCH_INDEX${UV_INDEX:+ $UV_INDEX}"
fi
[ -z "${TORCH_SHA256-}" ] || torch="$torch --hash=sha256:$TORCH_SHA256"
echo "$torch" | uv pip install --python "$DSBUILD_ENV" -r -
