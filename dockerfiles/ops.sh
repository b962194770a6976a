#!/bin/sh
# Installs into the environment DSBUILD_ENV what ops need of Python packages on a
# node: REQUIRES, requirements joined by spaces. PINS as for runtime.sh.
set -eu
. "$(dirname "$0")/site.sh"
[ -n "$REQUIRES" ] || exit 0
pins=$(mktemp)
printf '%s\n' $PINS >"$pins"
uv pip install --python "$DSBUILD_ENV" ${DSBUILD_BESIDE:+--no-deps} --overrides "$pins" $REQUIRES
rm "$pins"
