#!/bin/sh
# Makes the environment DSBUILD_ENV with the torch to build for.
#
# PYTHON (X.Y, or the path of an interpreter), TORCH (X.Y.Z)
set -eu
. "$(dirname "$0")/site.sh"
uv venv -q --python "$PYTHON" "$DSBUILD_ENV"
uv pip install --python "$DSBUILD_ENV" "torch==$TORCH"
