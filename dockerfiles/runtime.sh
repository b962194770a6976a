#!/bin/sh
# Adds to the environment DSBUILD_ENV what DeepSpeed needs beside torch. PINS are
# requirements that take the place of those in runtime.txt, joined by spaces.
set -eu
here=$(dirname "$0")
. "$here/site.sh"
pins=$(mktemp)
printf '%s\n' $PINS >"$pins"
uv pip install --python "$DSBUILD_ENV" --overrides "$pins" -r "$here/runtime.txt"
rm "$pins"
