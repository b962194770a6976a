#!/bin/sh
# Makes the environment DSBUILD_ENV: what a node has, with the torch to build for.
#
# PYTHON (X.Y, or the path of an interpreter), TORCH (X.Y.Z), PINS: requirements
# that take the place of those in runtime.txt, joined by spaces.
set -eu
here=$(dirname "$0")
. "$here/site.sh"
uv venv -q --python "$PYTHON" "$DSBUILD_ENV"
pins=$(mktemp)
printf '%s\n' $PINS >"$pins"
uv pip install --python "$DSBUILD_ENV" --overrides "$pins" "torch==$TORCH" -r "$here/runtime.txt"
rm "$pins"
